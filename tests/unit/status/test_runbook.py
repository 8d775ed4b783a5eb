"""The runbook quotes what the programs really print, so that whoever searches it for a message finds the case."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

import flushtracker

ROOT = Path(flushtracker.__file__).parent
RUNBOOK = (ROOT.parent / "docs" / "runbook.md").read_text()
ROWS = [
    message
    for cell in re.findall(r"^\| (`[^|]+`) \|", RUNBOOK, re.MULTILINE)
    for message in re.findall(r"`([^`]+)`", cell)
]


@cache
def texts() -> str:
    """Every string of the package, with … for what is filled in; adjacent literals are one string."""
    found = []
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = [part.value if isinstance(part, ast.Constant) else "…" for part in node.values]
                found.append("".join(str(part) for part in parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return "\n".join(found)


@pytest.mark.parametrize("message", ROWS)
def test_quoted_message_is_one_that_a_program_prints(message: str) -> None:
    """Each part between the dots is in a string of the package."""
    missing = [part for part in re.split(r"\s*…,?\s*", message) if part and part not in texts()]
    assert missing == []


def test_runbook_has_cases() -> None:
    """The pattern above finds them, and a message that no program prints would be missed."""
    assert len(ROWS) > 20
    assert "the flux capacitor" not in texts()
