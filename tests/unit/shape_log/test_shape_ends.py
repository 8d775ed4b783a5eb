"""Where the logs of shapes end, for readers that poll: what a query over the table finds, and what it costs."""

import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Final

import pytest
from deltalake import DeltaTable

from flushtracker.delta.new_commits import NewCommits
from flushtracker.delta.storage import query_batches, query_rows, table_rows
from flushtracker.shape_log.merge_plan import MergeSettings
from flushtracker.shape_log.position import Position
from flushtracker.shape_log.shape_snapshot import ShapeSnapshot
from flushtracker.shape_log.table.files import LogFiles
from flushtracker.shape_log.table.reader import ShapeLogReader
from flushtracker.shape_log.table.retention import RetentionPolicy
from flushtracker.shape_log.table.shape_ends import ShapeEnds
from flushtracker.shape_log.table.upkeep import ShapeLogUpkeep
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.mvcc_snapshot import MvccSnapshot
from tests.support.sample_registry import register, shape_entry
from tests.support.seeds import seeds
from tests.support.shape_log_rows import SOURCE, RandomLog, Row, append, arrow, commit, item, snapshot_rows

_EPOCH: Final = datetime(2000, 1, 1, tzinfo=timezone.utc)
_SETTINGS: Final = MergeSettings(merge_files=4, files_per_run=3, least_file_bytes=1)
_OTHER: Final = "8402/1/other"

Ends = dict[str, tuple[int | None, int | None]]


def naive_ends(log: str) -> dict[str, Ends]:
    """For each shape, by a look at every row."""
    rows = table_rows(DeltaTable(log), ["source", "shape_id", "tx_offset", "operation", "chunk"]).to_pylist()
    found = defaultdict[str, Ends](dict)
    for row in rows:
        ends = found[row["shape_id"]]
        last, attempt = ends.get(row["source"], (None, None))
        if row["operation"] == "commit":
            last = max(last or 0, row["tx_offset"])
        if row["operation"] == "snapshot":
            attempt = max(attempt or 0, row["chunk"])
        ends[row["source"]] = last, attempt
    return found


def counted(monkeypatch: pytest.MonkeyPatch, name: str, function: Callable[..., Any]) -> list[tuple[Any, ...]]:
    """The arguments of each call of a function, which does what it did."""
    calls = list[tuple[Any, ...]]()

    def call(*arguments: Any) -> Any:
        calls.append(arguments)
        return function(*arguments)

    monkeypatch.setattr(name, call)
    return calls


class _Log:
    """A log of several shapes and two sources to which things happen at random, as in production and by others."""

    def __init__(self, log: str, seed: int) -> None:
        self.log, self.rng = log, random.Random(seed)  # noqa: S311  reproducible
        self.made = {SOURCE: RandomLog(seed, shape_ids=["a", "it's", "z"]), _OTHER: RandomLog(seed + 99)}
        register(log, *(shape_entry(each) for each in self.made[SOURCE].shape_ids))
        self.waiting: list[Row] = []
        self.attempt, self.folds, self.removed = 1000, 0, False

    def step(self) -> None:
        happenings: list[tuple[float, Callable[[], None]]] = [
            (0.55, self.append_part),
            (0.2, self.merge),
            (0.12, self.fold),
            (0.03, self.take_snapshot),
            (0.03, self.compact_otherwise),
            (0.03, self.append_without_statistics),
            (0.02, self.remove_shape),
            (0.02, self.expire),
        ]
        (happens,) = self.rng.choices([each for _, each in happenings], [share for share, _ in happenings])
        happens()

    def append_part(self) -> None:
        """The rows of a transaction, or of several."""
        source = self.rng.choice([SOURCE, SOURCE, _OTHER])
        if not self.waiting:
            rows = self.made[source].transaction()
            time = _EPOCH + timedelta(seconds=self.made[source].tx)
            self.waiting = [
                row | {"source": source} | ({"written_at": time} if row["operation"] == "commit" else {})
                for row in rows
            ]
        size = self.rng.randint(1, len(self.waiting))
        append(self.log, self.waiting[:size])
        del self.waiting[:size]

    def append_without_statistics(self) -> None:
        DeltaTable(self.log).alter.set_table_properties({"delta.dataSkippingStatsColumns": "operation"})
        self.append_part()
        DeltaTable(self.log).alter.set_table_properties(
            {"delta.dataSkippingStatsColumns": "source,shape_id,tx_offset,op_offset"}
        )

    def merge(self) -> None:
        ShapeLogUpkeep(self.log, settings=_SETTINGS).run(_EPOCH)

    def fold(self) -> None:
        retain = RetentionPolicy(timedelta(seconds=self.rng.choice([0, 100])), least_dropped=1)
        upkeep = ShapeLogUpkeep(self.log, f"{self.log}_shapes", settings=_SETTINGS, retain=retain)
        self.folds += upkeep.run(_EPOCH + timedelta(seconds=self.made[SOURCE].tx)).folded_shapes

    def take_snapshot(self) -> None:
        self.attempt += 1000  # Folds count on from the last one.
        snapshot = ShapeSnapshot(self.attempt, MvccSnapshot(5, 5), 4, 5)
        append(self.log, snapshot_rows(snapshot, {"k": {"id": "k"}}, shape_id=self.rng.choice(["a", "it's"])))

    def compact_otherwise(self) -> None:
        DeltaTable(self.log).optimize.compact()

    def remove_shape(self) -> None:
        if self.removed:
            return
        self.removed = True
        register(self.log, shape_entry("z", removed_at=LogOffset(9, 0)))
        ShapeLogUpkeep(self.log, f"{self.log}_shapes", settings=_SETTINGS, delete_after=timedelta(0)).run(
            datetime(2100, 1, 1, tzinfo=timezone.utc)
        )

    def expire(self) -> None:
        """Delete the files that were replaced, of which some may never have been read."""
        DeltaTable(self.log).vacuum(0, dry_run=False, enforce_retention_duration=False)


@pytest.mark.parametrize("seed", seeds(1, further=3))
def test_ends_that_are_followed_are_those_of_a_naive_look(log: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """For any shape, of one source or all, over one version or many, whatever happens to the table's files."""
    looks = counted(monkeypatch, "flushtracker.shape_log.table.shape_ends.ShapeEnds._look", ShapeEnds._look)
    happening, table = _Log(log, seed), DeltaTable(log)
    ends, asked = ShapeEnds(table, NewCommits(table.table_uri)), 0
    for _ in range(100):
        happening.step()
        if happening.rng.random() < 0.4:
            continue
        table.update_incremental()
        naive = naive_ends(log)
        if happening.rng.random() < 0.5:
            ends.look_up(["a", "it's", "users", "z"], happening.rng.choice([SOURCE, None]))
        for shape_id, source in [("a", SOURCE), ("it's", None), ("z", SOURCE), ("users", _OTHER), ("users", None)]:
            if happening.rng.random() < 0.7:
                expected = {key: end for key, end in naive[shape_id].items() if source in {None, key}}
                read_of = source or happening.rng.choice([SOURCE, _OTHER])
                read_tx = expected.get(read_of, (None, None))[0]
                read = None if read_tx is None or happening.rng.random() < 0.5 else Position(read_of, read_tx, 0)
                found = ends.of(shape_id, source, read)
                got = {key: (end.last_commit, end.snapshot and end.snapshot.attempt) for key, end in found.items()}
                assert got == expected
                asked += 1
    assert happening.folds > 0
    assert len(looks) < asked / 2, "the log is followed"


def _without_data(log: str, kept: set[str]) -> int:
    """Delete the data files except those; returns how many of the current version are gone."""
    gone = 0
    for file in LogFiles(DeltaTable(log), {}).current():
        if file.path not in kept:
            (Path(log) / file.path).unlink()
            gone += 1
    return gone


def history(log: str, transactions: int) -> None:
    """A shape that begins with a fold, and was merged; beside it another one."""
    register(log, shape_entry())
    append(log, snapshot_rows(ShapeSnapshot.fold(1, 9, 9), {"k": {"id": "k"}}))
    for tx in range(10, 10 + transactions):
        append(log, [item((tx, 0), "update", "k", {"n": str(tx)}), commit(tx), commit(tx, shape_id="other")])
    ShapeLogUpkeep(log, settings=replace(_SETTINGS, merge_files=100)).run(_EPOCH)


def test_a_poll_opens_no_file_of_the_history(log: str) -> None:
    """Nor one that a merge has made of it. So it costs what is new, however long the history is."""
    history(log, 30)
    reader = ShapeLogReader(log)
    position = reader.read_log("users").position
    append(log, [commit(50, shape_id="other")])
    ShapeLogUpkeep(log, settings=_SETTINGS).run(_EPOCH)
    append(log, [commit(51, shape_id="other"), item((51, 0), "insert", "m", {"id": "m"}), commit(51)])
    new = {max(LogFiles(DeltaTable(log), {}).current(), key=lambda file: file.modified_ms).path}
    replaced = {path.name for path in Path(log).glob("*.parquet")}
    assert _without_data(log, new | (replaced - {each.path for each in LogFiles(DeltaTable(log), {}).current()})) > 0
    assert reader.has_changed()
    later = reader.read_log("users", position)
    assert (later.rows["tx_offset"].to_pylist(), later.position) == ([51, 51], Position(SOURCE, 51, 1))


def test_a_new_process_opens_only_the_files_that_tell_where_its_shape_begins_and_goes_on(log: str) -> None:
    """Those with the end of the snapshot, the last transaction that was read, and later ones."""
    history(log, 30)
    position = ShapeLogReader(log).read_log("users").position
    append(log, [item((51, 0), "insert", "m", {"id": "m"}), commit(51)])
    needed = {
        file.path
        for file in LogFiles(DeltaTable(log), {}).current()
        if file.first_tx == 0 or (file.first_tx or 0) >= position.tx_offset
    }
    assert _without_data(log, needed) == 29
    later = ShapeLogReader(log).read_log("users", position)
    assert later.rows["tx_offset"].to_pylist() == [51, 51]


def test_a_poll_that_finds_nothing_makes_no_query(log: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """For any number of shapes: what is new is read once for all of them."""
    shape_ids = [f"shape-{number}" for number in range(50)]
    append(log, [commit(10, shape_id=shape_id) for shape_id in shape_ids])
    reader = ShapeLogReader(log)
    positions = {shape_id: reader.read_log(shape_id).position for shape_id in shape_ids}
    for shape_id, position in positions.items():
        assert reader.read_log(shape_id, position).position == position
    of_ends = counted(monkeypatch, "flushtracker.shape_log.table.shape_ends.query_rows", query_rows)
    of_snapshots = counted(monkeypatch, "flushtracker.shape_log.table.shape_finder.query_rows", query_rows)
    of_rows = counted(monkeypatch, "flushtracker.shape_log.table.reader.query_batches", query_batches)
    append(log, [commit(12, shape_id="shape-7")])
    moved = {each for each in shape_ids if reader.read_log(each, positions[each]).position != positions[each]}
    assert moved == {"shape-7"}
    assert (of_ends, of_snapshots, len(of_rows)) == ([], [], 1)


def test_files_without_statistics_are_read(log: str) -> None:
    """No transaction is missed because its file does not say what it has."""
    append(log, [commit(10)])
    reader = ShapeLogReader(log)
    first = reader.read_log("users").position
    files = LogFiles(DeltaTable(log), {})
    added = files.write(arrow([item((12, 0), "insert", "1", {"id": "1"}), commit(12)]), None, is_change=True)
    files.replace([], [replace(added, stats="{}")], is_deletion=False)
    assert reader.read_log("users", first).rows["tx_offset"].to_pylist() == [12, 12]
    assert ShapeLogReader(log).read_log("users", first).rows["tx_offset"].to_pylist() == [12, 12]


def test_what_was_merged_and_deleted_before_a_poll_is_found(log: str) -> None:
    """A reader that was away finds in the table's log a file that is no more."""
    history(log, 8)
    reader = ShapeLogReader(log)
    position = reader.read_log("users").position
    append(log, [item((51, 0), "insert", "m", {"id": "m"}), commit(51)])
    assert ShapeLogUpkeep(log, settings=_SETTINGS).run(_EPOCH).merges > 0
    DeltaTable(log).vacuum(0, dry_run=False, enforce_retention_duration=False)
    assert reader.read_log("users", position).rows["tx_offset"].to_pylist() == [51, 51]
