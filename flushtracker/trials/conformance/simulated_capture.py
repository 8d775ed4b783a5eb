"""``SimulatedCapture``: publishes the changes of simulated sources as capture does, and tells the judge."""

from random import Random
from typing import Final

from flushtracker.events.records import Event, record_of
from flushtracker.events.registry_events import ShapeEntry, SourceEntry
from flushtracker.events.snapshot_events import SnapshotEvent
from flushtracker.events.stream_events import ShapeChangesEvent
from flushtracker.kafka.kafka_config import KafkaConfig
from flushtracker.kafka.publisher import KafkaPublisher
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.trials.conformance.judge import Judge
from flushtracker.trials.conformance.rows_judge import Shape
from flushtracker.trials.conformance.simulated_snapshots import SimulatedSnapshots
from flushtracker.trials.conformance.simulated_source import SimulatedConnection, SimulatedSource
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.names import LOG_WRITER

_SOURCES: Final = ("7301/1/conformance", "7302/1/conformance")
_SHAPES: Final = ("users", 'naïve "q"', "orders")
_OF_ANOTHER: Final = "accounts"
"""On the same topics, a shape of another writer: of ``flushtracker write``, if it is not the one under test.

With rows, that of the second source is of a third one, whose snapshots are on the topics, too.
"""
_ANOTHER: Final = "another"
_RECENT_EVENTS: Final = 50
_SNAPSHOT_SHARE: Final = 0.1


class SimulatedCapture:
    """Two sources of three shapes each, and one of another writer; close it when done.

    ``with_rows``: two of the three have snapshots, and so has one of another writer.
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
                *(name, (*_SHAPES, _OF_ANOTHER), rng),
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
        """Send the next fragment of a source; sometimes send a duplicate, or reconnect, which resends.

        With snapshots, sometimes send a part of one, too.
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
        """Send the next fragment of the source with this number, or of any."""
        for event in self._connections[self._any_source() if number is None else number].next_events():
            self._send(event)

    def reconnect(self, number: int) -> None:
        """Reconnect at the confirmed LSN, the first transaction that is not completely notified, or a little before."""
        source, judge = self._sources[number], self._judge
        confirmed = self._confirmed[number]
        while confirmed < source.committed and judge.has_notified(source.last_items(confirmed)):
            confirmed += 1
        self._confirmed[number] = confirmed
        first = self._rng.randint(max(0, confirmed - 3), confirmed)
        self._connections[number] = SimulatedConnection(source, first, self._rng)

    def reconnect_all(self) -> None:
        """Reconnect for each source."""
        for number in range(len(self._sources)):
            self.reconnect(number)

    def lose_an_event(self) -> Shape:
        """Send the first source's changes until one event of a shape is lost; returns the shape."""
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
        """Reconnect, which sends the lost event of the shape again."""
        self._judge.healed(shape)
        self.reconnect(0)

    def begin_a_shape_again(self) -> None:
        """Begin a shape with rows again, while the writer may not have read all that is of the incarnation before.

        An attempt at a snapshot of that ends only then.
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
        """Remove a shape of the second source while the writer may not have read some of its changes yet."""
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
        """For each shape with rows: most of an attempt, and then another one, which is complete.

        They contain ``ahead`` transactions more than are sent.
        """
        for snapshots in self._snapshots:
            self._send_snapshot(snapshots.attempt(0)[:-1])
            self._send_snapshot(snapshots.attempt(ahead))

    def complete(self, timeout_s: float, leave: int = 0) -> None:
        """Send all transactions completely, but the last to ``leave``; returns once the brokers have them."""
        for connection in self._connections:
            while not connection.is_at_end(leave):
                for event in connection.next_events():
                    self._send(event)
        self._publisher.flush(timeout_s)

    def poll(self) -> None:
        """Let the client work; raises what it has failed with."""
        self._publisher.poll()

    def close(self) -> None:
        """Close the connections to the brokers."""
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
