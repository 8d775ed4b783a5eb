"""``yaml_text``: writes a text as a value of a configuration file."""

import re
from typing import Final

from flushtracker.errors import printable

_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:[./-][A-Za-z0-9_]+)*")
_NOT_TEXTS: Final = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})
"""What YAML reads as something else than text, in any case."""


def yaml_text(text: str) -> str:
    """``text`` as a YAML scalar, which a reader of configuration files takes for the same text: quoted if it must be.

    >>> print(yaml_text("public.orders"), yaml_text('public."Order Lines"'), yaml_text("no"), yaml_text("${HOME}\\n"))
    public.orders "public.\\"Order Lines\\"" "no" "$${HOME}\\n"
    """
    if _PLAIN.fullmatch(text) and text.lower() not in _NOT_TEXTS:
        return text
    quoted = text.replace("\\", "\\\\").replace('"', '\\"')
    # Python's escapes of unprintable characters are YAML's, too; a literal ${ is doubled.
    return f'"{printable(quoted)}"'.replace("${", "$${")
