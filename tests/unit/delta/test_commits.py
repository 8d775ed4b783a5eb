"""The one way to commit to a table of ours: ``Commits``, which cannot replace a commit."""

import re
from pathlib import Path
from typing import Final

import flushtracker
from flushtracker.delta.registry_table import RegistryTable
from flushtracker.tracking.acks.ack_table import AckTable
from tests.support.object_store import running_store, store_options
from tests.support.racing_entries import URI, race

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


def test_commit_to_an_object_store_cannot_replace_another() -> None:
    """Each is a PUT that fails if the version exists, without a lock or an option of the user's."""
    with running_store() as (port, printed):
        options = store_options(port)
        AckTable("s3://bucket/acks", options).fence_others()
        AckTable("s3://bucket/acks", options).fence_others()
        found = [printed.readline().split() for _ in range(3)]
    assert found == [[f"acks/_delta_log/{version:020}.json", "*"] for version in range(3)]


def test_programs_that_race_on_an_object_store_replace_no_commit() -> None:
    """Each entry of each program is there, whoever was first."""
    with running_store() as (port, _):
        RegistryTable(URI, store_options(port), create=True)
        race(port, "abc", 10)
        found = RegistryTable(URI, store_options(port)).written()
        assert sorted(key[2] for key in found) == sorted(f"{name}{number}" for name in "abc" for number in range(10))
