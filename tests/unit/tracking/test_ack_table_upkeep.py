"""The ack table over months: files, log, short runs, columns of other releases, rows that somebody has deleted."""

import os
from collections.abc import Callable, Iterable
from datetime import datetime, timezone
from pathlib import Path
from typing import Final

import pytest
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType

from flushtracker.delta import compaction, owned_table
from flushtracker.delta.fence import FENCING_APP_ID
from flushtracker.delta.storage import table_rows
from flushtracker.delta.table_version import PROPERTY
from flushtracker.errors import SinkError
from flushtracker.tracking.acks.ack_reader import AckReader, read_ack_history
from flushtracker.tracking.acks.ack_table import AckRow, AckTable
from tests.support.waiting import wait_until

_SOURCE: Final = "7301/1/shapes"
_HOUR_S: Final = 3600


def row(ack_lsn: int, source: str = _SOURCE) -> AckRow:
    return AckRow(source, 3, ack_lsn, ack_lsn + 8, 2, "users", None, datetime.now(timezone.utc))


def open_table(folder: Path) -> AckTable:
    """Open the table as a new driver, which fences all others."""
    table = AckTable(str(folder))
    table.fence_others()
    return table


def ack_lsns(folder: Path) -> list[int]:
    return sorted(table_rows(DeltaTable(str(folder)), ["ack_lsn"])["ack_lsn"].to_pylist())


def data_files(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("*.parquet")}


def log_files(folder: Path) -> list[str]:
    return [path.name for path in (folder / "_delta_log").iterdir()]


def age(paths: Iterable[Path], seconds: int) -> None:
    """Set files' modification times back."""
    for path in paths:
        then = path.stat().st_mtime - seconds
        os.utime(path, (then, then))


@pytest.fixture
def faster_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour becomes a second, and 100 commits become 10."""
    scaled = {
        "flushtracker-version": "1",
        "delta.checkpointInterval": "10",
        "delta.logRetentionDuration": "interval 1 seconds",
        "delta.deletedFileRetentionDuration": "interval 1 seconds",
    }
    assert owned_table.CONFIGURATION.keys() == scaled.keys()
    monkeypatch.setattr(owned_table, "CONFIGURATION", scaled)
    monkeypatch.setattr(compaction, "COMPACT_EVERY", 10)


@pytest.mark.usefixtures("faster_clock")
def test_files_do_not_accumulate_over_many_acks(tmp_path: Path) -> None:
    """Everything replaced is deleted after the retention, also what the log's checkpoints no longer name."""
    folder = tmp_path / "acks"
    table = open_table(folder)
    last = 1000

    def append(rows: int) -> None:
        nonlocal last
        for _ in range(rows):
            last += 1
            assert table.append(row(last))

    def is_small() -> bool:
        """Whether one compaction interval later only recent files are left."""
        append(10)
        return len(data_files(folder)) < 25 and len(log_files(folder)) < 60

    append(250)
    wait_until(is_small, "the old files are gone", 30, pause_s=1)
    assert ack_lsns(folder) == list(range(1001, last + 1))
    assert AckTable(str(folder)).last_acks() == {_SOURCE: last}


def test_short_runs_compact_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With ``available_now`` under cron, each process appends few rows; the table's version counts, not the process."""
    monkeypatch.setattr(compaction, "COMPACT_EVERY", 20)
    folder = tmp_path / "acks"
    for number in range(60):
        table = open_table(folder)
        assert number % 3 or table.append(row(1000 + number))
        assert len(DeltaTable(str(folder)).file_uris()) <= 20
    assert ack_lsns(folder) == list(range(1000, 1060, 3))
    assert len(DeltaTable(str(folder)).file_uris()) < 10


def test_rows_of_several_compacted_files_are_there_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file that is replaced is removed by the same commit, whichever one its rows are in then."""
    folder = tmp_path / "acks"
    table = open_table(folder)
    lsns = range(1000, 1009)
    for lsn in lsns:
        table.append(row(lsn))
    smallest = min(path.stat().st_size for path in folder.glob("*.parquet"))
    monkeypatch.setattr(table._owned._compaction, "_merged_bytes", 2 * smallest + 1)
    table._owned.compact()
    assert ack_lsns(folder) == [*lsns]
    assert 1 < len(DeltaTable(str(folder)).file_uris()) < len(lsns)


def test_files_that_are_not_committed_yet_survive_a_compaction(tmp_path: Path) -> None:
    """A driver writes its file before it commits. What a killed one has left is deleted after the retention."""
    folder = tmp_path / "acks"
    table = open_table(folder)
    for number in range(3):
        assert table.append(row(1000 + number))
    written, left_behind = folder / "part-1-written.parquet", folder / "part-2-left-behind.parquet"
    for path in (written, left_behind):
        path.write_bytes(b"rows")
    age([left_behind], 2 * _HOUR_S)
    table._owned.compact()
    assert written.exists()
    assert not left_behind.exists()


def test_replaced_files_survive_for_the_retention(tmp_path: Path) -> None:
    """They may be older than the retention, but a reader may have begun just before they were replaced."""
    folder = tmp_path / "acks"
    table = open_table(folder)
    for number in range(5):
        assert table.append(row(1000 + number))
    before = data_files(folder)
    age(folder.glob("*.parquet"), 2 * _HOUR_S)
    table._owned.compact()
    assert before < data_files(folder)
    assert len(table_rows(DeltaTable(str(folder)), ["source"])) == 5


def test_compaction_by_a_stale_driver_deletes_nothing_of_its_successor(tmp_path: Path) -> None:
    """It does not know the other's last commits, but their files are younger than the retention."""
    folder = tmp_path / "acks"
    stale = open_table(folder)
    for number in range(5):
        assert stale.append(row(1000 + number))
    current = open_table(folder)
    for number in range(5):
        assert current.append(row(1005 + number))
    stale._owned.compact()
    assert current.append(row(1010))
    assert ack_lsns(folder) == list(range(1000, 1011))


def test_columns_of_a_newer_release_stay_empty(tmp_path: Path) -> None:
    """After a rollback, appends name the columns that they know, and readers ask for them by name."""
    folder = tmp_path / "acks"
    assert open_table(folder).append(row(1000))
    fields = [Field("lag_bytes", PrimitiveType("long")), Field("note", PrimitiveType("string"))]
    DeltaTable(str(folder)).alter.add_columns(fields)
    table = open_table(folder)
    assert table.append(row(1001))
    assert ack_lsns(folder) == [1000, 1001]
    assert [ack.ack_lsn for ack in read_ack_history(str(folder)).acks] == [1000, 1001]
    reader = AckReader(str(folder))
    last_row = reader.last_row(_SOURCE)
    assert last_row is not None
    assert (reader.last_ack(_SOURCE), last_row.ack_lsn) == (1001, 1001)
    empty = table_rows(DeltaTable(str(folder)), ["lag_bytes", "note"]).to_pylist()
    assert empty == [{"lag_bytes": None, "note": None}] * 2


def test_column_added_while_the_driver_runs_does_not_stop_it(tmp_path: Path) -> None:
    """As in a rolling upgrade, where a newer release has opened the table and not started yet."""
    folder = tmp_path / "acks"
    table = open_table(folder)
    assert table.append(row(1000))
    DeltaTable(str(folder)).alter.add_columns([Field("lag_bytes", PrimitiveType("long"))])
    assert table.append(row(1001))
    assert ack_lsns(folder) == [1000, 1001]


def test_last_acks_outlive_their_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Old rows may be deleted: the last ack of each source is in the log, also behind the log's own checkpoints."""
    monkeypatch.setattr(owned_table, "CONFIGURATION", owned_table.CONFIGURATION | {"delta.checkpointInterval": "10"})
    folder = tmp_path / "acks"
    table = open_table(folder)
    assert table.append(row(500, "idle/1/s"))
    for number in range(25):
        assert table.append(row(1000 + number))
    DeltaTable(str(folder)).delete()
    assert ack_lsns(folder) == []
    assert table.append(row(7, "new/1/s"))
    expected = {_SOURCE: 1024, "idle/1/s": 500, "new/1/s": 7}
    assert table.last_acks() == expected
    age((folder / "_delta_log").iterdir(), 2 * _HOUR_S)
    DeltaTable(str(folder)).cleanup_metadata()
    assert len(log_files(folder)) < 15
    reopened = open_table(folder)
    assert reopened.last_acks() == expected
    assert not reopened.append(row(1024))


def test_damaged_log_is_a_sink_error(tmp_path: Path) -> None:
    """The message names the table."""
    folder = tmp_path / "acks"
    table = open_table(folder)
    (folder / "_delta_log" / f"{1:020}.json").write_text("{no JSON")
    with pytest.raises(SinkError, match=f"ack table {folder} cannot be read: its log is malformed: "):
        table.last_acks()


def test_log_that_cannot_be_read_under_an_open_table_is_a_sink_error(tmp_path: Path) -> None:
    """An app transaction is looked up in the log's files, and whoever asks tries again later."""
    folder = tmp_path / "acks"
    table, reader = open_table(folder), AckReader(str(folder))
    table.append(row(1000))
    assert reader.last_ack(_SOURCE) == 1000
    first, away = folder / "_delta_log" / f"{0:020}.json", tmp_path / "away"
    first.rename(away)
    for look in (reader.last_ack, table.last_ack):
        with pytest.raises(SinkError, match=f"ack table {folder} cannot be read: "):
            look("7302/1/shapes")
    assert not reader.exists
    away.rename(first)
    assert (reader.last_ack("7302/1/shapes"), reader.last_ack(_SOURCE)) == (None, 1000)
    assert table.last_ack(_SOURCE) == 1000


@pytest.mark.parametrize("source", [FENCING_APP_ID, f"{FENCING_APP_ID} (source)"])
def test_source_may_have_the_name_of_the_fencing_token(tmp_path: Path, source: str) -> None:
    """Its acks neither fence the driver nor pass for the token."""
    folder = tmp_path / "acks"
    table = open_table(folder)
    assert table.last_ack(source) is None
    for ack_lsn in (1, 1000):
        assert table.append(row(ack_lsn, source), row(ack_lsn))
    assert table.last_acks() == {source: 1000, _SOURCE: 1000}
    assert AckReader(str(folder)).last_ack(source) == 1000
    assert open_table(folder).append(row(1001, source))


def test_acks_of_several_sources_are_one_commit(tmp_path: Path) -> None:
    """It is exact for each of them: those that have not advanced are left out."""
    folder = tmp_path / "acks"
    table = open_table(folder)
    assert table.append(row(1000, "a/1/s"), row(2000, "b/1/s")) == 2
    version = DeltaTable(str(folder)).version()
    assert table.append(row(1001, "a/1/s"), row(2000, "b/1/s"), row(3000, "c/1/s")) == 2
    assert table.append(row(1001, "a/1/s"), row(1999, "b/1/s")) == 0
    assert DeltaTable(str(folder)).version() == version + 1
    assert table.last_acks() == {"a/1/s": 1001, "b/1/s": 2000, "c/1/s": 3000}
    assert ack_lsns(folder) == [1000, 1001, 2000, 3000]
    open_table(folder)
    with pytest.raises(SinkError, match="this driver has been fenced"):
        table.append(row(1002, "a/1/s"), row(3001, "c/1/s"))
    assert AckReader(str(folder)).last_ack("c/1/s") == 3000


def test_compaction_that_fails_does_not_stop_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The next one does its work; meanwhile there are only more files."""
    monkeypatch.setattr(compaction, "COMPACT_EVERY", 10)
    folder = tmp_path / "acks"
    table = open_table(folder)
    for number in range(5):
        assert table.append(row(1000 + number))
    hidden = next(iter(sorted(folder.glob("*.parquet"))))
    hidden.rename(tmp_path / "hidden")
    for number in range(5, 9):
        assert table.append(row(1000 + number))
    assert f"ack table not compacted uri={folder} reason=" in caplog.text
    (tmp_path / "hidden").rename(hidden)
    for number in range(9, 19):
        assert table.append(row(1000 + number))
    assert len(DeltaTable(str(folder)).file_uris()) < 10


def set_version(folder: Path, version: str) -> None:
    DeltaTable(str(folder)).alter.set_table_properties({PROPERTY: version}, raise_if_not_exists=False)


def test_a_table_of_a_later_layout_is_refused(tmp_path: Path) -> None:
    """A reader or writer refuses it when it opens the table, and also if it already has the table open."""
    folder = tmp_path / "acks"
    table, reader = open_table(folder), AckReader(str(folder))
    assert table.append(row(1000))
    assert reader.last_ack(_SOURCE) == 1000
    assert DeltaTable(str(folder)).metadata().configuration[PROPERTY] == "1"
    set_version(folder, "2")
    refusals: list[Callable[[], object]] = [
        lambda: table.append(row(1001)),
        lambda: reader.last_ack(_SOURCE),
        lambda: AckReader(str(folder)).last_row(_SOURCE),
        lambda: AckTable(str(folder)),
        lambda: read_ack_history(str(folder)),
    ]
    for refused in refusals:
        with pytest.raises(SinkError, match=f"^ack table {folder} has version 2, and this release reads version 1; "):
            refused()
    set_version(folder, "1")
    assert reader.last_ack(_SOURCE) == 1000
    assert table.append(row(1001))


def test_a_table_without_a_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Versions before the first release have written such."""
    without = {name: value for name, value in owned_table.CONFIGURATION.items() if name != PROPERTY}
    monkeypatch.setattr(owned_table, "CONFIGURATION", without)
    folder = tmp_path / "acks"
    message = f"^ack table {folder} has no flushtracker-version: a version before 0.1.0, or another program, wrote it; "
    for _ in range(2):
        with pytest.raises(SinkError, match=message):
            open_table(folder)
    assert PROPERTY not in DeltaTable(str(folder)).metadata().configuration
    with pytest.raises(SinkError, match=message):
        AckReader(str(folder)).last_ack(_SOURCE)
