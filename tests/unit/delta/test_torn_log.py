"""What a power failure has torn at the end of a table's log, and what a process that takes over makes durable."""

import os
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

import pytest
from deltalake import DeltaTable

from flushtracker.delta import compaction
from flushtracker.delta.commits import Commits
from flushtracker.delta.registry_table import RegistryTable
from flushtracker.errors import SinkError
from flushtracker.shape_log.table.claim import LogClaim
from flushtracker.shape_log.table.log_table import create_shape_log
from flushtracker.tracking.acks.ack_reader import AckReader
from flushtracker.tracking.acks.ack_table import AckRow, AckTable
from tests.support.sample_registry import shape_entry

_SOURCE = "7301/1/shapes"


def _acks(folder: Path, count: int = 3) -> Path:
    """An ack table whose last ack is ``count``, in version ``count + 1``; returns its log."""
    table = AckTable(str(folder))
    table.fence_others()
    for ack in range(1, count + 1):
        now = datetime.now(timezone.utc)
        assert table.append(AckRow(_SOURCE, ack, ack, ack, 0, None, None, now))
    return folder / "_delta_log"


def _version(log: Path, version: int) -> Path:
    return log / f"{version:020}.json"


@pytest.mark.parametrize("tear", [lambda text: text[:0], lambda text: text[:100], lambda text: "\0" * len(text)])
def test_torn_last_versions_are_set_aside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, tear: Callable[[str], str]
) -> None:
    """Their acks were never confirmed. deltalake cannot read such a log, or takes the version for one without acks."""
    log = _acks(tmp_path)
    for version in (3, 4):
        _version(log, version).write_text(tear(_version(log, version).read_text()))
    table = AckTable(str(tmp_path))
    assert table.last_ack(_SOURCE) == 1
    assert "torn by a power failure, set aside" in caplog.text
    assert (log / f".torn-{4:020}.json").exists()
    assert DeltaTable(str(tmp_path)).version() == 2


def test_a_merge_that_is_torn_after_a_line_loses_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of its lines is whole, but the files that it removes are not replaced."""
    monkeypatch.setattr(compaction, "COMPACT_EVERY", 5)
    table = RegistryTable(str(tmp_path), create=True)
    for shape in "abcde":
        table.append([shape_entry(shape).to_json()], datetime.now(timezone.utc))
    merge = _version(tmp_path / "_delta_log", 6)
    text = merge.read_text()
    assert text.count('"remove"') == 5
    for lines in range(len(text.splitlines())):
        merge.write_text("\n".join(text.splitlines()[:lines]))
        entries = RegistryTable(str(tmp_path), create=True).entries()
        assert [shape for _, _, shape in sorted(entries.entries)] == list("abcde")


def test_a_creation_that_is_torn_after_a_line_is_repeated(tmp_path: Path) -> None:
    log = _acks(tmp_path / "whole", count=0)
    text = _version(log, 0).read_text()
    for lines in range(len(text.splitlines())):
        folder = tmp_path / f"{lines}"
        (folder / "_delta_log").mkdir(parents=True)
        _version(folder / "_delta_log", 0).write_text("\n".join(text.splitlines()[:lines]))
        assert AckTable(str(folder)).last_ack(_SOURCE) is None


def test_torn_version_before_others_is_left_for_a_person(tmp_path: Path) -> None:
    """No power failure leaves it: each process syncs the versions that its own follows. So something else is wrong."""
    log = _acks(tmp_path)
    _version(log, 3).write_text("{")
    with pytest.raises(SinkError, match=r"ack table .* cannot be opened"):
        AckTable(str(tmp_path))
    assert _version(log, 3).read_text() == "{"


@pytest.mark.parametrize("torn", ["checkpoint", "hint", "both"])
def test_torn_checkpoint_is_set_aside(tmp_path: Path, torn: str) -> None:
    """The commits that it replaces are there until it is durable."""
    log = _acks(tmp_path)
    DeltaTable(str(tmp_path)).create_checkpoint()
    if torn != "hint":
        path = log / f"{4:020}.checkpoint.parquet"
        path.write_bytes(path.read_bytes()[:-10])
    if torn != "checkpoint":
        (log / "_last_checkpoint").write_text('{"vers')
    assert AckTable(str(tmp_path)).last_ack(_SOURCE) == 3


def test_whole_log_is_left_alone(tmp_path: Path) -> None:
    """Also with a checkpoint in the middle."""
    log = _acks(tmp_path)
    DeltaTable(str(tmp_path)).create_checkpoint()
    names = {path.name for path in log.iterdir()}
    AckTable(str(tmp_path))
    assert {path.name for path in log.iterdir()} == names


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files and folders that this process syncs."""
    found = list[str]()
    monkeypatch.setattr(os, "fsync", lambda number: found.append(Path(f"/proc/self/fd/{number}").readlink().name))
    return found


def _killed_before_its_sync(monkeypatch: pytest.MonkeyPatch, commit: Callable[[], object]) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(Commits, "sync", lambda *_: None)
        commit()


def test_capture_syncs_an_ack_before_it_uses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, synced: list[str]
) -> None:
    """The job may be killed between the commit and its sync; then a power failure would leave the slot past its ack."""
    _killed_before_its_sync(monkeypatch, lambda: _acks(tmp_path))
    synced.clear()
    assert AckReader(str(tmp_path)).last_ack(_SOURCE) == 3
    assert synced == [*(f"{version:020}.json" for version in range(5)), "_delta_log"]


def test_starting_writer_syncs_what_the_killed_one_has_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, synced: list[str]
) -> None:
    """It notifies again all that it finds in the log."""
    log = str(tmp_path / "log")
    _killed_before_its_sync(monkeypatch, LogClaim(create_shape_log(log)).take)
    synced.clear()
    LogClaim(create_shape_log(log)).take()
    assert synced == [*(f"{version:020}.json" for version in range(3)), "_delta_log"]
