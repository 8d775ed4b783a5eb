"""A shape in one log through resyncs, snapshots taken again, folds and lost slots, from a seed; and its followers.

The parts that touch the log are production code. The table is a :class:`SnapshotWorld` for each source, so that
transactions become visible in another order than they commit. What a follower must have is what that world says of the
snapshot that its position names, and of the transactions up to there.
"""

import json
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from random import Random
from typing import Any, Final

from deltalake import DeltaTable

from flushtracker.delta.data_file import WrittenFile
from flushtracker.delta.registry_table import RegistryTable
from flushtracker.errors import ConfigError, PositionError, ShapeEndedError, SinkError, SnapshotMissingError
from flushtracker.events.registry_events import ShapeEntry
from flushtracker.shape_log.fold import END_ROWS
from flushtracker.shape_log.merge_plan import MergeSettings
from flushtracker.shape_log.position import Position
from flushtracker.shape_log.shape_snapshot import ShapeSnapshot
from flushtracker.shape_log.table.files import LogFiles
from flushtracker.shape_log.table.log_table import create_shape_log
from flushtracker.shape_log.table.reader import ShapeLogReader, ShapeRead
from flushtracker.shape_log.table.retention import RetentionPolicy
from flushtracker.shape_log.table.snapshots import last_snapshots
from flushtracker.shape_log.table.upkeep import ShapeLogUpkeep
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.wal.log_offset import LogOffset
from tests.support.log_follower import fold_strictly
from tests.support.shape_log_rows import SOURCE, Row, append, arrow, snapshot_rows
from tests.support.snapshot_world import XIDS, SnapshotWorld, Table, Transaction, table_after

_EPOCH: Final = datetime(2000, 1, 1, tzinfo=timezone.utc)
"""A transaction is committed as many seconds after this as its LSN."""
_MERGES: Final = MergeSettings(merge_files=3, files_per_run=4, least_file_bytes=1)
_FIRST_XIDS: Final = (100, XIDS - 20)


@dataclass(eq=False)
class Life:
    """One incarnation of the shape under one source, on that source's table; ``definition`` chooses its columns."""

    source: str
    world: SnapshotWorld
    incarnation: int
    starts_after: int
    definition: int
    ended_at: int | None = None

    @property
    def key(self) -> tuple[str, str]:
        return self.source, "users"

    def row(self, row: dict[str, str | None]) -> dict[str, str | None]:
        """A row of the table as the shape has it."""
        return {f"n{self.definition}" if name == "n" else name: text for name, text in row.items()}

    def table(self, table: Table) -> Table:
        return {key: self.row(row) for key, row in table.items()}

    def log_row(self, row: Row) -> Row:
        value = row["value"]
        if isinstance(value, str):
            row |= {"value": json.dumps(self.row(json.loads(value)))}
        at = _EPOCH + timedelta(seconds=int(str(row["tx_offset"]))) if row["operation"] == "commit" else None
        return row | {"source": self.source, "written_at": at}


@dataclass(eq=False)
class HealedLog:
    """The shape ``users`` in the log at a path."""

    log: str
    seed: int
    has_folds: bool = False
    is_calm: bool = False
    """Whether the shape no longer ends inside a transaction."""
    lives: list[Life] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.rng = Random(self.seed)  # noqa: S311  reproducible
        create_shape_log(self.log)
        self.registry = f"{self.log}.registry"
        self._queue: list[tuple[Life, list[Row]]] = []
        self._queued_lsn = 0
        self._taken: tuple[Life, ShapeSnapshot, Table] | None = None
        self.taken_as: dict[tuple[str, int], tuple[Life, int]] = {}
        """By source and attempt in the log: whose it is, and the attempt in the world that it begins with."""
        self.lsns: dict[tuple[str, int], int] = {}
        """By source and attempt in the log: the end of the WAL when it was taken, or a fold's horizon."""
        self.seen: set[tuple[str, int]] = set()
        """Sources and offsets that anybody was told: of positions, bounds and differences."""
        self._marked: dict[str, int] = {}
        world = SnapshotWorld(self.seed, self.rng.choice(_FIRST_XIDS))
        for _ in range(10):
            world.step()
        self._begin(world, SOURCE, 1)

    @property
    def life(self) -> Life:
        return self.lives[-1]

    def step(self) -> None:
        """Something happens."""
        actions = {
            self.change: 45,
            self.write: 30,
            self.take: 8 if self.has_folds else 25,
            self.append_taken: 25,
            self.end: 0.2 if self.has_folds else 1,
            self.resync: 3 if self.has_folds else 6,
            self.lose_slot: 1 if self.has_folds else 2,
            self.upkeep: 30 if self.has_folds else 0,
        }
        (action,) = self.rng.choices(list(actions), list(actions.values()))
        action()

    def change(self) -> None:
        """Transactions of the table; what commits while the shape is live is on its way to the writer."""
        for _ in range(self.rng.randint(1, 24 if self.has_folds else 8)):
            life = self.life
            life.world.step()
            for each in life.world.committed:
                lsn = each.lsn or 0
                if lsn <= self._queued_lsn or lsn <= life.starts_after:
                    continue
                self._queued_lsn = lsn
                if life.ended_at is None:
                    self._queue.append((life, [life.log_row(row) for row in each.rows()]))

    def write(self) -> None:
        """The writer appends some transactions, the last of them in part; an incarnation is marked first."""
        for _ in range(self.rng.randint(1, 8)):
            if not self._queue:
                return
            life, rows = self._queue.pop(0)
            self.mark(life)
            cut = self.rng.randint(1, len(rows))
            append(self.log, rows[:cut])
            if cut < len(rows):
                # The rest is sent, unless the shape ends inside the transaction.
                if life is self.life and life.ended_at is None and (self.is_calm or self.rng.random() > 0.1):
                    self._queue.insert(0, (life, rows[cut:]))
                    return
                self._queue = [each for each in self._queue if each[0] is not life]
                if life is self.life:
                    self.end()

    def mark(self, life: Life | None = None) -> None:
        """The writer marks the incarnation before its first rows."""
        life = life or self.life
        if life.incarnation > self._marked.get(life.source, 1):
            self._marked[life.source] = life.incarnation
            self._files().mark_incarnations({life.key: life.incarnation}, _EPOCH)

    def write_all(self) -> None:
        self.is_calm = True
        while self._queue:
            self.write()

    def take(self) -> None:
        """A snapshot is taken, and appended some time later, or never."""
        life = self.life
        if life.ended_at is None and life.world.is_start_visible and not life.world.is_truncated:
            attempt = max([number for _, number in self.taken_as] + [self._last_attempt()]) + 1
            snapshot, rows = life.world.snapshot(attempt)
            begun = (life.incarnation, life.starts_after) if life.incarnation > 1 else (1, -1)
            snapshot = ShapeSnapshot(attempt, snapshot.visible, snapshot.lsn, snapshot.next_xid, None, *begun)
            self._taken = life, snapshot, life.table(rows)

    def append_taken(self) -> None:
        if self._taken is None:
            return
        (life, snapshot, rows), self._taken, files = self._taken, None, self._files()
        ends = [row | {"source": life.source} for row in snapshot_rows(snapshot, rows)]
        added, last = files.write(arrow(ends), None, is_change=True), last_snapshots(DeltaTable(self.log)).get(life.key)
        try:
            files.append_snapshot([WrittenFile(added)], {life.key: snapshot})
        except SinkError as error:
            assert "take the snapshot again" in str(error)  # noqa: PT017
            self.counts["refused"] += 1
            return
        assert last is None or life.incarnation >= last.incarnation, "a snapshot of an earlier incarnation was appended"
        self.taken_as[life.source, snapshot.attempt] = life, snapshot.attempt
        self.lsns[life.source, snapshot.attempt] = snapshot.lsn
        self.counts["snapshots"] += 1

    def snapshot(self) -> None:
        """Now, however long it takes until everything before the shape's start is visible."""
        self._taken = None
        while self._taken is None:
            self.change()
            self.take()
        self.append_taken()

    def end(self) -> None:
        if self.life.ended_at is None:
            self.life.ended_at = self.life.world.lsn
            self._register()

    def resync(self) -> None:
        """The shape begins again, perhaps with other columns; what is queued of it may still be written."""
        self.end()
        self._begin(self.life.world, self.life.source, self.life.incarnation + 1)
        self.counts["resyncs"] += 1

    def lose_slot(self) -> None:
        """The server is restored to an earlier state, and LSNs are used again; what is queued is never written."""
        self.end()
        committed = self.life.world.committed
        kept = committed[: self.rng.randint(0, len(committed))]
        world = SnapshotWorld(self.rng.randrange(10**6), self.rng.choice(_FIRST_XIDS))
        rows = table_after(kept).items()
        world.visible.append(Transaction(world.next_xid, [("insert", key, dict(row)) for key, row in rows], 900))
        world.next_xid += 1
        world._last_ended = world.next_xid - 1
        self._queue, self._queued_lsn, self._taken = [], 0, None
        self._begin(world, f"{SOURCE}/{len({each.source for each in self.lives})}", 1)
        self.counts["lost slots"] += 1

    def upkeep(self) -> None:
        retain = RetentionPolicy(timedelta(seconds=self.rng.choice([1, 100, 300])), least_dropped=1)
        upkeep = ShapeLogUpkeep(self.log, self.registry, settings=_MERGES, retain=retain)
        report = upkeep.run(_EPOCH + timedelta(seconds=self.life.world.lsn))
        self.counts["merges"] += report.merges
        self.counts["folds"] += report.folded_shapes
        for (source, _), snapshot in last_snapshots(DeltaTable(self.log)).items():
            if snapshot.is_fold:
                before = max(number for of, number in self.taken_as if of == source and number <= snapshot.attempt)
                self.taken_as.setdefault((source, snapshot.attempt), self.taken_as[source, before])
                self.lsns[source, snapshot.attempt] = snapshot.lsn

    def expected(self, position: Position) -> Table:
        """What a follower at the position must have."""
        life, attempt = self.taken_as[position.source, position.attempt]
        return life.table(life.world.expected(attempt, position.tx_offset))

    def check_newest(self, position: Position) -> None:
        """Who has read everything has the rows of the last snapshot, and not those of one that it has replaced."""
        last = last_snapshots(DeltaTable(self.log)).get((position.source, "users"))
        assert last is not None
        assert self.taken_as[position.source, position.attempt] == self.taken_as[position.source, last.attempt]

    def _begin(self, world: SnapshotWorld, source: str, incarnation: int) -> None:
        world.start()
        definition = self.rng.randrange(2) if self.lives else 0
        self.lives.append(Life(source, world, incarnation, world.starts_after or 0, definition))
        self._register()

    def _register(self) -> None:
        life = self.life
        definition = ShapeDefinition("users", ("public", "users"), snapshot=True, incarnation=life.incarnation)
        removed_at = None if life.ended_at is None else LogOffset(life.ended_at, 0)
        entry = ShapeEntry(life.source, definition, 7, LogOffset(life.starts_after, 0), removed_at)
        RegistryTable(self.registry, create=True).append([entry.to_json()], datetime.now(timezone.utc))

    def _last_attempt(self) -> int:
        return max((each.attempt for each in last_snapshots(DeltaTable(self.log)).values()), default=0)

    def _files(self) -> LogFiles:
        return LogFiles(DeltaTable(self.log), {})


@dataclass(eq=False)
class HealedFollower:
    """Keeps the shape's rows and its position as text, each poll in a process of its own, and stops at any time.

    It drops what is not after the last offset that it has stored, as a naive program does, and so must never get that.
    One that is ``separate`` stores its rows before its position, and may stop between; then it takes the rows again.
    """

    world: HealedLog
    shapes: str | None = None
    separate: bool = False
    table: Table = field(default_factory=dict)
    kept: str | None = None
    stored: tuple[str, int, int] | None = None
    """The source and the offset of the last row that it has stored."""
    is_torn: bool = False
    """Whether its rows are after its position."""

    def poll(self) -> None:
        """Read what is new, check that each change can follow, and that the rows are those of the position."""
        counts = self.world.counts
        if self.kept is None:
            self._begin_again()
        after = None if self.kept is None else Position.parse(self.kept)
        try:
            read = ShapeLogReader(self.world.log, self.shapes).read_log("users", after)
        except (SnapshotMissingError, ShapeEndedError):
            counts["waits"] += 1
            return
        except PositionError as error:
            assert "read the shape again from its beginning" in str(error)  # noqa: PT017
            assert after is not None
            counts["told"] += 1
            self._begin_again()
            return
        except ConfigError as error:
            assert "has no shape users" in str(error)  # noqa: PT017  nothing is written yet
            return
        rows = read.rows.to_pylist()
        is_healed = after is not None and (after.source, after.attempt) != (read.source, read.position.attempt)
        assert not is_healed or {row["xid"] for row in rows} == {0}
        if is_healed and self.is_torn:
            # It does not know which difference it has stored, if any.
            counts["torn"] += 1
            self._begin_again()
            return
        counts["healed" if is_healed else "continued"] += len(rows) > 0
        counts["led"] += after is not None and read.source != after.source
        self._check_order(after, read, rows)
        self._store(read, rows)
        if not is_healed:
            self.world.check_newest(read.position)
        self.world.seen.update({(read.source, read.position.tx_offset), (read.source, (read.bound or (0, 0))[0])})

    def _check_order(self, after: Position | None, read: ShapeRead, rows: list[dict[str, Any]]) -> None:
        offsets = [(row["tx_offset"], row["op_offset"]) for row in rows]
        assert offsets == sorted(set(offsets))
        assert all(tx <= read.position.tx_offset for tx, _ in offsets)
        if after is not None and after.source == read.source:
            assert read.position.tx_offset >= after.tx_offset
            if offsets:
                assert offsets[0][0] > after.tx_offset
        if offsets and not self.is_torn and self.stored is not None and self.stored[0] == read.source:
            assert offsets[0] > self.stored[1:], f"{offsets[0]} from {after} to {read.position}, after {self.stored}"

    def _store(self, read: ShapeRead, rows: list[dict[str, Any]]) -> None:
        stop = 1.0 if self.world.is_calm else self.world.rng.random()
        if stop < 0.1:
            return
        if self.is_torn:
            fold_again(self.table, rows)
        else:
            fold_strictly(self.table, rows)
        if rows:
            self.stored = read.source, rows[-1]["tx_offset"], rows[-1]["op_offset"]
        assert self.table == self.world.expected(read.position), f"after {self.kept}, up to {read.position}"
        self.is_torn = self.separate and stop < 0.3
        if not self.is_torn:
            self.kept = str(read.position)

    def _begin_again(self) -> None:
        self.table, self.kept, self.stored, self.is_torn = {}, None, None, False


def fold_again(table: Table, rows: list[dict[str, Any]]) -> None:
    """Apply rows of a log to a table that may have some of them already, in the same order."""
    for row in rows:
        if row["operation"] == "truncate":
            table.clear()
        elif row["operation"] == "delete":
            table.pop(row["key"], None)
        elif row["operation"] not in END_ROWS:
            table[row["key"]] = {**table.get(row["key"], {}), **json.loads(row["value"])}
