"""A shape that begins again in one log: its table, its writer, its snapshots and its upkeep, from a seed.

The parts that touch the log are production code: ``LogFiles`` marks incarnations and appends snapshots, and
``ShapeLogUpkeep`` merges and folds. The table is a dict, with the rows that it had after each transaction. Transactions
of an incarnation wait in a queue until the writer appends them; a snapshot may be taken long before it is appended.
"""

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from random import Random
from typing import Final

from deltalake import DeltaTable

from flushtracker.delta.data_file import WrittenFile
from flushtracker.delta.log.files import LogFiles
from flushtracker.delta.log.retention import Retain
from flushtracker.delta.log.table import create_shape_log
from flushtracker.delta.log.upkeep import ShapeLogUpkeep
from flushtracker.delta.registry_table import RegistryTable
from flushtracker.errors import SinkError
from flushtracker.events.registry_events import ShapeEntry
from flushtracker.shape_log.merge_plan import MergeSettings
from flushtracker.shape_log.shape_snapshot import ShapeSnapshot
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.mvcc_snapshot import MvccSnapshot
from tests.support.shape_log_rows import SOURCE, Row, append, arrow, commit, item, snapshot_rows

_KEY: Final = (SOURCE, "users")
_EPOCH: Final = datetime(2000, 1, 1, tzinfo=timezone.utc)
"""A transaction is committed as many seconds after this as its LSN."""
_MERGES: Final = MergeSettings(merge_files=3, files_per_run=4, least_file_bytes=1)

State = dict[str, dict[str, str | None]]


@dataclass(slots=True)
class _Taken:
    """A snapshot that was taken, of an incarnation that starts after an LSN, and has yet to be appended."""

    incarnation: int
    starts_after: int
    tx: int
    rows: State


@dataclass
class ResyncedLog:
    """The shape ``users`` in the log at a path. ``snapshot`` is the last one in the log, of what it has been given."""

    log: str
    rng: Random
    tx: int = 100
    table: State = field(default_factory=dict)
    states: dict[int, State] = field(default_factory=lambda: {100: {}})
    incarnation: int = 1
    starts_after: int = 100
    is_live: bool = True
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        create_shape_log(self.log)
        self.registry = f"{self.log}.registry"
        self._queue: list[tuple[int, int, list[Row]]] = []
        self._kept: _Taken | None = None
        self.marked = 1
        self.read_from: tuple[int, int] | None = None
        """The incarnation of the last snapshot in the log, and its last transaction; ``None`` for a mark."""
        self.written = 0
        self._register()
        retain = Retain(timedelta(seconds=15), least_dropped=1)
        self._upkeep = ShapeLogUpkeep(self.log, self.registry, settings=_MERGES, retain=retain)

    def step(self) -> None:
        """Something happens."""
        actions = {
            self.change: 40,
            self.write: 25,
            self.snapshot: 12,
            self.keep_snapshot: 2,
            self.append_kept: 3,
            self.end: 1,
            self.begin: 8,
            self.upkeep: 12,
        }
        (action,) = self.rng.choices(list(actions), list(actions.values()))
        action()

    def change(self) -> None:
        """A transaction of the table, which reaches the writer if the shape is live."""
        self.tx += 8 * self.rng.randint(1, 4)
        rows = list[Row]()
        for op in range(0, 2 * self.rng.randint(1, 3), 2):
            key = f"k{self.rng.randrange(6)}"
            offset: tuple[int, int] = (self.tx, op)
            row: dict[str, str | None] = {"id": key, "n": f"{self.tx}-{op}"}
            if key not in self.table:
                self.table[key] = row
                rows.append(item(offset, "insert", key, dict(row)))
            elif self.rng.random() < 0.3:
                del self.table[key]
                rows.append(item(offset, "delete", key, {"id": key}))
            else:
                self.table[key].update(row)
                rows.append(item(offset, "update", key, dict(row)))
        self.states[self.tx] = {key: dict(row) for key, row in self.table.items()}
        if self.is_live:
            ends = commit(self.tx) | {"written_at": _EPOCH + timedelta(seconds=self.tx)}
            # Where the shape ends inside a transaction, its commit is not sent.
            is_cut = self.rng.random() < 0.05
            self._queue.append((self.incarnation, self.tx, rows if is_cut else [*rows, ends]))
            if is_cut:
                self.end()

    def write(self) -> None:
        """The writer appends some of what it has been sent; first of all it marks an incarnation that begins."""
        for _ in range(self.rng.randint(1, 4)):
            if not self._queue:
                return
            incarnation, tx, rows = self._queue.pop(0)
            if incarnation > self.marked:
                self.mark(incarnation)
            append(self.log, rows)
            if rows[-1]["operation"] == "commit":
                self.written = tx

    def write_all(self) -> None:
        while self._queue:
            self.write()

    def mark(self, incarnation: int) -> None:
        self.marked = incarnation
        self._files().mark_incarnations({_KEY: incarnation}, _EPOCH)
        if self.read_from is None or self.read_from[0] < incarnation:
            self.read_from = None
            self.counts["marks"] += 1

    def end(self) -> None:
        if self.is_live:
            self.is_live = False
            self._register(LogOffset(self.tx, 0))

    def begin(self) -> None:
        """The shape begins again; what is queued of the last incarnation may still be written."""
        self.end()
        self.incarnation, self.starts_after, self.is_live = self.incarnation + 1, self.tx, True
        self._register()
        self.counts["begun"] += 1

    def keep_snapshot(self) -> None:
        if self.is_live:
            self._kept = _Taken(self.incarnation, self.starts_after, self.tx, self.states[self.tx])

    def append_kept(self) -> None:
        """A snapshot is appended that was taken before; of an earlier incarnation, it is refused or replaced."""
        if self._kept is not None:
            self._append(self._kept)
            self._kept = None

    def snapshot(self) -> None:
        self.keep_snapshot()
        self.append_kept()

    def _append(self, taken: _Taken) -> None:
        files, last = self._files(), self.read_from
        visible = MvccSnapshot(taken.tx + 1, taken.tx + 1)
        attempt = 10 * taken.tx + files.next_snapshot().version
        begun = (taken.incarnation, taken.starts_after if taken.incarnation > 1 else -1)
        snapshot = ShapeSnapshot(attempt, visible, taken.tx, taken.tx + 1, None, *begun)
        rows = snapshot_rows(snapshot, taken.rows)
        added = files.write(arrow(rows), None, is_change=True)
        try:
            files.append_snapshot([WrittenFile(added)], {_KEY: snapshot})
        except SinkError as error:
            assert "take the snapshot again" in str(error)  # noqa: PT017
            self.counts["refused"] += 1
            return
        assert last is None or taken.incarnation >= last[0], "a snapshot of an earlier incarnation was appended"
        self.read_from = taken.incarnation, taken.tx
        self.counts["snapshots"] += 1

    def upkeep(self) -> None:
        report = self._upkeep.run(_EPOCH + timedelta(seconds=self.tx))
        self.counts["merges"] += report.merges
        self.counts["folds"] += report.folded_shapes

    @property
    def expected(self) -> State | None:
        """The rows that a reader of the log alone must have; ``None`` if there is no snapshot to begin with."""
        if self.read_from is None:
            return None
        return self.states[max(self.read_from[1], self.written)]

    def _register(self, removed_at: LogOffset | None = None) -> None:
        definition = ShapeDefinition("users", ("public", "users"), snapshot=True, incarnation=self.incarnation)
        entry = ShapeEntry(SOURCE, definition, 7, LogOffset(self.starts_after, 0), removed_at)
        RegistryTable(self.registry, create=True).append([entry.to_json()], datetime.now(timezone.utc))

    def _files(self) -> LogFiles:
        return LogFiles(DeltaTable(self.log), {})
