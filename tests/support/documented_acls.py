"""The privileges that ``docs/security.md`` lists for each program."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.support.secured_broker import Acl

_PAGE: Final = (Path(__file__).parents[2] / "docs" / "security.md").read_text()
_HEAD: Final = re.compile(r"^\| (?:program|job) \|(?P<cells>.*)\|$", re.MULTILINE)
_SQL: Final = re.compile(r"```sql\n(?P<statements>CREATE ROLE capture.*?)```", re.DOTALL)


def documented_acls(program: str) -> list[tuple[str, str]]:
    """Each operation with the role of its topic, such as ``("READ", "fragments")``."""
    row = re.search(rf"^\| `{program}` \|(?P<cells>.*)\|$", _PAGE, re.MULTILINE)
    assert row is not None
    *_, head = _HEAD.finditer(_PAGE, 0, row.start())
    cells = zip(_cells(head["cells"]), _cells(row["cells"]), strict=True)
    return [(operation, role) for role, operations in cells for operation in operations.split(", ") if operation]


def acls_of(program: str, topics: Mapping[str, str]) -> set[Acl]:
    """The program's ACLs on the topics of these roles."""
    return {(operation, topics[role]) for operation, role in documented_acls(program)}


def documented_role(password: str) -> list[str]:
    """The statements that create capture's role."""
    found = _SQL.search(_PAGE)
    assert found is not None
    lines = [line.partition("--")[0].strip() for line in found["statements"].splitlines()]
    return [line.replace("…", password) for line in lines]


def _cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.split("|")]
