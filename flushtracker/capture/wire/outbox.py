"""``Outbox``: publishes everything that capture sends, in an order that is safe whenever capture is killed.

A shape's changes have one key, hence one partition, which the publisher fills without gaps. So a writer always has a
prefix of its shape's changes, and after a restart everything from the confirmed LSN on is resent. No order between
topics is needed: the tracker accepts a flush before its fragment, and keeps a fragment pending until its changes are
flushed. Only registry entries must come first: each is confirmed before anything is routed by it, or, if a later
process can rediscover it, before anything routed by it may be confirmed to the server.

A fragment is published in layers: if a shape depends on another shape in the same fragment, its changes are published
after the other's are confirmed.

The brokers confirm events of different topics in any order. A fragment counts as published once all of its events are
confirmed *and* all fragments before it are published. Only then may its transaction be confirmed to the server.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from flushtracker.capture.wire.event_limit import EventLimit
from flushtracker.config.streams import FLUSHES
from flushtracker.errors import FlushtrackerError
from flushtracker.events.fragment_sequencer import FragmentSequencer
from flushtracker.events.records import Event, Record, fitting_records, flush_keys, record_of
from flushtracker.events.registry_events import RegistryEntry
from flushtracker.events.stream_events import FlushNotification, ShapeChangesEvent
from flushtracker.events.topic_rules import Topics
from flushtracker.shapes.routed_fragment import RoutedFragments

_NO_TIMEOUT_S: Final = 1e9
"""The publisher applies its own ``retry_timeout`` to unavailable brokers."""


class Publisher(Protocol):
    """The part of ``KafkaPublisher`` that capture uses, from one thread except ``abandon``; it calls the callbacks."""

    gate: Callable[[], bool] | None

    def publish(
        self, topic: str, key: str | bytes, value: str | bytes | None, on_confirmed: Callable[[], None] | None = None
    ) -> None: ...

    def poll(self, timeout_s: float = 0.0) -> None: ...

    def flush(self, timeout_s: float) -> None: ...

    def abandon(self, failure: FlushtrackerError) -> None: ...


class Outbox:
    """Publishes to ``topics``; calls ``on_published`` with each commit LSN up to which everything is confirmed.

    An event of several changes over the ``limit`` is published as several events.

    While the brokers are unavailable every method blocks, and raises ``BrokerError`` when the publisher gives up.
    """

    def __init__(
        self, publisher: Publisher, topics: Topics, on_published: Callable[[int], None], limit: EventLimit
    ) -> None:
        self._publisher = publisher
        self.limit = limit
        self._topics = topics.by_role()
        self._window = DeliveryWindow(on_published)
        self._sequencer: FragmentSequencer | None = None
        self.last_lsn = -1
        self.layers: Mapping[str, int] = {}
        """The layer of each shape that depends on others; all other shapes are in layer 0."""

    @property
    def pending_fragments(self) -> int:
        """The number of unpublished fragments, and of entries between them."""
        return self._window.pending_fragments

    def require_unfenced(self) -> None:
        """Raise what the publisher's gate raises, even if there is nothing to publish."""
        if self._publisher.gate is not None:
            self._publisher.gate()

    def poll(self) -> None:
        """Process the confirmations that have arrived."""
        self._publisher.poll()

    def begin_chain(self, source: str, confirmed_lsn: int) -> None:
        """A new connection sends from ``confirmed_lsn`` on, and what :meth:`publish_fragment` gets begins there."""
        self._sequencer = FragmentSequencer(source, confirmed_lsn, max_event_bytes=self.limit.max_event_bytes)

    def forget(self, shape_id: str) -> None:
        """A shape was removed: no changes are routed to it any more."""
        if self._sequencer is not None:
            self._sequencer.forget(shape_id)

    def publish_fragment(self, routed: RoutedFragments) -> None:
        """Queue a fragment with its shape changes; blocks only while the queue is full, and between layers.

        Raises:
            GapError: the fragment is not past the one before it.
            BrokerError: an event is larger than a topic accepts.
        """
        if self._sequencer is None:
            raise RuntimeError("a fragment is published before a chain has begun")
        events = self._sequencer.sequence(routed.fragment, routed.parts)
        count = len(events.shape_changes) + len(events.fragments)
        if not count:
            return
        commit = events.fragments[-1].commit if events.fragments else None
        confirmed = self._window.begin(count, None if commit is None else routed.fragment.lsn)
        self.last_lsn = max(self.last_lsn, routed.fragment.lsn)
        layer = 0
        parts = sorted(events.shape_changes, key=self._layer) if self.layers else events.shape_changes
        for index, part in enumerate(parts):
            if self._layer(part) > layer:
                layer = self._layer(part)
                if index:
                    self.wait_until_confirmed()
            pieces = fitting_records(part, self.limit.max_event_bytes)
            self._window.expect(len(pieces) - 1)
            for piece in pieces:
                self._send(piece, confirmed)
        for event in events.fragments:
            for record in fitting_records(event, self.limit.max_event_bytes):
                self._send(record, confirmed)

    def publish_entries(self, entries: Iterable[RegistryEntry]) -> None:
        """Publish registry entries and wait until all are confirmed; only then may they take effect."""
        for entry in entries:
            self._publish(entry)
        self.wait_until_confirmed()

    def publish_entry(self, entry: RegistryEntry) -> None:
        """Queue a registry entry; no later fragment counts as published before it is confirmed."""
        self._publish(entry, self._window.begin(1, None))

    def delete_entries(self, entries: Iterable[RegistryEntry]) -> None:
        """Have compaction delete registry entries."""
        for record in map(record_of, entries):
            self._publisher.publish(self._topics[record.stream], record.key, None)

    def publish_removal(self, removal: FlushNotification) -> None:
        self._publish(removal)

    def delete_flushes(self, source: str, writers: Mapping[str, Iterable[str]]) -> None:
        """Tombstone the flushes and removals of shapes, given their writers; wait for confirmation."""
        for shape_id, names in writers.items():
            for key in (key for writer in names for key in flush_keys(source, shape_id, writer)):
                self._publisher.publish(self._topics[FLUSHES], key, None)
        self.wait_until_confirmed()

    def wait_until_confirmed(self) -> None:
        """Block until everything published so far is confirmed, however long the brokers take."""
        self._publisher.flush(_NO_TIMEOUT_S)

    def _publish(self, event: Event, on_confirmed: Callable[[], None] | None = None) -> None:
        self._send(record_of(event), on_confirmed)

    def _send(self, record: Record, on_confirmed: Callable[[], None] | None) -> None:
        self._publisher.publish(self._topics[record.stream], record.key, record.value, on_confirmed)

    def _layer(self, part: ShapeChangesEvent) -> int:
        return self.layers.get(part.shape_id, 0)


@dataclass(slots=True)
class _Fragment:
    """The number of a fragment's unconfirmed events, and the commit LSN that it ends with, if any."""

    unconfirmed: int
    commit_lsn: int | None


class DeliveryWindow:
    """The fragments in flight, oldest first; ``on_published`` is called with each commit LSN once published.

    :meth:`begin` may be called by one thread, and its results by another: a fragment is added with its number of events
    before the first of them is passed to the publisher.
    """

    def __init__(self, on_published: Callable[[int], None]) -> None:
        self._on_published = on_published
        self._fragments: deque[_Fragment] = deque()

    @property
    def pending_fragments(self) -> int:
        return len(self._fragments)

    def begin(self, events: int, commit_lsn: int | None) -> Callable[[], None]:
        """Add a fragment before its events, at least one, are passed to the publisher.

        ``commit_lsn`` is ``None`` if it does not end its transaction. Call the result once for each of its events, when
        the broker has confirmed it.
        """
        fragment = _Fragment(events, commit_lsn)
        self._fragments.append(fragment)
        return partial(self._confirm, fragment)

    def expect(self, events: int) -> None:
        """Add ``events`` to the newest fragment, which must not be published yet."""
        self._fragments[-1].unconfirmed += events

    def _confirm(self, fragment: _Fragment) -> None:
        fragment.unconfirmed -= 1
        if fragment.unconfirmed:
            return
        published = None
        while self._fragments and self._fragments[0].unconfirmed == 0:
            done = self._fragments.popleft()
            if done.commit_lsn is not None:
                published = done.commit_lsn
        if published is not None:
            self._on_published(published)
