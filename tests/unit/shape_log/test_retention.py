"""Folding the logs of shapes up to a horizon: what readers find, what stays, and what it costs."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from itertools import count
from typing import Any, Final

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from flushtracker.delta.commits import Commits
from flushtracker.delta.data_file import WrittenFile
from flushtracker.delta.storage import table_rows
from flushtracker.errors import ConfigError, PositionError, SinkError
from flushtracker.shape_log.fold import fold
from flushtracker.shape_log.merge_plan import MergeSettings
from flushtracker.shape_log.position import Position
from flushtracker.shape_log.shape_snapshot import ShapeSnapshot
from flushtracker.shape_log.table import external_sort, retention
from flushtracker.shape_log.table.files import LogFiles
from flushtracker.shape_log.table.folded_shape import folded_rows
from flushtracker.shape_log.table.reader import ShapeLogReader, ShapeRead, read_shape, read_shape_log
from flushtracker.shape_log.table.retention import Retention, RetentionPolicy
from flushtracker.shape_log.table.snapshots import last_snapshots, snapshot_incarnations
from flushtracker.shape_log.table.upkeep import ShapeLogUpkeep
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.mvcc_snapshot import MvccSnapshot
from tests.support.folded_log import EPOCH, NO_MERGES, changes, dated, folded, upkeep_of
from tests.support.sample_registry import register, shape_entry
from tests.support.seeds import in_turn
from tests.support.shape_log_rows import RandomLog, Row, append, arrow, snapshot_rows
from tests.support.snapshot_log import append_snapshot

_SETTINGS: Final = MergeSettings(merge_files=4, files_per_run=4, least_file_bytes=1)


def by_row(read: ShapeRead) -> list[str]:
    return sorted(repr(sorted(row.items())) for row in read.rows.to_pylist())


def as_rows(state: dict[str, dict[str, str | None]]) -> list[str]:
    """As the reader shows them: all columns that some row has."""
    names = {name for row in state.values() for name in row}
    return sorted(repr(sorted((name, row.get(name)) for name in names)) for row in state.values())


def rows_of(log_rows: list[Row]) -> list[str]:
    return as_rows(fold((str(r["operation"]), r["key"], r["value"]) for r in log_rows))  # type: ignore[misc]


class _Readers:
    """Readers of one shape at any offset, and followers that began at some."""

    def __init__(self, log: str, made: RandomLog, shape_id: str) -> None:
        self.reader, self.made, self.shape_id = ShapeLogReader(log), made, shape_id
        self.followers = list[tuple[Position, list[Row]]]()
        self.told = self.refused = 0

    def check(self, horizon: LogOffset) -> None:
        states, draw = self.made.at[self.shape_id], self.made._random
        if not states:
            return
        whole, last = self.reader.read_log(self.shape_id), as_rows(states[-1][1])
        assert by_row(self.reader.read_rows(self.shape_id)) == rows_of(whole.rows.to_pylist()) == last
        for offset, state in draw.sample(states, min(3, len(states))):
            self.check_state(LogOffset.last_of(offset.tx_offset), horizon, state)
        for position, rows in self.followers:
            if position.tx_offset < horizon.tx_offset:
                self.told += 1
                with pytest.raises(PositionError, match="read the shape again from its beginning"):
                    self.reader.read_log(self.shape_id, position)
            else:
                later = self.reader.read_log(self.shape_id, position)
                assert rows_of([*rows, *later.rows.to_pylist()]) == last
        if draw.random() < 0.3:
            self.followers.append((whole.position, whole.rows.to_pylist()))

    def check_state(self, at: LogOffset, horizon: LogOffset, state: dict[str, dict[str, str | None]]) -> None:
        if at < horizon:
            self.refused += 1
            with pytest.raises(ConfigError, match="is folded up to its horizon"):
                self.reader.read_rows(self.shape_id, at)
        else:
            assert by_row(self.reader.read_rows(self.shape_id, at)) == as_rows(state)


@pytest.mark.parametrize("case", in_turn([(2, 3), (1, 0), (4, 3), (3, 0)]))
def test_readers_and_followers_have_the_rows_whatever_is_folded(log: str, case: tuple[int, int]) -> None:
    """For several shapes with truncates, partial updates and moved keys: at every offset, and for any follower."""
    seed, partitions = case
    made = RandomLog(seed, shape_ids=["a", "it's", "z"], partitions=partitions)
    register(log, *(shape_entry(shape_id) for shape_id in made.shape_ids))
    readers, draw, folds = [_Readers(log, made, shape_id) for shape_id in made.shape_ids], made._random, 0
    for _ in range(20):
        for _ in range(draw.randint(1, 4)):
            append(log, dated(made.transaction()))
        if draw.random() < 0.5:
            upkeep = upkeep_of(log, draw.choice([0, 100, 300]), _SETTINGS)
            folds += upkeep.run(EPOCH + timedelta(seconds=made.tx)).folded_shapes
        horizons = {key[1]: LogOffset.last_of(each.lsn) for key, each in last_snapshots(DeltaTable(log)).items()}
        for each in readers:
            each.check(horizons.get(each.shape_id, LogOffset.before_all()))
    assert min(folds, sum(each.told for each in readers), sum(each.refused for each in readers)) > 1


def test_a_shape_of_few_rows_and_many_changes_stays_small(log: str) -> None:
    """200 rows and 55,000 changes are 110,000 rows of log; folded, it is the rows, their end, and the history."""
    register(log, shape_entry())
    append(log, changes(1, 55_000, 200))
    before = by_row(read_shape(log, "users"))
    assert folded(log, 1000, 55_000) == 1
    assert len(table_rows(DeltaTable(log), ["tx_offset"])) == (200 + 1) + 1 + 2 * 1000
    assert by_row(read_shape(log, "users")) == before
    assert folded(log, 1000, 55_000) == 0


def test_a_log_of_any_number_of_rows_is_folded(log: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Into several files, with more rows than a commit folds of several shapes; its rows are never all in memory."""
    monkeypatch.setattr(retention, "_MOST_ROWS", 100)
    monkeypatch.setattr(retention, "_FILE_BYTES", 1)
    monkeypatch.setattr(external_sort, "MOST_BYTES", 1 << 10)
    monkeypatch.setattr(external_sort, "ROWS", 7)
    register(log, shape_entry(), shape_entry("b"))
    append(log, changes(1, 500, 20))
    append(log, changes(1, 500, 20, "b"))
    before = [read_shape(log, shape_id).rows for shape_id in ("users", "b")]
    upkeep = upkeep_of(log, 0)
    assert [upkeep.run(EPOCH + timedelta(seconds=500)).folded_shapes for _ in range(3)] == [1, 1, 0]
    assert [read_shape(log, shape_id).rows for shape_id in ("users", "b")] == before
    assert len(table_rows(DeltaTable(log), ["tx_offset"])) == 2 * (20 + 1 + 1)
    assert len(LogFiles(DeltaTable(log), {}).current()) > 6


def test_the_log_stays_flat_over_many_horizons(log: str) -> None:
    """Rows and files do not grow with the time that a log is written, and each row is rewritten a few times at most."""
    register(log, shape_entry())
    append(log, changes(1, 200, 200))
    sizes, dropped = list[int](), 0
    upkeep = upkeep_of(log, 500, _SETTINGS, least_dropped=100)
    for number in range(20):
        append(log, changes(201 + 250 * number, 250, 200))
        done = upkeep.run(EPOCH + timedelta(seconds=450 + 250 * number))
        dropped += done.dropped_rows
        sizes.append(len(table_rows(DeltaTable(log), ["tx_offset"])))
    assert max(sizes[10:]) <= max(sizes[:10]) < 2500
    assert len(LogFiles(DeltaTable(log), {}).current()) < 20
    assert dropped > 7_000


class _InterruptedCommits(Commits):
    """Calls ``meanwhile`` once before a commit."""

    def __init__(self, meanwhile: Callable[[], object]) -> None:
        super().__init__()
        self._meanwhile: Callable[[], object] | None = meanwhile

    def commit(self, *arguments: Any, **options: Any) -> None:
        meanwhile, self._meanwhile = self._meanwhile, None
        if meanwhile is not None:
            meanwhile()
        super().commit(*arguments, **options)


def test_a_snapshot_that_is_appended_during_a_fold_refuses_the_fold(log: str) -> None:
    """It may lack what the fold would delete; the next fold is made with it."""
    register(log, shape_entry())
    append(log, changes(1, 300, 10))
    lacks = ShapeSnapshot(9, MvccSnapshot(150, 200, (150,)), 200, 200)
    upkeep = upkeep_of(log, 0)
    upkeep._files._commits = _InterruptedCommits(
        lambda: append_snapshot(log, lacks, read_shape_rows(log, LogOffset.last_of(149)))
    )
    assert upkeep.run(EPOCH + timedelta(seconds=300)).folded_shapes == 0
    (current,) = last_snapshots(DeltaTable(log)).values()
    assert current == lacks
    upkeep._retention = Retention(upkeep._table, upkeep._files, RetentionPolicy(timedelta(0), least_dropped=1))
    assert upkeep.run(EPOCH + timedelta(seconds=300)).folded_shapes == 1


def test_snapshots_that_are_taken_all_the_time_keep_no_fold(log: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each refuses the fold that it meets, of however many shapes that is, so fewer are folded by the next commit."""
    shape_ids = [f"s{number}" for number in range(8)]
    register(log, *map(shape_entry, shape_ids))
    append(log, [row for shape_id in shape_ids for row in changes(1, 30, 3, shape_id)])
    attempts = count(1)

    def interrupted(*arguments: Any) -> Iterator[pa.Table]:
        if (attempt := next(attempts)) % 3 == 0:
            append_snapshot(log, ShapeSnapshot(attempt, MvccSnapshot(1, 1), 1, 2), {})
        return folded_rows(*arguments)

    monkeypatch.setattr(retention, "folded_rows", interrupted)
    upkeep = upkeep_of(log, 0)
    done = [upkeep.run(EPOCH + timedelta(seconds=30)).folded_shapes for _ in range(12)]
    assert sum(done) == len(shape_ids)
    assert {key[1] for key in last_snapshots(DeltaTable(log))} == {*shape_ids, "users"}


def test_a_fold_during_the_commit_of_a_snapshot_is_noticed(log: str) -> None:
    """The snapshot lacks a transaction that was in progress, and that is folded between its check and its commit."""
    register(log, shape_entry())
    append(log, changes(1, 300, 10))
    snapshot = ShapeSnapshot(9, MvccSnapshot(250, 301, (250,)), 310, 301)
    files = LogFiles(DeltaTable(log), {})
    files._commits = _InterruptedCommits(lambda: folded(log, 0, 300))
    added = files.write(arrow(snapshot_rows(snapshot, {})), None, is_change=True)
    with pytest.raises(SinkError, match="take the snapshot again"):
        files.append_snapshot([WrittenFile(added)], {("7301/1/shapes", "users"): snapshot})
    assert added.path not in {file.path for file in files.current()}
    assert len(read_shape(log, "users").rows) == 10


def test_a_fold_of_a_shape_that_began_again_keeps_its_incarnation(log: str) -> None:
    """A mark is not folded. A follower from before is told, and a snapshot from before does not follow the fold."""
    register(log, shape_entry())
    append(log, changes(1, 100, 10))
    position = read_shape_log(log, "users").position
    LogFiles(DeltaTable(log), {}).mark_incarnations({("7301/1/shapes", "users"): 2}, EPOCH)
    append(log, changes(201, 100, 10))
    with pytest.raises(PositionError, match=r"was begun again \(incarnation 2\); the log no longer has what it had"):
        read_shape_log(log, "users", position)
    assert folded(log, 0, 400) == 0
    begun = ShapeSnapshot(9, MvccSnapshot(201, 201), 200, 201, incarnation=2, starts_after=150)
    assert append_snapshot(log, begun, {str(key): {"id": str(key), "n": "0"} for key in range(10)})
    rows = read_shape_rows(log, LogOffset.last_of(300))
    assert folded(log, 0, 400) == 1
    (current,) = last_snapshots(DeltaTable(log)).values()
    assert (current.is_fold, current.incarnation, current.starts_after) == (True, 2, 150)
    assert read_shape_rows(log, LogOffset.last_of(300)) == rows
    with pytest.raises(PositionError, match=r"was begun again \(incarnation 2\); the log no longer has what it had"):
        read_shape_log(log, "users", position)
    assert not append_snapshot(log, ShapeSnapshot(99, MvccSnapshot(900, 900), 900, 900), {})
    # Of no greater attempt than the last, its rows would not count.
    third = ShapeSnapshot(current.attempt, MvccSnapshot(900, 900), 900, 900, incarnation=3, starts_after=800)
    assert not append_snapshot(log, third, {})
    assert append_snapshot(log, replace(third, attempt=99), {})


def read_shape_rows(log: str, at: LogOffset) -> dict[str, dict[str, str | None]]:
    return {str(row["id"]): row for row in read_shape(log, "users", at).rows.to_pylist()}


def test_a_log_that_changes_unknown_rows_is_kept_and_said_once(log: str, caplog: pytest.LogCaptureFixture) -> None:
    """The shape has no snapshot, and its table had rows. Other shapes are folded."""
    register(log, shape_entry(), shape_entry("b"))
    append(log, changes(2, 100, 10))
    append(log, changes(1, 100, 10, "b"))
    upkeep = upkeep_of(log, 0)
    for hours in (0, 2):
        upkeep.run(EPOCH + timedelta(hours=1 + hours))
    assert [key[1] for key in last_snapshots(DeltaTable(log))] == ["b"]
    assert len([each for each in caplog.records if "is not folded" in each.message]) == 1
    assert len(read_shape_log(log, "users").rows) == 200


def test_a_malformed_snapshot_keeps_only_its_own_shape_from_upkeep(log: str, caplog: pytest.LogCaptureFixture) -> None:
    """The others are folded, and logs of removed ones deleted; another snapshot of the shape puts that right."""
    register(log, shape_entry(), shape_entry("b"), shape_entry("gone", removed_at=LogOffset.last_of(1000)))
    for shape_id in ("users", "b", "gone"):
        append(log, changes(1, 100, 10, shape_id))
    append(log, [{**snapshot_rows(ShapeSnapshot(7, MvccSnapshot(9, 9, ()), 9, 9), {})[-1], "value": "garbage"}])
    upkeep = ShapeLogUpkeep(
        *(log, f"{log}_shapes"),
        settings=NO_MERGES,
        retain=RetentionPolicy(timedelta(0), least_dropped=1),
        delete_after=timedelta(0),
    )
    report = upkeep.run(EPOCH + timedelta(days=10_000))
    assert (report.deleted_shapes, report.folded_shapes) == (1, 1)
    assert [key[1] for key in last_snapshots(DeltaTable(log))] == ["b"]
    assert "snapshot malformed, take another one source=7301/1/shapes shape_id=users" in caplog.text
    assert snapshot_incarnations(log, {}) == {("7301/1/shapes", "b"): 1}
    rows: dict[str, dict[str, str | None]] = {str(key): {"id": str(key), "n": "0"} for key in range(10)}
    assert append_snapshot(log, ShapeSnapshot(8, MvccSnapshot(96, 96, ()), 95, 96), rows)
    assert len(read_shape(log, "users").rows) == 10


def test_single_shapes_may_keep_their_history_for_another_time(log: str) -> None:
    """Others keep it as all do, and for ever if there is no time for all."""
    register(log, *(shape_entry(each) for each in ("a", "b", "c")))
    for shape_id in ("a", "b", "c"):
        append(log, changes(1, 100, 10, shape_id))
    only = RetentionPolicy(None, {"a": timedelta(seconds=50)}, least_dropped=1)
    upkeep = ShapeLogUpkeep(log, f"{log}_shapes", settings=NO_MERGES, retain=only)
    assert upkeep.run(EPOCH + timedelta(seconds=100)).folded_shapes == 1
    both = {"b": timedelta(days=1)}
    assert folded(log, 40, 100, shapes=both) == 2
    found = {key[1]: each.lsn for key, each in last_snapshots(DeltaTable(log)).items()}
    assert found == {"a": 60, "c": 60}


def test_a_fold_between_two_polls_is_noticed_by_who_has_not_reached_its_horizon(log: str) -> None:
    """Otherwise it would silently lack what is folded; also if a snapshot is taken again before its next poll."""
    register(log, shape_entry())
    append(log, changes(1, 89, 10))
    behind = read_shape_log(log, "users").position
    append(log, changes(90, 1, 10))
    at_horizon = read_shape_log(log, "users").position
    append(log, changes(91, 10, 10))
    assert folded(log, 10, 100) == 1
    assert len(read_shape_log(log, "users", at_horizon).rows) == 20
    with pytest.raises(PositionError, match=rf"^position {behind} is before 0/5A\+inf, the horizon of shape users"):
        read_shape_log(log, "users", behind)
    (fold,) = last_snapshots(DeltaTable(log)).values()
    taken_again = ShapeSnapshot(fold.attempt + 1, MvccSnapshot(96, 96, ()), 95, 96)
    assert append_snapshot(log, taken_again, read_shape_rows(log, LogOffset.last_of(95)))
    for position in (behind, at_horizon):
        with pytest.raises(PositionError, match="read the shape again from its beginning"):
            read_shape_log(log, "users", position)
