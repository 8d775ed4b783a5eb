"""A shape log over months: what a reader opens, what merging costs, which files are left, and that no row is lost."""

import json
import os
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType
from deltalake.transaction import AddAction

from flushtracker.delta import registry_table
from flushtracker.delta.commits import Commits
from flushtracker.delta.registry_table import RegistryTable
from flushtracker.delta.storage import query_rows, table_rows
from flushtracker.delta.table_folder import TableFolder
from flushtracker.errors import ShapeEndedError, SinkError, SnapshotMissingError
from flushtracker.shape_log.merge_plan import MergeSettings
from flushtracker.shape_log.table import log_table as shape_log
from flushtracker.shape_log.table import upkeep as shape_log_upkeep
from flushtracker.shape_log.table.files import LogFile, LogFiles, RunPart, by_run
from flushtracker.shape_log.table.log_table import create_shape_log
from flushtracker.shape_log.table.reader import read_shape, read_shape_log
from flushtracker.shape_log.table.runs import Runs, sort
from flushtracker.shape_log.table.upkeep import ShapeLogUpkeep
from flushtracker.wal.log_offset import LogOffset
from tests.support.sample_registry import register, shape_entry, taken
from tests.support.shape_log_rows import SOURCE, Row, append, append_transactions, arrow, commit, item, snapshot_rows
from tests.support.waiting import wait_until

_NOW: Final = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
_SMALL: Final = MergeSettings(
    merge_files=8, merge_bytes=1 << 20, sealed_bytes=30_000, files_per_run=8, least_file_bytes=4096
)


def names(count: int) -> list[str]:
    return [f"customers-of-the-region-{number:05}" for number in range(count)]


def files(log: str) -> list[LogFile]:
    return LogFiles(DeltaTable(log), {}).current()


def row_keys(log: str) -> list[tuple[str, int, int]]:
    rows = table_rows(DeltaTable(log), ["shape_id", "tx_offset", "op_offset"])
    return sorted(zip(*(column.to_pylist() for column in rows.columns), strict=True))


def age(paths: Iterable[Path], seconds: int) -> None:
    """Set files' modification times back."""
    for path in paths:
        then = path.stat().st_mtime - seconds
        os.utime(path, (then, then))


def test_reading_one_shape_opens_few_bytes_after_merging(log: str, tmp_path: Path) -> None:
    """All other files can be gone: a reader opens none of them. Ids have long common prefixes."""
    shape_ids = names(1000)
    for number in range(24):
        append_transactions(log, shape_ids, number, rows_each=20)
    before = row_keys(log)
    settings = MergeSettings(merge_files=24, least_file_bytes=1)
    report = ShapeLogUpkeep(log, settings=settings).run(_NOW)
    assert (report.merges, report.vacuumed_files) == (1, 0)
    assert row_keys(log) == before
    assert {file.run for file in files(log)} == {25}
    chosen, total = shape_ids[499], sum(file.bytes for file in files(log))
    whole = read_shape_log(log, chosen).rows
    assert len(whole) == 24 * 21
    for file in files(log):
        if not file.may_have([chosen]):
            (tmp_path / "log" / file.path).unlink()
    assert read_shape_log(log, chosen).rows == whole
    now = files(log)
    for shape_id in shape_ids:
        assert sum(file.bytes for file in now if file.may_have([shape_id])) <= 0.02 * total


def test_shape_of_many_rows_is_cut_into_files(log: str) -> None:
    """One shape may be larger than all others together. Its rows stay in order, also when its run is merged again."""
    settings = MergeSettings(merge_files=2, files_per_run=10, least_file_bytes=1)
    for tx in (10, 20):
        append(log, [item((tx, 2 * n), "insert", f"k{n}", {"id": f"{n}"}) for n in range(10_000)])
        append(log, [commit(tx), item((tx, 0), "insert", "a", {"id": "1"}, shape_id="a"), commit(tx, shape_id="a")])
        before = row_keys(log)
        assert ShapeLogUpkeep(log, settings=settings).run(_NOW).merges == 1
        assert row_keys(log) == before
        # In whatever order the table's log lists them.
        ((_, run),) = by_run(reversed(files(log))).items()
        assert 8 <= len(run) <= 14
        rows = pa.concat_tables(LogFiles(DeltaTable(log), {}).read_blocks(file.path for file in run))
        assert rows == sort(rows)
    assert len(read_shape(log, "users").rows) == 10_000


def test_runs_double_and_are_then_left_alone(log: str) -> None:
    """Files that a merge has made are replaced by merges alone, and those of a large run never."""
    upkeep = ShapeLogUpkeep(log, settings=_SMALL)
    sealed = set[str]()
    for number in range(12 * 8):
        append_transactions(log, names(20), number)
        assert upkeep.run(_NOW).merges == (number % 8 == 7)
        sizes = {run: sum(file.bytes for file in parts) for run, parts in by_run(files(log)).items()}
        assert sealed <= {file.path for file in files(log)}
        sealed = {file.path for file in files(log) if file.run and sizes[file.run] >= _SMALL.sealed_bytes}
        assert len(sizes) <= 8
    assert sealed
    keys = row_keys(log)
    assert len(keys) == len(set(keys)) == 12 * 8 * 20 * 5


@pytest.fixture
def faster_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six hours become a second, and 1,000 versions 20."""
    scaled = shape_log.CONFIGURATION | {
        "delta.checkpointInterval": "10",
        "delta.logRetentionDuration": "interval 1 seconds",
        "delta.deletedFileRetentionDuration": "interval 1 seconds",
    }
    monkeypatch.setattr(shape_log, "CONFIGURATION", scaled)
    monkeypatch.setattr(shape_log_upkeep, "VACUUM_EVERY", 20)


@pytest.mark.usefixtures("faster_clock")
def test_files_do_not_accumulate_over_many_days(tmp_path: Path) -> None:
    """What was replaced is deleted after the retention, and the table's log stays short."""
    folder = tmp_path / "log"
    create_shape_log(str(folder))
    number = 0

    def day() -> None:
        nonlocal number
        for _ in range(8):
            append_transactions(str(folder), names(20), number)
            number += 1
            # A new process each time: nothing is remembered.
            ShapeLogUpkeep(str(folder), settings=_SMALL).run(_NOW)

    for _ in range(14):
        day()

    def is_small() -> bool:
        day()
        on_disk = len(list(folder.glob("*.parquet")))
        return on_disk < 2 * len(files(str(folder))) + 100 and len(list((folder / "_delta_log").iterdir())) < 80

    wait_until(is_small, "the old files are gone", 30, pause_s=1)
    assert len(row_keys(str(folder))) == number * 20 * 5


def test_reader_in_the_middle_keeps_its_version(log: str) -> None:
    """Its files are replaced and there is a vacuum, but they stay for the retention, however old they are."""
    for number in range(8):
        append_transactions(log, names(10), number)
    reader, before = DeltaTable(log), row_keys(log)
    count = "SELECT count(*) AS n FROM rows"
    age(Path(log).glob("*.parquet"), 24 * 3600)
    upkeep = ShapeLogUpkeep(log, settings=_SMALL)
    assert upkeep.run(_NOW).merges == 1
    assert upkeep._vacuum() == 0
    assert query_rows(reader, count)["n"].to_pylist() == [len(before)]
    DeltaTable(log).alter.set_table_properties({"delta.deletedFileRetentionDuration": "interval 0 seconds"})
    old = {path.name for path in Path(log).glob("part-*.parquet")}
    assert ShapeLogUpkeep(log)._vacuum() == len(old) == 8
    assert row_keys(log) == before


def test_a_vacuum_that_is_due_when_upkeep_fails_is_done_by_the_next_one(
    log: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And only by that. Otherwise the files would stay for another thousand versions, in each of which it may fail."""
    monkeypatch.setattr(shape_log_upkeep, "VACUUM_EVERY", 8)
    DeltaTable(log).alter.set_table_properties({"delta.deletedFileRetentionDuration": "interval 0 seconds"})
    upkeep, delete, failures = ShapeLogUpkeep(log, settings=_SMALL), TableFolder.delete_old_files, [OSError("lost")]

    def fail_once(folder: TableFolder, table: DeltaTable) -> int:
        if failures:
            raise failures.pop()
        return delete(folder, table)

    monkeypatch.setattr(TableFolder, "delete_old_files", fail_once)
    for number in range(8):
        append_transactions(log, names(10), number)
    with pytest.raises(SinkError, match="lost"):
        upkeep.run(_NOW)
    done = upkeep.run(_NOW)
    assert (done.merges, done.vacuumed_files) == (0, 8)
    (Path(log) / "part-unused.parquet").touch()
    assert upkeep.run(_NOW).vacuumed_files == 0


def test_a_fold_that_always_fails_fills_no_disk(log: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it does once a file is lost: what merges have replaced is deleted all the same."""
    monkeypatch.setattr(shape_log_upkeep, "VACUUM_EVERY", 8)
    DeltaTable(log).alter.set_table_properties({"delta.deletedFileRetentionDuration": "interval 0 seconds"})
    upkeep = ShapeLogUpkeep(log, settings=_SMALL)

    def fail(_now: datetime) -> tuple[int, int]:
        raise OSError("lost")

    monkeypatch.setattr(upkeep, "_fold", fail)
    for number in range(8):
        append_transactions(log, names(10), number)
    with pytest.raises(SinkError, match="lost"):
        upkeep.run(_NOW)
    assert {path.name for path in Path(log).glob("*.parquet")} == {file.path for file in files(log)}


class _InterruptedCommits(Commits):
    def __init__(self, interrupt: Callable[[], None]) -> None:
        super().__init__()
        self._interrupt = interrupt

    def commit(self, *arguments: Any, **named: Any) -> None:
        self._interrupt()
        super().commit(*arguments, **named)


class _Interrupted(LogFiles):
    """Calls ``meanwhile`` once: when the new files are written, or between the check and the commit."""

    def __init__(self, log: str, meanwhile: Callable[[], object], *, checked: bool) -> None:
        super().__init__(DeltaTable(log), {})
        self._meanwhile, self._checked, self._is_done = meanwhile, checked, False
        if checked:
            self._commits = _InterruptedCommits(self.interrupt)

    def write_blocks(self, tables: Iterable[pa.Table], part: RunPart | None, *, is_change: bool = False) -> AddAction:
        written = super().write_blocks(tables, part, is_change=is_change)
        if not self._checked:
            self.interrupt()
        return written

    def interrupt(self) -> None:
        if not self._is_done:
            self._is_done = True
            self._meanwhile()


@pytest.mark.parametrize("checked", [False, True])
@pytest.mark.parametrize("other", ["upkeep", "optimize", "append"])
def test_files_that_others_replace_meanwhile_are_not_replaced_again(log: str, other: str, *, checked: bool) -> None:
    """deltalake itself would commit both, and every row would be there twice. An append is no obstacle."""
    for number in range(8):
        append_transactions(log, names(10), number)
    meanwhile: dict[str, Callable[[], object]] = {
        "upkeep": lambda: ShapeLogUpkeep(log, settings=_SMALL).run(_NOW),
        "optimize": DeltaTable(log).optimize.compact,
        "append": lambda: append_transactions(log, names(10), 100),
    }
    upkeep = ShapeLogUpkeep(log, settings=_SMALL)
    interrupted = _Interrupted(log, meanwhile[other], checked=checked)
    upkeep._runs = Runs(interrupted._table, interrupted, _SMALL)
    assert upkeep.run(_NOW).merges == (1 if other == "append" else 0)
    keys = row_keys(log)
    assert len(keys) == len(set(keys)) == (9 if other == "append" else 8) * 10 * 5


def test_log_of_a_removed_shape_is_deleted_after_the_delay(log: str) -> None:
    """Whether it is merged or not; others stay, also one with the same id of another source."""
    registry = RegistryTable(f"{log}_shapes", create=True)
    shape_ids = names(10)
    removed = shape_entry(shape_ids[3], removed_at=LogOffset(1900, 0))
    registry.append([shape_entry(shape_id).to_json() for shape_id in shape_ids], _NOW)
    for number in range(9):
        append_transactions(log, shape_ids, number)
        append_transactions(log, shape_ids[3:4], number, source="b/1/s")
        if number == 7:
            assert ShapeLogUpkeep(log, settings=_SMALL).run(_NOW).merges
    registry.append([removed.to_json()], _NOW)
    kept = ShapeLogUpkeep(log, f"{log}_shapes")
    upkeep = ShapeLogUpkeep(log, f"{log}_shapes", delete_after=timedelta(days=1))
    assert upkeep.run(_NOW + timedelta(hours=23)).deleted_shapes == 0
    assert len(read_shape_log(log, shape_ids[3], source=SOURCE, even_if_ended=True).rows) == 9 * 5
    runs = {file.run for file in files(log)}
    later = _NOW + timedelta(hours=25)
    assert kept.run(later).deleted_shapes == 0
    assert upkeep.run(later).deleted_shapes == 1
    assert {file.run for file in files(log)} == runs
    assert len(row_keys(log)) == 9 * 5 * 10
    with pytest.raises(ShapeEndedError, match="its log has no rows"):
        read_shape_log(log, shape_ids[3], source=SOURCE, even_if_ended=True)
    version = DeltaTable(log).version()
    again = ShapeLogUpkeep(log, f"{log}_shapes", delete_after=timedelta(days=1))
    assert again.run(later).deleted_shapes == 0
    assert DeltaTable(log).version() == version


def test_the_deletion_of_a_removed_shape_leaves_its_next_incarnation(log: str) -> None:
    """Rows of that may be appended before the registry table has its entry, and they are notified: no one has them."""
    registry = RegistryTable(f"{log}_shapes", create=True)
    registry.append([shape_entry(removed_at=LogOffset(1100, 0)).to_json()], _NOW)
    for number in range(3):
        append_transactions(log, ["users"], number)
    upkeep = ShapeLogUpkeep(log, f"{log}_shapes", delete_after=timedelta(days=1))
    assert upkeep.run(_NOW + timedelta(hours=25)).deleted_shapes == 1
    assert {tx for _, tx, _ in row_keys(log)} == {1200}


def test_the_deletion_of_a_removed_shape_leaves_the_mark_of_its_next_incarnation(log: str) -> None:
    """Without it, a reader that has no registry table would take the changes alone for all of the shape's rows."""
    registry = RegistryTable(f"{log}.registry", create=True)
    registry.append([shape_entry(removed_at=LogOffset(1100, 0)).to_json()], _NOW)
    append(log, [*snapshot_rows(taken(1, "9:9:", 9), {"1": {"id": "1"}}), commit(10)])
    LogFiles(DeltaTable(log), {}).mark_incarnations({(SOURCE, "users"): 2}, _NOW)
    append(log, [item((1200, 0), "insert", "2", {"id": "2"}), commit(1200)])
    ShapeLogUpkeep(log, f"{log}.registry", delete_after=timedelta(days=1)).run(_NOW + timedelta(hours=25))
    with pytest.raises(SnapshotMissingError, match="was begun again"):
        read_shape(log, "users")


def test_columns_of_a_newer_release_survive(log: str) -> None:
    """A merge keeps all columns of the table."""
    append(log, [commit(10)])
    DeltaTable(log).alter.add_columns([Field("note", PrimitiveType("string"))])
    rows = arrow([commit(12)])
    write_deltalake(log, rows.append_column("note", pa.array(["x"])), mode="append")
    assert ShapeLogUpkeep(log, settings=MergeSettings(merge_files=2)).run(_NOW).merges == 1
    notes = table_rows(DeltaTable(log), ["tx_offset", "note"]).sort_by("tx_offset")["note"].to_pylist()
    assert notes == [None, "x"]


def data_changes(log: str) -> list[tuple[str, bool]]:
    """Each action of the last commit that adds or removes a file, and whether it says that it changes data."""
    version = DeltaTable(log).version()
    lines = (Path(log) / "_delta_log" / f"{version:020}.json").read_text().splitlines()
    actions = [next(iter(json.loads(line).items())) for line in lines]
    return sorted({(name, action["dataChange"]) for name, action in actions if name in {"add", "remove"}})


def test_a_merge_keeps_every_row_and_says_that_it_changes_no_data(log: str) -> None:
    """Also what a snapshot replaces: Delta's protocol allows such a commit only to rearrange rows."""
    append(log, [*snapshot_rows(taken(1, "9:9:", 9), {"1": {"id": "1"}}), commit(8)])
    append(log, [item((10, 0), "insert", "2", {"id": "2"}), commit(10)])
    append(log, snapshot_rows(taken(2, "12:12:", 12), {"1": {"id": "1"}, "2": {"id": "2"}}))
    before = table_rows(DeltaTable(log), ["*"]).to_pylist()
    assert ShapeLogUpkeep(log, settings=MergeSettings(merge_files=2)).run(_NOW).merges == 1
    assert sorted(table_rows(DeltaTable(log), ["*"]).to_pylist(), key=repr) == sorted(before, key=repr)
    assert data_changes(log) == [("add", False), ("remove", False)]


def test_log_of_a_removed_shape_is_deleted_with_its_snapshot(log: str) -> None:
    """And so are earlier attempts."""
    registry = RegistryTable(f"{log}_shapes", create=True)
    append(log, [*snapshot_rows(taken(1, "9:9:", 9), {"1": {"id": "1"}}), commit(10)])
    append(log, [*snapshot_rows(taken(2, "9:9:", 9), {"1": {"id": "1"}}), commit(10, shape_id="a")])
    registry.append([shape_entry(removed_at=LogOffset(1900, 0)).to_json()], _NOW)
    upkeep = ShapeLogUpkeep(log, f"{log}_shapes", delete_after=timedelta(days=1))
    assert upkeep.run(_NOW + timedelta(days=2)).deleted_shapes == 1
    assert [key[0] for key in row_keys(log)] == ["a"]
    assert data_changes(log) == [("add", True), ("remove", True)]


def test_registry_table_is_kept_small_beside_the_log(log: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shapes that have come and gone leave their ids and their ends there, once their logs are deleted."""
    monkeypatch.setattr(registry_table, "LEAST_FOLDED", 100)
    shapes = f"{log}_shapes"
    shape_ids = [f"removed{number}" for number in range(300)]
    register(log, shape_entry("users"), *map(shape_entry, shape_ids))
    register(log, *(shape_entry(shape_id, removed_at=LogOffset(9, 0)) for shape_id in shape_ids))
    size = sum(map(len, table_rows(DeltaTable(shapes), ["entry"])["entry"].to_pylist()))
    kept = ShapeLogUpkeep(log, shapes)
    kept.run(_NOW)
    assert len(table_rows(DeltaTable(shapes), ["id"])) == 301
    removed = RegistryTable(shapes).entries().shape(SOURCE, "removed7")
    assert removed is not None
    assert (removed.definition.table, removed.removed_at) == (("public", "users"), LogOffset(9, 0))
    upkeep = ShapeLogUpkeep(log, shapes, delete_after=timedelta(0))
    for _ in range(2):
        upkeep.run(datetime(2100, 1, 1, tzinfo=timezone.utc))
    found = RegistryTable(shapes).entries()
    assert found.shape(SOURCE, "removed7") == removed.condensed()
    live = found.shape(SOURCE, "users")
    assert live is not None
    assert live.definition.table == ("public", "users")
    assert sum(map(len, table_rows(DeltaTable(shapes), ["entry"])["entry"].to_pylist())) < size / 4


def test_the_deletion_of_many_removed_shapes_costs_what_they_have(log: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand that have no rows are not looked for in each block of the others' rows."""
    shape_ids = [f"removed{number}" for number in range(1_000)]
    register(log, *(shape_entry(shape_id, removed_at=LogOffset(9, 0)) for shape_id in shape_ids))
    append(log, [row for shape_id in ("r", "removed7", "s") for row in _inserted(shape_id)])
    equal, compared = pc.equal, list[object]()

    def counted(column: pa.ChunkedArray, value: object) -> pa.ChunkedArray:
        compared.append(value)
        return equal(column, value)

    monkeypatch.setattr(pc, "equal", counted)
    upkeep = ShapeLogUpkeep(log, f"{log}_shapes", delete_after=timedelta(0))
    assert upkeep.run(datetime(2100, 1, 1, tzinfo=timezone.utc)).deleted_shapes == 1_000
    assert set(compared) == {"removed7", SOURCE}
    assert set(table_rows(DeltaTable(log), ["shape_id"])["shape_id"].to_pylist()) == {"r", "s"}


def _inserted(shape_id: str) -> list[Row]:
    return [item((5, 0), "insert", "k", {"id": "k"}, shape_id=shape_id), commit(5, shape_id=shape_id)]
