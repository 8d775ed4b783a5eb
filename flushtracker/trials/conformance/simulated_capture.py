"""``SimulatedCapture``: publishes changes of simulated sources as capture does, and reports them to the judge."""

from collections.abc import Iterator
from random import Random
from typing import Final

from flushtracker.events.records import Event, record_of
from flushtracker.events.registry_events import ShapeEntry, SourceEntry
from flushtracker.events.snapshot_events import SnapshotEnd, SnapshotEvent, SnapshotRow
from flushtracker.events.stream_events import ShapeChangesEvent
from flushtracker.kafka.kafka_config import KafkaConfig
from flushtracker.kafka.publisher import KafkaPublisher
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.trials.conformance.judge import Judge
from flushtracker.trials.conformance.rows_judge import Shape
from flushtracker.trials.conformance.simulated_source import SimulatedConnection, SimulatedSource
from flushtracker.trials.conformance.simulated_table import rows_after, touches
from flushtracker.wal.contained_transactions import ContainedTransactions
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.names import LOG_WRITER

_AHEAD: Final = 4
_UNSEEN_AMONG: Final = 6
_UNSEEN_SHARE: Final = 0.5
_TORN_SHARE: Final = 0.5


class SimulatedSnapshots:
    """The snapshots of one shape; they may contain transactions that have not been sent."""

    def __init__(self, source: SimulatedSource, shape_id: str, rng: Random) -> None:
        self.source, self.shape_id, self._rng = source, shape_id, rng
        self._attempt = 0
        self._incarnation = source.incarnations[shape_id]
        self._events: Iterator[SnapshotEvent] = iter(())
        self._late: list[SnapshotEvent] = []

    def next_events(self) -> list[SnapshotEvent]:
        """Return the next event: of the current attempt, or a late one of the previous attempt, as of a frozen
        process.
        """
        event = next(self._events, None)
        if event is not None:
            return [event]
        first, *others = events = self.attempt(self._rng.randint(0, _AHEAD))
        done = self._rng.randrange(len(events)) if self._rng.random() < _TORN_SHARE else len(events)
        self._events = iter([*self._late, *others[:done]])
        self._late = others[done:] if self._rng.random() < 0.5 else []
        return [first]

    def attempt(self, ahead: int) -> list[SnapshotEvent]:
        """Return all events of a new attempt, after ``ahead`` further transactions; some transactions are not visible
        to it.
        """
        source, rng = self.source, self._rng
        for _ in range(ahead):
            source.transaction(len(source.transactions))
        self._attempt += rng.randint(1, 1000)
        self._incarnation = source.incarnations[self.shape_id]
        unseen = self._unseen()
        rows = source.tables[self.shape_id].first_rows
        for transaction in source.transactions:
            if transaction.xid not in unseen:
                rows = rows_after(rows, source.items_of(transaction, self.shape_id))
        contained = ContainedTransactions(
            source.next_lsn - rng.randint(1, 90), tuple((xid, xid) for xid in sorted(unseen))
        )
        found, left, number = list[SnapshotEvent](), [SnapshotRow(key, row) for key, row in rows.items()], 0
        while left or not found:
            count = rng.randint(0, 5)
            found.append(self._event(number, tuple(left[:count])))
            left, number = left[count:], number + 1
        return [*found, self._event(number, (), SnapshotEnd(len(rows), contained))]

    def _event(self, number: int, rows: tuple[SnapshotRow, ...], end: SnapshotEnd | None = None) -> SnapshotEvent:
        incarnation = self._incarnation.number
        return SnapshotEvent(self.source.name, self.shape_id, self._attempt, number, rows, end, incarnation)

    def _unseen(self) -> set[int]:
        """Pick some of the last transactions so that no later visible one depends on their rows; returns their xids."""
        unseen, later = set[int](), set[str]()
        for transaction in self.source.transactions[: -_UNSEEN_AMONG - 1 : -1]:
            keys = touches(self.source.items_of(transaction, self.shape_id))
            # Transactions up to ``starts_after`` are visible to every snapshot of this incarnation.
            if keys is None or transaction.lsn <= self._incarnation.starts_after:
                break
            if keys.isdisjoint(later) and self._rng.random() < _UNSEEN_SHARE:
                unseen.add(transaction.xid)
            else:
                later |= keys
        return unseen


_SOURCES: Final = ("7301/1/conformance", "7302/1/conformance")
_SHAPES: Final = ("users", 'naïve "q"', "orders")
_OF_ANOTHER: Final = "accounts"
"""A shape of another writer on the same topics: of ``flushtracker write``, unless that one is under test.

With rows, the second source has it for a third writer, whose snapshots are on the topics too.
"""
_ANOTHER: Final = "another"
_RECENT_EVENTS: Final = 50
_SNAPSHOT_SHARE: Final = 0.1


class SimulatedCapture:
    """Two sources with three shapes each, and one shape of another writer. Close it when done.

    ``with_rows``: two of the three shapes have snapshots, and so has one shape of another writer.
    """

    def __init__(self, config: KafkaConfig, judge: Judge, rng: Random, *, with_rows: bool = False) -> None:
        self._topics = config.topics.by_role()
        self._judge = judge
        self._rng = rng
        self._publisher = KafkaPublisher(config)
        shapes_with_rows = _SHAPES[:2] if with_rows else ()
        other = _ANOTHER if judge.writer == LOG_WRITER else LOG_WRITER
        others = zip(_SOURCES, (other, _ANOTHER if with_rows else other), strict=True)
        self._sources = [
            SimulatedSource(
                name,
                (*_SHAPES, _OF_ANOTHER),
                rng,
                (*shapes_with_rows, _OF_ANOTHER) if with_rows and writer == _ANOTHER else shapes_with_rows,
                {_OF_ANOTHER: writer},
                judge.writer,
            )
            for name, writer in others
        ]
        self._snapshots = [
            SimulatedSnapshots(source, shape_id, rng) for source in self._sources for shape_id in source.tables
        ]
        self._connections = [SimulatedConnection(source, 0, rng) for source in self._sources]
        self._confirmed = [0] * len(_SOURCES)
        self._recent: list[ShapeChangesEvent] = []

    def register(self, timeout_s: float) -> None:
        """Publish the registry entries of the sources and their shapes."""
        for source in self._sources:
            before = LogOffset.just_before(source.first_lsn)
            self._publish(SourceEntry(source.name, before, publication="conformance"))
            for shape_id in source.shape_ids:
                shape, writer = (source.name, shape_id), source.writers[shape_id]
                self._publish(_entry(shape, before, snapshot=shape_id in source.tables, writer=writer))
        self._publisher.flush(timeout_s)

    def send_something(self) -> None:
        """Send the next fragment of a source; sometimes send a duplicate, or reconnect and resend.

        With snapshots, sometimes also send the next part of one.
        """
        if self._snapshots and self._rng.random() < _SNAPSHOT_SHARE:
            self._send_snapshot(self._rng.choice(self._snapshots).next_events())
        chance = self._rng.random()
        if chance < 0.05:
            self.reconnect(self._any_source())
        elif chance < 0.15 and self._recent:
            self._send(self._rng.choice(self._recent))
        else:
            self.send_fragment()

    def send_fragment(self, number: int | None = None) -> None:
        """Send the next fragment of the source with this number, by default of a random one."""
        for event in self._connections[self._any_source() if number is None else number].next_events():
            self._send(event)

    def open_a_transaction(self, timeout_s: float) -> dict[Shape, LogOffset]:
        """Send fragments until the writer has been sent items of a transaction, but not its commit.

        Returns how far each shape was sent that transaction, once the brokers have it.
        """
        while True:
            events = self._connections[self._any_source()].next_events()
            for event in events:
                self._send(event)
            own = [event for event in events if event.items and event.writer == self._judge.writer]
            if own and own[0].commit is None:
                self._publisher.flush(timeout_s)
                return {(event.source, event.shape_id): event.last_log_offset for event in own}

    def reconnect(self, number: int) -> None:
        """Reconnect at the confirmed LSN (the first transaction that is not completely notified) or a little
        before it.
        """
        source, judge = self._sources[number], self._judge
        confirmed = self._confirmed[number]
        while confirmed < source.committed and judge.has_notified(source.last_items(confirmed)):
            confirmed += 1
        self._confirmed[number] = confirmed
        first = self._rng.randint(max(0, confirmed - 3), confirmed)
        self._connections[number] = SimulatedConnection(source, first, self._rng)

    def reconnect_all(self) -> None:
        for number in range(len(self._sources)):
            self.reconnect(number)

    def lose_an_event(self) -> Shape:
        """Send changes of the first source until an event of one of its shapes is dropped; returns that shape."""
        while True:
            lost = None
            for event in self._connections[0].next_events():
                if lost is None and event.items and not event.start and event.writer == self._judge.writer:
                    lost = event.source, event.shape_id
                    self._judge.lost(lost)
                else:
                    self._send(event)
            if lost is not None:
                return lost

    def heal(self, shape: Shape) -> None:
        """Reconnect, so that the lost event is resent."""
        self._judge.healed(shape)
        self.reconnect(0)

    def begin_a_shape_again(self) -> None:
        """Begin a shape with rows again, while the writer may not have read all of its previous incarnation.

        An attempt at a snapshot of the previous incarnation ends only after that.
        """
        snapshots = self._rng.choice([each for each in self._snapshots if each.shape_id != _OF_ANOTHER])
        source, shape = snapshots.source, (snapshots.source.name, snapshots.shape_id)
        *begin, end = snapshots.attempt(0)
        self._send_snapshot(begin)
        begun = source.begin_again(snapshots.shape_id)
        self._judge.rows.begun(shape, begun)
        starts_after, writer = LogOffset(begun.starts_after, 0), self._judge.writer
        self._publish(_entry(shape, starts_after, snapshot=True, incarnation=begun.number, writer=writer))
        self._send_snapshot([end])

    def remove_a_shape(self) -> None:
        """Remove a shape of the second source, while the writer may not have read all of its changes."""
        source, shape_id = self._sources[1], _SHAPES[-1]
        before, end = LogOffset.just_before(source.first_lsn), LogOffset(source.next_lsn, 0)
        self._judge.removed.add((source.name, shape_id))
        removed = _entry((source.name, shape_id), before, end, writer=self._judge.writer)
        self._publish(removed)
        for _ in range(10):
            self.send_fragment(1)
        source.shape_ids.remove(shape_id)
        self._publish(removed.condensed())
        for _ in range(10):
            self.send_something()

    def send_torn_and_whole_snapshots(self, ahead: int) -> None:
        """For each shape with rows, send an attempt without its end, and then a complete one.

        The complete one contains ``ahead`` transactions that have not been sent.
        """
        for snapshots in self._snapshots:
            self._send_snapshot(snapshots.attempt(0)[:-1])
            self._send_snapshot(snapshots.attempt(ahead))

    def complete(self, timeout_s: float, leave: int = 0) -> None:
        """Send all transactions to the end, except the last ``leave``; returns once the brokers have them."""
        for connection in self._connections:
            while not connection.is_at_end(leave):
                for event in connection.next_events():
                    self._send(event)
        self._publisher.flush(timeout_s)

    def poll(self) -> None:
        """Serve the Kafka client; raises its error if it has failed."""
        self._publisher.poll()

    def close(self) -> None:
        self._publisher.close()

    def _any_source(self) -> int:
        return self._rng.randrange(len(self._sources))

    def _send(self, event: ShapeChangesEvent) -> None:
        self._judge.sent(event)
        self._publish(event)
        self._recent = [*self._recent[-_RECENT_EVENTS:], event]

    def _send_snapshot(self, events: list[SnapshotEvent]) -> None:
        for event in events:
            if event.shape_id != _OF_ANOTHER:
                self._judge.rows.snapshot_sent(event)
            self._publish(event)

    def _publish(self, event: Event) -> None:
        record = record_of(event)
        self._publisher.publish(self._topics[record.stream], record.key, record.value)


def _entry(
    shape: Shape,
    starts_after: LogOffset,
    removed_at: LogOffset | None = None,
    *,
    snapshot: bool = False,
    incarnation: int = 1,
    writer: str,
) -> ShapeEntry:
    source, shape_id = shape
    definition = ShapeDefinition(shape_id, ("public", "t"), snapshot=snapshot, incarnation=incarnation, writer=writer)
    return ShapeEntry(source, definition, 16_400, starts_after, removed_at)
