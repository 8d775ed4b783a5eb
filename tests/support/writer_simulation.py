"""The writers' job as one deterministic machine: capture, topic, state, log, claims, notifier and crashes, from a seed.

The pure parts are production code: ``WriterGroup``, ``LogClaim`` on a table of one number, ``unknown_ends``,
``last_rows``. What Spark and the programs around them do is a few lines each here, in the same order as in
``shape_log.write.query`` and ``shape_log.write.driver``. A history is a list of seeds, one for each action.

After each step: the log has each change once; each append is in offset order; nothing is notified that the log has not.
In the end the log is complete, chunks never go back, and the last notification of each shape is its end.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Final

import pytest
from deltalake import Transaction

from flushtracker.delta.commits import Commits
from flushtracker.errors import SinkError
from flushtracker.events.registry_events import ShapeEntry
from flushtracker.events.stream_events import ShapeChangesEvent
from flushtracker.shape_log.log_row import COMMIT, LogRow
from flushtracker.shape_log.shape_writer import LogEnd
from flushtracker.shape_log.table.claim import LogClaim, LogRows
from flushtracker.shape_log.transaction_builder import WriteUnit
from flushtracker.shape_log.write.consumed_changes import ConsumedChanges, TopicOffsets
from flushtracker.shape_log.write.log_ends import CommittedWriters, LogEnds, known_ends, last_rows, unknown_ends
from flushtracker.shape_log.write_loop import notifiable
from flushtracker.shape_log.writer_group import WriterGroup, WriterSettings
from flushtracker.shapes.definition import FlushPolicy, ShapeDefinition
from flushtracker.wal.log_offset import LogOffset
from tests.support.plain_writer import CheckedGroup
from tests.support.shape_transactions import SOURCE, Transactions

GROUPS: Final = 2
SHAPES: Final = ("a", "b", "c")

Key = tuple[str, str]
Record = ShapeChangesEvent | ShapeEntry


class _KilledError(Exception):
    """The process dies here."""


class Log:
    """The shape log, and as much of a Delta table as ``LogClaim`` asks for."""

    table_uri = "log"

    def __init__(self) -> None:
        self.rows: dict[str, list[LogRow]] = {shape_id: [] for shape_id in SHAPES}
        self.marks: dict[str, int] = {}
        """The last incarnation of each shape that was begun again."""
        self.app_version = 0

    def copy(self) -> "Log":
        log = Log()
        log.rows, log.app_version = {shape_id: list(rows) for shape_id, rows in self.rows.items()}, self.app_version
        log.marks = dict(self.marks)
        return log

    def append(self, version: int, rows: dict[str, list[LogRow]]) -> None:
        """As delta-spark does: without an error, nothing is appended if the version is not greater."""
        if version <= self.app_version:
            return
        self.app_version = version
        for shape_id, new in rows.items():
            log = self.rows[shape_id]
            log += new
            offsets = [row[:2] for row in log]
            assert offsets == sorted(set(offsets)), f"shape {shape_id}: {offsets}"

    def end(self, shape_id: str) -> LogEnd | None:
        rows = self.rows[shape_id]
        commits = [LogOffset(*row[:2]) for row in rows if row.operation == COMMIT]
        if not rows:
            return None
        last_txn = max(commits, default=LogOffset.before_all())
        return LogEnd(LogOffset(*rows[-1][:2]), last_txn, max(row.chunk for row in rows))

    def ends(self) -> LogEnds:
        return {(SOURCE, shape_id): end for shape_id in SHAPES if (end := self.end(shape_id)) is not None}

    # What LogClaim asks of a DeltaTable.

    def update_incremental(self) -> None:
        """Always current."""

    def transaction_version(self, _app_id: str) -> int:
        return self.app_version

    def version(self) -> int:
        """Rises with each commit, as each has an app transaction."""
        return self.app_version

    def schema(self) -> None:
        """Nothing is checked against it."""


class LogCommits(Commits):
    """The commits to a log in memory."""

    def __init__(self, log: Log) -> None:
        super().__init__()
        self._log = log

    def commit(self, table: Any, actions: Any, transactions: Iterable[Transaction] = (), **_options: Any) -> None:  # noqa: ARG002  its names are those of the real one
        (transaction,) = transactions
        assert transaction.version > self._log.app_version
        self._log.app_version = transaction.version


class Claim(LogClaim):
    """A claim whose rows are looked up in the log in memory."""

    def __init__(self, log: Log) -> None:
        super().__init__(log)  # type: ignore[arg-type]
        self._commits = LogCommits(log)
        self.log = log

    def _reaches(self, _source: str, shape_id: str, offset: LogOffset) -> bool:
        return any(row[:2] >= offset for row in self.log.rows[shape_id])


@dataclass
class Checkpoint:
    """The committed states by group, where each batch ends in the topic, and the job's own file."""

    states: list[tuple[bytes | None, ...]] = field(default_factory=lambda: [(None,) * GROUPS])
    plans: list[int] = field(default_factory=lambda: [0])
    claim: int | None = None
    ends: LogEnds = field(default_factory=dict)

    @property
    def batch_id(self) -> int:
        return len(self.states) - 2

    def copy(self) -> "Checkpoint":
        return replace(self, states=list(self.states), plans=list(self.plans), ends=dict(self.ends))


class Writers:
    """One process of the job, from its start on a checkpoint; ``step`` is called between any two of its steps."""

    def __init__(self, simulation: "WriterSimulation", checkpoint: Checkpoint, step: Callable[[], None]) -> None:
        self._simulation, self.checkpoint, self.log = simulation, checkpoint, simulation.log
        self._taken = ConsumedChanges()
        committed = CommittedWriters(checkpoint.batch_id, lambda shape_id: str(_group(shape_id)))
        for number, packed in enumerate(checkpoint.states[-1]):
            committed.add(str(number), WriterGroup(SOURCE, simulation.settings, packed))
        durable = committed.durable
        step()
        self.claim = Claim(self.log)
        rows: LogRows = last_rows(durable)
        number = self.claim.take(checkpoint.claim, rows)
        step()
        ends = checkpoint.ends
        if not self.claim.covers(checkpoint.claim, checkpoint.batch_id):
            ends = self.log.ends()
        ends = unknown_ends(ends, committed)
        checkpoint.claim, checkpoint.ends = number, ends
        step()
        simulation.notify({key: notifiable(offset) for key, offset in known_ends(ends, durable).items()})
        self.settings = replace(simulation.settings, ends=ends)

    def run_batch(self, until: int, now_ms: int, rng: Random, step: Callable[[], None]) -> None:
        """A batch that reads the topic up to ``until``, unless it is planned already."""
        checkpoint = self.checkpoint
        batch_id = checkpoint.batch_id + 1
        if len(checkpoint.plans) == batch_id + 1:
            checkpoint.plans.append(until)
        first, until = checkpoint.plans[batch_id : batch_id + 2]
        records = self._simulation.topic[first:until]
        self.claim.require()
        states: list[bytes | None] = []
        rows: dict[str, list[LogRow]] = {}
        durable: dict[Key, LogOffset] = {}
        begun: dict[str, int] = {}
        for number, packed in enumerate(checkpoint.states[-1]):
            mine = [record for record in records if _group(_shape_of(record)) == number]
            if not mine and not (self.settings.hold and packed):
                states.append(packed)
                continue
            changes = [record for record in mine if isinstance(record, ShapeChangesEvent)]
            entries = [record for record in mine if isinstance(record, ShapeEntry)]
            group = CheckedGroup(SOURCE, self.settings, packed)
            before_lsn, taken_lsn = group.forgotten_lsn, self._taken.lsns.get(SOURCE, -1)
            for batch in group.handle_events(rng.sample(changes, len(changes)), entries, now_ms, taken_lsn):
                rows[batch.shape_id] = batch.rows
                if batch.begun is not None:
                    begun[batch.shape_id] = batch.begun
                if batch.notified is not None:
                    durable[SOURCE, batch.shape_id] = batch.notified
            self._simulation.counts["forgotten"] += group.forgotten_lsn > before_lsn
            states.append(group.pack())
        step()
        if begun:
            for shape_id, incarnation in begun.items():
                self.log.marks[shape_id] = max(incarnation, self.log.marks.get(shape_id, 1))
            step()
        if any(rows.values()):
            self._simulation.require_marks(rows)
            version = self.claim.version_of(batch_id)
            self.log.append(version, rows)
            step()
            self.claim.require(version)
        step()
        self._simulation.notify(durable)
        step()
        self._taken.note(record for record in records if isinstance(record, ShapeEntry))
        checkpoint.states.append(tuple(states))

    def look(self) -> None:
        """What the thread that looks for consumed changes does at times."""
        topic, checkpoint = len(self._simulation.topic), self.checkpoint
        read = checkpoint.plans[checkpoint.batch_id + 1]
        if self._taken.is_pending:
            self._taken.advance(TopicOffsets(lambda: {"topic": {0: topic}}, lambda: {"topic": {0: read}}))


def _group(shape_id: str) -> int:
    return SHAPES.index(shape_id) % GROUPS


def _shape_of(record: Record) -> str:
    return record.shape_id if isinstance(record, ShapeChangesEvent) else record.definition.id


class WriterSimulation:
    """One history in progress; ``run`` plays ``actions`` of them and then to the end without further faults."""

    def __init__(self, seed: int, actions: int = 40) -> None:
        self.rng = rng = Random(seed)  # noqa: S311  a reproducible history
        self._actions = actions
        self.settings = WriterSettings(rng.choice(_UNITS), hold=rng.random() < 0.5)
        self.topic: list[Record] = []
        self.log = Log()
        self.shapes = {shape_id: Transactions(shape_id, rng) for shape_id in SHAPES}
        self.removed: set[str] = set()
        self.notified: dict[str, LogOffset] = {}
        self.counts = dict.fromkeys(
            ("batches", "kills", "fenced", "restored", "refused", "gaps", "resynced", "condensed", "forgotten", "rows"),
            0,
        )
        self._confirmed_lsn = 0
        """The slot's: nothing below it is sent again, and what commits from now on is above it."""
        self._ends: dict[str, LogOffset] = {}
        """Where the last removed incarnation of a shape ended."""
        self._sent: dict[str, list[int]] = {shape_id: [] for shape_id in SHAPES}
        """For the shape's last incarnation."""
        self._ended: dict[str, int] = dict.fromkeys(SHAPES, 0)
        """The last transaction of the incarnations before."""
        self._now_ms = 0
        self._checkpoint = Checkpoint()
        self._backups: list[Checkpoint] = []
        self._older_logs: list[Log] = []
        self._current: Writers | None = None
        for shape_id in SHAPES:
            limits = FlushPolicy(rng.choice([None, 20, 200]), rng.choice([None, 100]), rng.choice([None, 50]))
            self.topic.append(self._entry(shape_id, limits))

    def run(self) -> None:
        names = list(_WEIGHTS)
        with pytest.MonkeyPatch.context() as patch:
            # A log in memory has no files that say who has claimed it.
            patch.setattr("flushtracker.shape_log.table.claim.committer", lambda *_: "")
            for name in self.rng.choices(names, list(_WEIGHTS.values()), k=self._actions):
                getattr(self, f"_{name}")()
            self._finish()
        self.counts["rows"] = sum(len(rows) for rows in self.log.rows.values())

    # Capture and the topic

    def _publish(self) -> None:
        shape_id = self.rng.choice(SHAPES)
        stream = self.shapes[shape_id]
        if shape_id in self.removed:
            return
        stream.grow(self.rng.randint(1, 3), self._confirmed_lsn)
        self._send(shape_id, self._unsent(shape_id))

    def _unsent(self, shape_id: str) -> list[int]:
        items, sent, ended = self.shapes[shape_id].items, self._sent[shape_id], self._ended[shape_id]
        return [lsn for lsn in items if lsn > ended and lsn not in sent]

    def _send(self, shape_id: str, lsns: list[int], *, lose: bool = False) -> None:
        """Send transactions; sometimes capture's connection ends in the last one, and it is sent again, cut anew."""
        stream = self.shapes[shape_id]
        is_cut = bool(lsns) and self.rng.random() < 0.3
        events = list(stream.events(lsns, until=1 if is_cut else None))
        if lose and events:
            del events[self.rng.randrange(len(events))]
            self.counts["gaps"] += 1
        self.topic += events
        self._sent[shape_id] += lsns
        if is_cut:
            self._restart_capture_of(shape_id)

    def _restart_capture_of(self, shape_id: str) -> None:
        """Everything that is not confirmed, or more, is sent again, beginning with a start."""
        stream = self.shapes[shape_id]
        confirmed = stream.confirmed(self.notified.get(shape_id, LogOffset.before_all()))
        stream.restart()
        from_lsn = self.rng.choice([self._confirmed_lsn, max(confirmed, self._confirmed_lsn)])
        if shape_id not in self.removed:
            again = [lsn for lsn in self._sent[shape_id] if lsn > from_lsn]
            self.topic += stream.events(again)

    def _restart_capture(self) -> None:
        for shape_id in SHAPES:
            self._restart_capture_of(shape_id)

    def _repeat(self) -> None:
        """A producer's duplicate."""
        if self.topic:
            self.topic.append(self.rng.choice(self.topic))

    def _lose(self) -> None:
        shape_id = self.rng.choice(SHAPES)
        stream = self.shapes[shape_id]
        if shape_id not in self.removed:
            stream.grow(2, self._confirmed_lsn)
            self._send(shape_id, self._unsent(shape_id), lose=True)

    def _remove(self) -> None:
        shape_id = self.rng.choice(SHAPES)
        if shape_id not in self.removed and len(self.removed) < len(SHAPES) - 1:
            self.removed.add(shape_id)
            self._ends[shape_id] = LogOffset(max([1000, self._confirmed_lsn, *self.shapes[shape_id].items]) + 10, 0)
            self._put_anywhere(self._entry(shape_id, FlushPolicy(), self._ends[shape_id]))

    def _condense(self) -> None:
        """The slot is confirmed past the end of a removed shape: the others have stored all that is below."""
        for shape_id in sorted(self.removed):
            end = self._ends[shape_id]
            for name in set(SHAPES) - self.removed:
                stream, stored = self.shapes[name], self.notified.get(name, LogOffset.before_all())
                sent = [lsn for lsn in stream.items if self._ended[name] < lsn <= end.tx_offset]
                if any(lsn > stream.confirmed(stored) for lsn in sent):
                    break
            else:
                self._confirmed_lsn = max(self._confirmed_lsn, end.tx_offset + 1)
                self._put_anywhere(self._entry(shape_id, FlushPolicy(), end).condensed())
                self.counts["condensed"] += 1

    def _resync(self) -> None:
        """A removed shape begins again; events of its incarnation may be read before its entries, old ones after."""
        if not self.removed:
            return
        shape_id = self.rng.choice(sorted(self.removed))
        self.removed.discard(shape_id)
        self.shapes[shape_id].begin_again()
        self._ended[shape_id] = max(self.shapes[shape_id].items, default=0)
        self._sent[shape_id] = []
        entry = self._entry(shape_id, FlushPolicy())
        self._put_anywhere(entry)
        self.counts["resynced"] += 1

    def _put_anywhere(self, entry: ShapeEntry) -> None:
        """The two topics have no order: whatever is read of one, the other may be read earlier or later."""
        if self.rng.random() < 0.5:
            self.topic.append(entry)
            return
        shape_id = entry.definition.id
        before = [
            n for n, each in enumerate(self.topic, 1) if isinstance(each, ShapeEntry) and _shape_of(each) == shape_id
        ]
        self.topic.insert(self.rng.randint(max(self._read(), *before), len(self.topic)), entry)

    def _read(self) -> int:
        """How much of the topic any checkpoint has planned to read."""
        current = [] if self._current is None else [self._current.checkpoint]
        return max(each.plans[-1] for each in [self._checkpoint, *self._backups, *current])

    def _entry(self, shape_id: str, limits: FlushPolicy, removed_at: LogOffset | None = None) -> ShapeEntry:
        incarnation = self.shapes[shape_id].incarnation
        definition = ShapeDefinition(shape_id, ("public", "t"), flush=limits, incarnation=incarnation)
        start = LogOffset(max(900, self._confirmed_lsn), 0)
        return ShapeEntry(SOURCE, definition, 1, start, removed_at)

    # Processes and checkpoints

    def _batch(self) -> None:
        """A batch, in a quarter of which the process dies between two steps."""
        self._run(self._interrupt_at(self._die, 8) if self.rng.random() < 0.25 else lambda: None)

    def _take_over(self) -> None:
        """Another process starts on a checkpoint of its own while this one is in a batch, which then goes on."""
        backup = self._checkpoint.copy() if self.rng.random() < 0.5 else Checkpoint()
        # An older process on the same checkpoint is fenced by Spark's own files, too.
        self._run(self._interrupt_at(lambda: self._start(backup), 6))

    def _run(self, step: Callable[[], None]) -> None:
        try:
            if self._current is None:
                self._current = Writers(self, self._checkpoint, step)
            writers = self._current
            first = writers.checkpoint.plans[-1]
            self._now_ms += self.rng.choice([10, 150, 2000])
            writers.run_batch(self.rng.randint(first, len(self.topic)), self._now_ms, self.rng, step)
            self.counts["batches"] += 1
            writers.look()
            if self._current is not writers:
                del writers.checkpoint.states[-1]  # Fenced, it would not commit more than this batch.
        except _KilledError:
            self.counts["kills"] += 1
            self._current = None
        except SinkError as error:
            if "fenced" not in str(error):
                raise
            self.counts["fenced"] += 1

    def _start(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._current = Writers(self, checkpoint, lambda: None)

    def _interrupt_at(self, action: Callable[[], None], steps: int) -> Callable[[], None]:
        left = self.rng.randrange(steps)

        def step() -> None:
            nonlocal left
            left -= 1
            if left == -1:
                action()

        return step

    def _die(self) -> None:
        raise _KilledError

    def _backup(self) -> None:
        self._backups.append(self._checkpoint.copy())
        self._older_logs.append(self.log.copy())

    def _restore(self) -> None:
        """An operator restores a copy of the checkpoint, or has none."""
        self._checkpoint = self.rng.choice(self._backups).copy() if self._backups else Checkpoint()
        self._current = None
        self.counts["restored"] += 1

    def _change_unit(self) -> None:
        """An operator edits ``write_unit``, and restarts the job."""
        self.settings = replace(self.settings, write_unit=self.rng.choice(_UNITS))
        self._current = None

    def _roll_log_back(self) -> None:
        """An operator restores a backup of the log, the job refuses it, and the newer one is found again.

        Only if the backup lacks the last row of all that the state knows: that is what the job looks for.
        """
        older = self.rng.choice([*self._older_logs, Log()])
        states = [WriterGroup(SOURCE, self.settings, packed).durable() for packed in self._checkpoint.states[-1]]
        offsets = [(each.offset, shape) for state in states for shape, each in state.items() if not each.is_removed]
        offset, shape_id = max(offsets, default=(LogOffset.before_all(), "a"))
        if offset.tx_offset < 0 or any(row[:2] >= offset for row in older.rows[shape_id]):
            return
        self._current, newer, self.log = None, self.log, older.copy()
        with pytest.raises(SinkError, match="is older than the checkpoint"):
            Writers(self, self._checkpoint.copy(), lambda: None)
        self.counts["refused"] += 1
        self.log = newer

    # Checks

    def require_marks(self, rows: dict[str, list[LogRow]]) -> None:
        """Where an incarnation begins is marked in the log before its first row."""
        for shape_id, new in rows.items():
            if any(row.tx_offset > self._ended[shape_id] for row in new):
                assert self.log.marks.get(shape_id, 1) == self.shapes[shape_id].incarnation, shape_id

    def notify(self, durable: dict[Key, LogOffset]) -> None:
        for (_, shape_id), offset in durable.items():
            stream = self.shapes[shape_id]
            sent = {lsn: items for lsn, items in stream.items.items() if lsn in self._sent[shape_id]}
            confirmed = replace(stream, items=sent).confirmed_rows(offset)
            missing = confirmed - {row[:3] for row in self.log.rows[shape_id]}
            assert not missing, f"{shape_id} is notified up to {offset}, and its log lacks {sorted(missing)}"
            self.notified[shape_id] = max(offset, self.notified.get(shape_id, offset))

    def _finish(self) -> None:
        self.notified.clear()  # The tracker has lost its checkpoint: what is resent must be said again.
        self._current = None  # A start repeats what is not resent.
        self._restart_capture()
        late = [record for record in self.topic if _shape_of(record) in self.removed]
        self.topic += self.rng.sample(late, min(3, len(late)))
        self._now_ms += 100_000
        for _ in range(3):
            if self._current is None or self._current.checkpoint is not self._checkpoint:
                self._current = Writers(self, self._checkpoint, lambda: None)
            self._current.run_batch(len(self.topic), self._now_ms, self.rng, lambda: None)
            self._now_ms += 100_000
        for shape_id in set(SHAPES) - self.removed:
            rows, stream = self.log.rows[shape_id], self.shapes[shape_id]
            sent = {lsn: stream.items[lsn] for lsn in self._sent[shape_id]}
            # Of an incarnation that has ended, the log has what was written by then.
            rows = [row for row in rows if row.tx_offset > self._ended[shape_id]]
            assert [row[:3] for row in rows] == replace(stream, items=sent).expected_rows(), shape_id
            if rows:
                assert self.notified[shape_id] == rows[-1][:2], f"{shape_id} is notified up to {self.notified}"
        for number, packed in enumerate(self._checkpoint.states[-1]):
            for shape_id, known in WriterGroup(SOURCE, self.settings, packed).durable().items():
                assert known.is_removed == (shape_id in self.removed), f"group {number} has {shape_id}"
        for rows in self.log.rows.values():
            chunks = [row.chunk for row in rows]
            assert chunks == sorted(chunks), "a chunk goes back"


_UNITS: Final[tuple[WriteUnit, WriteUnit]] = ("txn", "txn_fragment")
_WEIGHTS: Final = {
    "publish": 30,
    "batch": 35,
    "restart_capture": 4,
    "repeat": 4,
    "lose": 2,
    "remove": 3,
    "condense": 12,
    "resync": 4,
    "take_over": 6,
    "backup": 4,
    "restore": 3,
    "change_unit": 2,
    "roll_log_back": 2,
}


def histories(first: int, end: int) -> Iterator[WriterSimulation]:
    """Those of a range of seeds, played."""
    for seed in range(first, end):
        simulation = WriterSimulation(seed)
        try:
            simulation.run()
        except AssertionError as error:
            raise AssertionError(f"history {seed}: {error}") from error
        yield simulation
