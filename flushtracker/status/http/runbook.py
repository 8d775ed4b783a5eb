"""The sections of the runbook, ``docs/runbook.md``, which a program serves with its page."""

import re
from collections.abc import Mapping
from importlib.resources import files
from typing import Final

_HEADING: Final = re.compile(r"^#{2,} (.+)$", re.MULTILINE)


def sections(text: str) -> dict[str, str]:
    """Each section of a Markdown page by the anchor of its heading; its subsections are sections of their own.

    >>> sections("# T\\n## First aid\\na\\n### `--x`: y\\nb\\n")
    {'first-aid': '## First aid\\na\\n', '--x-y': '### `--x`: y\\nb\\n'}
    """
    found = list(_HEADING.finditer(text))
    ends = [*(heading.start() for heading in found[1:]), len(text)]
    return {
        re.sub(r"[^\w -]", "", heading[1].lower()).replace(" ", "-"): text[heading.start() : end]
        for heading, end in zip(found, ends, strict=True)
    }


RUNBOOK: Final[Mapping[str, str]] = sections(
    files("flushtracker.status.http").joinpath("runbook.md").read_text(encoding="utf-8")
)
