"""Every commit to a table of ours goes through ``Commits``: nothing else in the package could make one."""

import re
from pathlib import Path
from typing import Final

import flushtracker

_ROOT: Final = Path(flushtracker.__file__).parent
_COMMITS: Final = re.compile(
    r"write_deltalake|create_write_transaction|DeltaTable\.create|\.optimize\b|dry_run=False|\.alter\b|"
    r"""write(Stream)?\.format\(["']delta|saveAsTable|insertInto|from delta\b|import delta\b|DeltaTable\.forPath"""
)
_ALLOWED: Final = {"delta/commits.py": ["create_write_transaction"], "delta/table_folder.py": ["DeltaTable.create"]}


def test_nothing_else_commits_to_a_table() -> None:
    """Spark's own Delta writer replaces commits, and deltalake's own calls sync nothing."""
    found = {
        str(path.relative_to(_ROOT)): [match[0] for match in _COMMITS.finditer(path.read_text())]
        for path in _ROOT.rglob("*.py")
    }
    assert {name: calls for name, calls in found.items() if calls} == _ALLOWED
