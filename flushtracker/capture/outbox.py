"""``Outbox``: everything that capture publishes, in an order that is safe whenever capture dies.

A shape's changes have one key, hence one partition, which the publisher fills without a gap. So what a writer has is
always a prefix of what it is sent, and after a restart everything from the confirmed LSN on comes again. Between topics
no order is needed: the tracker takes a flush that comes before its fragment, and waits for one whose changes are not
there yet. What must come before all else is the registry's entry: it is confirmed before anything is routed by it.

A fragment is published in layers: where a shape depends on another one that is in the same fragment, its changes wait
until those of the other are confirmed.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol

from flushtracker.capture.delivery_window import DeliveryWindow
from flushtracker.errors import BrokerError
from flushtracker.events.fragment_sequencer import SequencedFragment
from flushtracker.events.registry_events import RegistryEntry
from flushtracker.events.stream_events import FlushNotification, FragmentEvent, ShapeChangesEvent
from flushtracker.kafka.kafka_config import Topics
from flushtracker.kafka.records import Event, record_of
from flushtracker.kafka.topic_rules import MAX_MESSAGE_BYTES
from flushtracker.wal.lsn import format_lsn

_SHAPES_NAMED: Final = 3
_KEY_BYTES: Final = 4_096
_PATIENCE_S: Final = 1e9
"""The publisher itself knows how long to wait for brokers that are away."""


class Publisher(Protocol):
    """What is needed of ``KafkaPublisher``: called by one thread, calls back from within its own methods."""

    def publish(
        self, topic: str, key: str | bytes, value: str | bytes, on_confirmed: Callable[[], None] | None = None
    ) -> None: ...

    def poll(self, timeout_s: float = 0.0) -> None: ...

    def flush(self, timeout_s: float) -> None: ...


class Outbox:
    """Publishes to ``topics``; ``on_published`` hears of each commit LSN up to which everything is confirmed.

    While the brokers are away every method waits, and raises ``BrokerError`` when the publisher gives up.
    """

    def __init__(self, publisher: Publisher, topics: Topics, on_published: Callable[[int], None]) -> None:
        self._publisher = publisher
        self._topics = topics.by_role()
        self._on_published = on_published
        self._window = DeliveryWindow()
        self.layers: Mapping[str, int] = {}
        """The layer of each shape that depends on another one; others are in layer 0."""

    def poll(self) -> None:
        """Take note of what was confirmed meanwhile."""
        self._publisher.poll()

    def publish_fragment(self, published: SequencedFragment) -> None:
        """Queue a fragment with its shape changes; waits only for room, and between layers.

        Raises:
            BrokerError: an event is larger than a topic may take.
        """
        event = published.fragment
        commit_lsn = None if event.commit is None else event.lsn
        fragment = self._window.begin(len(published.shape_changes) + 1, commit_lsn)

        def confirmed() -> None:
            published_lsn = self._window.confirm(fragment)
            if published_lsn is not None:
                self._on_published(published_lsn)

        layer = 0
        parts = sorted(published.shape_changes, key=self._layer) if self.layers else published.shape_changes
        for index, part in enumerate(parts):
            if self._layer(part) > layer:
                layer = self._layer(part)
                if index:
                    self.wait_until_confirmed()
            self._publish(part, confirmed, of=event)
        self._publish(event, confirmed, of=event)

    def publish_entries(self, entries: Iterable[RegistryEntry]) -> None:
        """Publish entries of the registry, and wait until all are confirmed: only then they may take effect."""
        for entry in entries:
            self._publish(entry)
        self.wait_until_confirmed()

    def publish_removal(self, removal: FlushNotification) -> None:
        """Publish that a shape is gone."""
        self._publish(removal)

    def wait_until_confirmed(self) -> None:
        """Return when everything published so far is confirmed, however long the brokers take."""
        self._publisher.flush(_PATIENCE_S)

    def _publish(
        self, event: Event, on_confirmed: Callable[[], None] | None = None, *, of: FragmentEvent | None = None
    ) -> None:
        """Queue one event; ``of`` is the fragment that it belongs to."""
        record = record_of(event)
        value = record.value if of is None else _bounded(of, record.value)
        self._publisher.publish(self._topics[record.stream], record.key, value, on_confirmed)

    def _layer(self, part: ShapeChangesEvent) -> int:
        return self.layers.get(part.shape_id, 0)


def _bounded(event: FragmentEvent, text: str) -> str:
    """The event's JSON, if a topic takes it; characters are counted first, which is cheap and never too many."""
    if 4 * len(text) <= MAX_MESSAGE_BYTES or len(text.encode()) <= MAX_MESSAGE_BYTES - _KEY_BYTES:
        return text
    names = [shape.shape_id for shape in event.shapes[:_SHAPES_NAMED]]
    more = len(event.shapes) - len(names)
    raise BrokerError(
        f"an event of transaction {event.xid} at {format_lsn(event.lsn)}, for {', '.join(names)}"
        f"{f' and {more} more shapes' if more else ''}, has {len(text.encode())} bytes, over the topics' limit of "
        f"{MAX_MESSAGE_BYTES}; lower max_batch_size, or name fewer columns in the shape under a new id"
    )
