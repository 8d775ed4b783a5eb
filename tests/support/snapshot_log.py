"""A shape log with snapshots, played at random beside a naive copy of the table."""

import random
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any, Final

import pytest
from deltalake import DeltaTable

from flushtracker.delta.data_file import WrittenFile
from flushtracker.delta.storage import table_rows
from flushtracker.errors import ConfigError, SinkError, SnapshotMissingError
from flushtracker.shape_log.merge_plan import MergeSettings
from flushtracker.shape_log.shape_snapshot import ShapeSnapshot, aligned
from flushtracker.shape_log.table.files import LogFiles
from flushtracker.shape_log.table.log_table import create_shape_log
from flushtracker.shape_log.table.reader import ShapeLogReader
from flushtracker.shape_log.table.retention import Retention, RetentionPolicy
from flushtracker.shape_log.table.snapshots import last_snapshots
from flushtracker.shape_log.table.upkeep import ShapeLogUpkeep
from flushtracker.wal.log_offset import LogOffset
from tests.support.folded_log import EPOCH
from tests.support.log_follower import Follower, fold_strictly
from tests.support.sample_registry import register, wanted_entry
from tests.support.shape_log_rows import SOURCE, Row, append, arrow, snapshot_rows
from tests.support.snapshot_world import XIDS, SnapshotWorld, Table, apply, table_after

_NOW: Final = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
_SETTINGS: Final = MergeSettings(merge_files=2, files_per_run=2, least_file_bytes=1)
_FIRST_XIDS: Final = (100, 3 * XIDS - 12, XIDS + XIDS // 2 - 12)


def world_with_snapshot(seed: int) -> tuple[SnapshotWorld, ShapeSnapshot, Table]:
    """A world some time after a snapshot of its shape."""
    world = SnapshotWorld(seed, _FIRST_XIDS[seed % 3])
    for _ in range(world.rng.randint(0, 30)):
        world.step()
    world.start()
    for _ in range(world.rng.randint(0, 15)):
        world.step()
    while not world.is_start_visible or world.is_truncated:
        world.step()
    snapshot, rows = world.snapshot(1)
    for _ in range(25):
        world.step()
    return world, snapshot, rows


def judge(world: SnapshotWorld, rows: Table, is_left_out: Callable[[int, int], bool]) -> int:
    """Fold the history of the shape after its snapshot; returns the number of transactions left out.

    From the snapshot's last visible commit on, the rows are the table's after each transaction. Raises
    ``AssertionError`` if they are not, or a change cannot follow.
    """
    found, left_out = {key: dict(row) for key, row in rows.items()}, 0
    last_seen = max((each.lsn or 0 for each in world.seen[1]), default=0)
    for each in world.routed:
        assert each.lsn is not None
        if is_left_out(each.lsn, each.xid % XIDS):
            left_out += 1
        else:
            for change in each.changes:
                apply(found, *change)
        if each.lsn >= last_seen:
            assert found == table_after(other for other in world.committed if (other.lsn or 0) <= each.lsn)
    return left_out


class Play:
    """A writer, snapshots, merges and readers on one log, at random, and with ``folds`` also those, with crashes."""

    def __init__(self, log: str, seed: int, *, folds: bool = False) -> None:
        self.log, self.has_folds = log, folds
        self.world = SnapshotWorld(seed, _FIRST_XIDS[seed % 3])
        self.rng = random.Random(seed)  # noqa: S311  reproducible
        create_shape_log(log)
        for _ in range(12):
            self.world.step()
        self.world.start()
        register(log, replace(wanted_entry(), starts_after=LogOffset(self.world.starts_after or 0, 0)))
        self.reader = ShapeLogReader(log)
        self.followers = {Follower(log): 1.0, Follower(log, short_lived=True): 0.5, Follower(log): 0.1}
        """Each with the share of the steps after which it polls."""
        self.upkeep = ShapeLogUpkeep(log, settings=_SETTINGS)
        self.appended: list[Row] = []
        self.snapshots: list[ShapeSnapshot] = []
        self.taken: tuple[ShapeSnapshot, Table] | None = None
        self.merges = self.folds = self.refused = 0
        self.taken_as: dict[int, int] = {}
        """The attempt in the world with which each attempt in the log begins."""

    def step(self) -> None:
        for _ in range(self.rng.randint(0, 6)):
            self.world.step()
        if self.rng.random() < 0.6:
            self.write()
        if self.rng.random() < 0.4:
            self.take_or_append()
        if self.rng.random() < 0.3:
            # A process that knows nothing yet, or the one that has merged before.
            upkeep = ShapeLogUpkeep(self.log, settings=_SETTINGS) if self.rng.random() < 0.3 else self.upkeep
            self.merges += upkeep.run(_NOW).merges
        if self.has_folds and self.rng.random() < 0.4:
            self.fold()

    def fold(self) -> None:
        """Fold what is older than a random time; the process may be killed before or after its commit."""
        retain = RetentionPolicy(timedelta(seconds=self.rng.choice([1, 40, 200])), least_dropped=1)
        upkeep = ShapeLogUpkeep(self.log, f"{self.log}_shapes", settings=_SETTINGS, retain=retain)
        crash = self.rng.random()
        if crash < 0.3:
            upkeep._files = _KilledFiles(self.log, is_committed=crash < 0.15)
            upkeep._table = upkeep._files._table
            upkeep._retention = Retention(upkeep._table, upkeep._files, retain)
        last = max((int(str(row["tx_offset"])) for row in self.appended), default=0)
        with suppress(SinkError):
            self.folds += upkeep.run(EPOCH + timedelta(seconds=last)).folded_shapes
        for snapshot in last_snapshots(DeltaTable(self.log)).values():
            self.taken_as.setdefault(snapshot.attempt, self.snapshots[-1].attempt)

    def write(self) -> None:
        """Append some of what is routed: whole transactions, and part of the next one."""
        rows = [row for each in self.world.routed for row in each.rows()]
        part = rows[len(self.appended) :][: self.rng.randint(1, 12)]
        if part:
            dated = [row | {"written_at": _commit_time(row)} for row in part]
            self.append(dated)
            self.appended += part

    def append(self, rows: list[Row]) -> None:
        append(self.log, rows)

    def take_or_append(self) -> None:
        if self.taken is not None:
            snapshot, rows = self.taken
            self.taken = None
            if not append_snapshot(self.log, snapshot, rows):
                self.refused += 1
                return
            self.snapshots.append(snapshot)
            self.taken_as[snapshot.attempt] = snapshot.attempt
        elif self.world.is_start_visible and not self.world.is_truncated:
            self.taken = self.world.snapshot(max(self.taken_as, default=0) + 1)

    def check(self) -> None:
        """Compare what each reader has with what it should have."""
        kept = table_rows(DeltaTable(self.log), ["tx_offset", "op_offset"], "tx_offset > 0")
        offsets = sorted(zip(*(column.to_pylist() for column in kept.columns), strict=True))
        assert len(offsets) == len(set(offsets))
        last = self.appended[-1:]
        assert offsets[-1:] == [(row["tx_offset"], row["op_offset"]) for row in last], "the log's end is lost"
        if not self.snapshots:
            for read in (self.reader.read_rows, self.reader.read_log):
                with pytest.raises(SnapshotMissingError):
                    read("users")
            return
        (snapshot,) = last_snapshots(DeltaTable(self.log)).values()
        commits = [int(str(row["tx_offset"])) for row in self.appended if row["operation"] == "commit"]
        bound = LogOffset.last_of(max(commits, default=0))
        whole, state, table = self.reader.read_log("users"), self.reader.read_rows("users"), Table()
        fold_strictly(table, whole.rows.to_pylist())
        expected = self.expected(snapshot.attempt, bound)
        assert (whole.bound, whole.position.attempt, table) == (bound, snapshot.attempt, expected)
        assert (state.bound, by_id(state.rows.to_pylist())) == (bound, expected)
        for follower, share in self.followers.items():
            if self.rng.random() < share:
                position = follower.poll()
                assert aligned(position.tx_offset) == bound.tx_offset
                assert follower.table == self.expected(position.attempt, bound)
        for tx in self.rng.sample(commits, min(2, len(commits))):
            self.check_state(LogOffset.last_of(tx), snapshot, bound)

    def expected(self, attempt: int, bound: LogOffset) -> Table:
        return self.world.expected(self.taken_as[attempt], bound.tx_offset)

    def kept_snapshots(self) -> list[ShapeSnapshot]:
        ends = table_rows(DeltaTable(self.log), ["chunk", "value"], "operation = 'snapshot'").to_pylist()
        return [ShapeSnapshot.parse(row["chunk"], row["value"]) for row in ends]

    def check_state(self, at: LogOffset, snapshot: ShapeSnapshot, bound: LogOffset) -> None:
        """The last snapshot that had been taken by then tells the rows, unless it is folded."""
        told = max((each.attempt for each in self.kept_snapshots() if each.lsn <= at.tx_offset), default=None)
        if at == bound or told is not None:
            found = self.reader.read_rows("users", at)
            attempt = snapshot.attempt if told is None else told
            assert found.position.attempt == attempt
            assert by_id(found.rows.to_pylist()) == self.expected(attempt, at)
        else:
            horizon = str(LogOffset.last_of(snapshot.lsn))
            reason = f"its horizon {horizon}; name" if snapshot.is_fold else "has later transactions too"
            with pytest.raises(ConfigError, match=re.escape(reason)):
                self.reader.read_rows("users", at)


def append_snapshot(log: str, snapshot: ShapeSnapshot, rows: Table) -> bool:
    """Append it as the snapshots' job does; false if it is refused because it lacks what has been folded."""
    files = LogFiles(DeltaTable(log), {})
    added = files.write(arrow(snapshot_rows(snapshot, rows)), None, is_change=True)
    try:
        files.append_snapshot([WrittenFile(added)], {(SOURCE, "users"): snapshot})
    except SinkError as error:
        assert "take the snapshot again" in str(error)  # noqa: PT017
        return False
    return True


class _KilledFiles(LogFiles):
    """Files of a process that is killed when it replaces some, before or after the commit."""

    def __init__(self, log: str, *, is_committed: bool) -> None:
        super().__init__(DeltaTable(log), {})
        self._is_committed = is_committed

    def replace(self, *arguments: Any, **options: Any) -> bool:
        if self._is_committed:
            super().replace(*arguments, **options)
        raise OSError("killed")


def _commit_time(row: Row) -> datetime | None:
    return EPOCH + timedelta(seconds=int(str(row["tx_offset"]))) if row["operation"] == "commit" else None


def by_id(rows: list[dict[str, Any]]) -> Table:
    return {row["id"]: {name: row[name] for name in ("id", "n")} for row in rows}
