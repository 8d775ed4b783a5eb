"""The table of what Kafka hides, in ``docs/writers.md``: each rule has tests, under names that exist."""

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]


def rows() -> list[list[str]]:
    """The cells of the table's rows."""
    section = (ROOT / "docs" / "writers.md").read_text().partition("### What Kafka hides")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_each_rule_names_tests_that_exist() -> None:
    """A test that is renamed or deleted would leave its rule without one, and nobody would notice."""
    files = (ROOT / "tests").rglob("test_*.py")
    defined = {name for path in files for name in re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE)}
    named = {rule: set(re.findall(r"`(test_\w+)`", tests)) for rule, _, tests in rows()}
    assert len(named) == len(rows()) >= 9
    assert {rule: tests - defined for rule, tests in named.items() if not tests or tests - defined} == {}
