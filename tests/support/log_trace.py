"""``LogTrace``: what a run has done to a shape log, commit by commit, judged by what its model allows.

Delta's log has every version of the table: the app transactions of its commit say whether that is a claim, an append, a
snapshot or fold, or a merge, and its files what rows it has added and removed. The topic of shape changes has what was
published, and that of flushes what was notified, each with its time. So a run can be retold exactly, kills included,
without anything that the writers log.

Each commit and notification must be a step that ``docs/model/ShapeLog.tla`` allows (:mod:`tests.support.log_rules`).
A merge must leave all rows as they are, and a fold those that its shape had at the horizon. A notification must come
after the commit that it is about: files and records have the time of this machine, in milliseconds.

A violation is an ``AssertionError``, even if nothing was lost by it.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple, cast

import pyarrow.parquet as pq

from flushtracker.events.stream_events import FlushNotification, ShapeChangesEvent
from flushtracker.kafka.kafka_config import KafkaConfig
from flushtracker.shape_log.log_row import COMMIT
from flushtracker.shape_log.shape_snapshot import SNAPSHOT, ShapeSnapshot
from flushtracker.shape_log.table.claim import APP_ID
from flushtracker.shape_log.table.cut_log import CUT_APP_ID, REGISTRY_APP_ID
from flushtracker.shape_log.table.snapshots import REPLACED_APP_ID
from flushtracker.wal.changes import LogItem, Operation
from flushtracker.wal.log_offset import LogOffset
from tests.support.fold import fold_items
from tests.support.log_rules import LogRules
from tests.support.topic_tails import TailRecord, TopicTails

_BATCH_BITS: Final = 32
_CUTS: Final = tuple(each.partition("{")[0] for each in (CUT_APP_ID, REGISTRY_APP_ID))


class LogRow(NamedTuple):
    """A row of the table, with the columns that decide what it is."""

    shape_id: str
    tx_offset: int
    op_offset: int
    operation: str
    key: str | None
    value: str | None
    xid: int
    chunk: int

    @property
    def offset(self) -> LogOffset:
        return LogOffset(self.tx_offset, self.op_offset)


@dataclass
class Step:
    """A version of the table: what its commit says, and when it was there, in ms since 1970."""

    version: int
    at_ms: int
    transactions: dict[str, int] = field(default_factory=dict)
    added: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    changes_data: bool = False

    @classmethod
    def read(cls, version: int, path: Path) -> "Step":
        step = cls(version, path.stat().st_mtime_ns // 1_000_000)
        for action in map(json.loads, path.read_text().splitlines()):
            if "txn" in action:
                step.transactions[action["txn"]["appId"]] = action["txn"]["version"]
            for kind, paths in (("add", step.added), ("remove", step.removed)):
                if kind in action:
                    paths.append(action[kind]["path"])
                    step.changes_data = step.changes_data or action[kind]["dataChange"]
        return step


@dataclass
class _ShapeRows:
    """The rows that the table has of a shape: of its changes by offset, and of its snapshots by attempt.

    ``reached``: where the changes have ended, each with when that was durable.
    """

    changes: dict[LogOffset, LogRow] = field(default_factory=dict)
    snapshots: dict[int, list[LogRow]] = field(default_factory=dict)
    snapshot: ShapeSnapshot | None = None
    reached: list[tuple[LogOffset, int]] = field(default_factory=list)

    def folded(self, horizon: LogOffset) -> dict[str, dict[str, str]]:
        """The rows of the shape after the transaction that ends at the horizon."""
        first = {} if self.snapshot is None else fold_items(map(_item, self._inserts(self.snapshot.attempt)))
        changes = (row for offset, row in sorted(self.changes.items()) if offset <= horizon and row.operation != COMMIT)
        return fold_items((_item(row) for row in changes if not self._is_contained(row)), first)

    def _inserts(self, attempt: int) -> Iterable[LogRow]:
        return (row for row in self.snapshots[attempt] if row.operation != SNAPSHOT)

    def _is_contained(self, row: LogRow) -> bool:
        return self.snapshot is not None and self.snapshot.contains(row.tx_offset, row.xid)


class LogTrace:
    """Traces the log in ``folder``, for one source; its shapes ``without_snapshot`` have no rows before their changes.

    What is done must be told after what was published. ``counts`` has how many steps of each kind were judged.
    """

    def __init__(self, folder: Path, without_snapshot: Collection[str] = ()) -> None:
        self._folder = folder
        self.rules = LogRules[LogOffset](LogOffset.before_all(), without_snapshot)
        self.counts = Counter[str]()
        self._next_version = 0
        self._shapes = defaultdict[str, _ShapeRows](_ShapeRows)

    def publish(self, event: ShapeChangesEvent) -> None:
        """An event of shape changes was published, maybe again."""
        offsets = [item.offset for item in event.items]
        if event.commit is not None:
            offsets.append(LogOffset.last_of(event.last_log_offset.tx_offset))
        self.rules.publish(event.shape_id, offsets)

    def steps(self) -> list[Step]:
        """The versions that were committed since the last time."""
        found = list[Step]()
        while (path := self._folder / "_delta_log" / f"{self._next_version:020}.json").exists():
            found.append(Step.read(self._next_version, path))
            self._next_version += 1
        return found

    def take(self, step: Step) -> None:
        """Judge a version of the table; in order. A cut is no step of the model, and changes none of its state."""
        if any(app_id.startswith(_CUTS) for app_id in step.transactions):
            assert all(app_id.startswith(_CUTS) for app_id in step.transactions), f"{step} is not a cut alone"
            assert (step.added, step.removed) == ([], []), f"{step} records a cut, and does more"
            self.counts["cuts"] += 1
            return
        known = {APP_ID: self._claim_or_append, REPLACED_APP_ID: self._replace}
        transactions = step.transactions
        assert len(transactions) <= 1, f"{step} is no step of the model"
        assert transactions.keys() <= known.keys(), f"{step} is no step of the model"
        for app_id, number in transactions.items():
            known[app_id](step, number)
        if not transactions and (step.added or step.removed):
            self._merge(step)

    def notify(self, event: FlushNotification, at_ms: int) -> None:
        """Judge a notification that was published at this time; those of a shape in order, and after :meth:`take`."""
        if event.type != "flushed":
            return
        self.rules.notify(event.shape_id, event.offset)
        since_ms = next(at for end, at in self._shapes[event.shape_id].reached if event.offset <= end)
        assert since_ms <= at_ms, (
            f"shape {event.shape_id} was notified up to {event.offset} {since_ms - at_ms} ms before its log had that"
        )
        self.counts["notifications"] += 1

    def _claim_or_append(self, step: Step, number: int) -> None:
        # An even number is a claim, and the next odd one that of its appends.
        claim, batch = number >> _BATCH_BITS, number & (1 << _BATCH_BITS) - 1
        assert not step.removed, f"{step} removes files"
        if claim % 2 == 0:
            assert (batch, step.added) == (0, []), f"{step} claims, and does more"
            self.rules.claim(claim // 2)
            self.counts["claims"] += 1
            return
        by_shape = defaultdict[str, list[LogOffset]](list)
        for row in self._read(step.added):
            by_shape[row.shape_id].append(row.offset)
            self._shapes[row.shape_id].changes[row.offset] = row
        self.rules.append(claim // 2, batch, by_shape)
        for shape_id in by_shape:
            self._shapes[shape_id].reached.append((self.rules.shape(shape_id).end, step.at_ms))
        self.counts["appends"] += 1

    def _merge(self, step: Step) -> None:
        """Upkeep moves rows from files to others."""
        assert not step.changes_data, f"{step} changes data, and is no step of the model"
        assert Counter(self._read(step.added)) == Counter(self._read(step.removed)), f"{step} merges to other rows"
        self.counts["merges"] += 1

    def _replace(self, step: Step, number: int) -> None:
        self.rules.replace(number)
        assert step.changes_data, f"{step} says that it changes no data"
        before, after = Counter(self._read(step.removed)), Counter(self._read(step.added))
        removed, added = [*(before - after).elements()], [*(after - before).elements()]
        ends = {row.shape_id: ShapeSnapshot.parse(row.chunk, row.value) for row in added if row.operation == SNAPSHOT}
        assert ends, f"{step} has no snapshot"
        assert {row.shape_id for row in [*removed, *added]} <= ends.keys(), f"{step} replaces other rows"
        for shape_id, snapshot in ends.items():
            mine, gone = ([row for row in rows if row.shape_id == shape_id] for rows in (added, removed))
            assert {(row.tx_offset, row.chunk) for row in mine} == {(0, snapshot.attempt)}, f"{step} adds other rows"
            if snapshot.is_fold:
                self._fold(shape_id, snapshot, mine, gone)
            else:
                self._take_snapshot(shape_id, snapshot)
                assert not gone, f"{step} takes a snapshot, and removes rows"
            shape = self._shapes[shape_id]
            shape.snapshots[snapshot.attempt], shape.snapshot = mine, snapshot

    def _take_snapshot(self, shape_id: str, snapshot: ShapeSnapshot) -> None:
        shape = self._shapes[shape_id]

        def contains(each: LogOffset) -> bool:
            # Of what is not appended yet, no xid is known. All that a snapshot contains commits before its end.
            row = shape.changes.get(each)
            return each.tx_offset < snapshot.lsn if row is None else snapshot.contains(each.tx_offset, row.xid)

        self.rules.take_snapshot(shape_id, snapshot.attempt, contains)
        self.counts["snapshots"] += 1

    def _fold(self, shape_id: str, snapshot: ShapeSnapshot, added: list[LogRow], removed: list[LogRow]) -> None:
        """The rows up to the horizon, and of earlier snapshots, give way to what they fold to; its commit stays."""
        shape, horizon = self._shapes[shape_id], LogOffset.last_of(snapshot.lsn)
        old = [row for offset, row in shape.changes.items() if offset < horizon]
        expected = Counter([*old, *chain.from_iterable(shape.snapshots.values())])
        assert Counter(removed) == expected, f"the fold of {shape_id} up to {horizon} removes other rows"
        assert horizon in shape.changes, f"{shape_id} is folded up to {horizon}, where no transaction has ended"
        rows = fold_items(_item(row) for row in added if row.operation != SNAPSHOT)
        assert rows == shape.folded(horizon), f"the fold of {shape_id} up to {horizon} has other rows than the log had"
        self.rules.fold(shape_id, snapshot.attempt, horizon)
        shape.changes = {offset: row for offset, row in shape.changes.items() if offset >= horizon}
        shape.snapshots = {}
        self.counts["folds"] += 1

    def _read(self, paths: Iterable[str]) -> Iterator[LogRow]:
        for path in paths:
            table = pq.read_table(self._folder / path, columns=list(LogRow._fields))
            yield from map(LogRow._make, zip(*(table[name].to_pylist() for name in LogRow._fields), strict=True))


def _item(row: LogRow) -> LogItem:
    value = None if row.value is None else json.loads(row.value)
    return LogItem(row.offset, cast("Operation", row.operation), row.key, value)


class TopicLogTrace:
    """A :class:`LogTrace` of what a run has in its topics; close it when done. ``counts`` are those of the trace."""

    def __init__(self, kafka: KafkaConfig, folder: Path, without_snapshot: Collection[str] = ()) -> None:
        self._flushes, self._changes = (
            TopicTails(kafka.bootstrap_servers, [topic], kafka.partitions)
            for topic in (kafka.topics.flushes, kafka.topics.shape_changes)
        )
        self._trace = LogTrace(folder, without_snapshot)

    @property
    def counts(self) -> Counter[str]:
        return self._trace.counts

    def check(self) -> None:
        """Judge what was done since the last time."""
        # In this order: what is notified is in the log by then, and what is in the log was published.
        notified, steps, published = _records(self._flushes), self._trace.steps(), _records(self._changes)
        for record in published:
            self._trace.publish(ShapeChangesEvent.from_json(record.value))
        for step in steps:
            self._trace.take(step)
        for record in notified:
            self._trace.notify(FlushNotification.from_json(record.value), record.at_ms)

    def close(self) -> None:
        self._flushes.close()
        self._changes.close()


def _records(tails: TopicTails) -> list[TailRecord]:
    (records,) = tails.read_records().values()
    return records
