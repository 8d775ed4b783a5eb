"""``SinkFeeder``: the loop of ``flushtracker sink``.

One transaction for each batch of events: the records of all shapes, the state of each shape after them, and the
positions in ``shape_changes`` from which a next process reads. So each record is in its topic once, for readers of
committed records, and nothing is stored elsewhere. A process that starts fences the one before, and continues from the
committed state. An event that is held (:mod:`flushtracker.sinks.job.shape_feed`) is read again from its position, so
the stored positions are never past it. So is the first one of a shape of ours that is not written yet. All other shapes
drop repeated events by their cursors.

What is notified is what all groups have committed (:mod:`flushtracker.sinks.group_progress`), of records that are
committed themselves, because they are read by nobody before.

A topic that is gone sets its shape aside. If that is found within a transaction, nothing of it is committed, so another
feeder continues from what is stored, with the topic among the ``lost`` ones.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from typing import Final

from flushtracker.errors import ConfigError, DecodeError, FlushtrackerError, TopicLostError
from flushtracker.events.registry_events import ShapeEntry
from flushtracker.events.snapshot_events import SnapshotEvent
from flushtracker.events.stream_events import ShapeChangesEvent
from flushtracker.events.topic_rules import TopicFacts
from flushtracker.kafka.changes_reader import ChangesReader
from flushtracker.kafka.flush_notifier import FlushNotifier
from flushtracker.kafka.group_offsets import GroupOffsets, SampledOffsets
from flushtracker.kafka.transactions import TransactionalProducer
from flushtracker.process.clock import now_ms
from flushtracker.sinks.debezium_records import SinkRecord
from flushtracker.sinks.group_progress import Span, TopicLook
from flushtracker.sinks.job.feed_config import FeedConfig, SinkTopic
from flushtracker.sinks.job.feed_log import FeedLog
from flushtracker.sinks.job.held_events import HeldEvents, Shape
from flushtracker.sinks.job.live_sink_status import LiveSinkStatus
from flushtracker.sinks.job.shape_feed import ShapeFeed, TakenEvent
from flushtracker.sinks.job.sink_registry import SinkRegistry
from flushtracker.sinks.job.stored_feeds import StoredFeeds
from flushtracker.sinks.job.topic_snapshots import PublishedSnapshots
from flushtracker.sinks.stored_feed import StoredFeed, StoredPositions
from flushtracker.wal.log_offset import LogOffset

logger = logging.getLogger(__name__)

_SMALLER: Final = "narrow the shape by where or columns, or define it with snapshot: false"
_MOST_EVENTS: Final = 500
_WAIT_S: Final = 0.1
_REGISTRY_S: Final = 1.0
_WAITING_S: Final = 30.0
_TRANSACTION_MS: Final = 15 * 60_000
"""Kafka's default maximum: a snapshot is one transaction."""
_SNAPSHOT_S: Final = 12 * 60
"""After this its transaction is given up: the brokers would soon abort it, and refuse this producer from then on."""


class SinkFeeder:
    """Feeds the topics of ``config``, which are ``topics``, until told to stop; close it when done.

    ``lost``: the topics that are not written to, with the reasons; ``topics`` need not have them.

    Raises:
        BrokerError: the brokers do not answer, or refuse something.
        DecodeError: what is stored cannot be read.
    """

    def __init__(
        self,
        config: FeedConfig,
        topics: Mapping[str, TopicFacts],
        live: LiveSinkStatus,
        lost: Mapping[str, TopicLostError],
    ) -> None:
        self._config, self._topics, self._live, self._lost = config, topics, live, lost
        kafka = config.kafka
        self._producer = TransactionalProducer(
            kafka, f"{config.state_topic} {config.writer}", timeout_ms=_TRANSACTION_MS
        )
        self._stored = StoredFeeds(config)
        self._registry = SinkRegistry(config)
        snapshots = kafka.topics.snapshots
        self._snapshots = None if snapshots is None else PublishedSnapshots(kafka, snapshots)
        self._groups = GroupOffsets(kafka)
        self._notifier = FlushNotifier(kafka, writer=config.writer)
        self._feeds: dict[Shape, ShapeFeed] = {}
        self._sources: dict[str, str] = {}
        """Whose shape is fed, by its id."""
        self._held = HeldEvents()
        self._unwritten: dict[Shape, int] = {}
        """The incarnations of shapes of ours that are held because they are not written yet."""
        self._changed: dict[Shape, ShapeFeed] = {}
        self._left: list[StoredFeed] = []
        """What is to be stored of feeds that have ended since the last commit: their topics may have its records."""
        self._log = FeedLog()
        self._changes = ChangesReader(kafka, kafka.topics.shape_changes, self._stored.positions)

    def run(self, must_stop: Callable[[], bool]) -> None:
        """Raises as the class; ``TopicLostError`` for a topic that is gone: begin again without it."""
        due_registry = due_look = time.monotonic()
        due_log = due_look + _WAITING_S
        while not must_stop():
            for place in self._held.take_due(self._changes.positions, time.monotonic()).items():
                self._changes.rewind(*place)
            now = time.monotonic()
            if now >= due_registry:
                self._registry.read()
                self._feed_all(self._registry.take_news())
                self._feed_snapshots()
                self._notifier.publish()
                due_registry = now + _REGISTRY_S
            if now >= due_look:
                self._look()
                self._live.looked(self._feeds.values())
                due_look = now + self._config.poll_ms / 1000
            if now >= due_log:
                self._log.waiting(self._live.shapes, now_ms())
                due_log = now + _WAITING_S
            self._feed_batch(self._changes.records(_MOST_EVENTS, _WAIT_S))

    def close(self) -> None:
        for each in (self._producer, self._notifier, self._changes, self._groups):
            each.close()

    def _feed_all(self, entries: Iterable[ShapeEntry]) -> None:
        """Until nothing more begins or ends: where one shape ends, another may begin."""
        before = None
        while entries and before != (before := set(self._feeds)):
            for entry in entries:
                self._feed(entry)

    def _feed(self, entry: ShapeEntry) -> ShapeFeed | None:
        """The feed of a live shape that is ours; ``None`` for another one, and for an incarnation without its topic."""
        definition, config = entry.definition, self._config
        shape = entry.source, definition.id
        if definition.writer != config.writer or self._registry.has_ended(entry):
            self._end(shape)
            return None
        found = self._feeds.get(shape)
        if found is not None and found.incarnation == definition.incarnation:
            return found
        if found is not None or self._unwritten.get(shape, definition.incarnation) != definition.incarnation:
            self._forget(shape)
        topic = config.topics.get(definition.id)
        reason = self._reason_to_ignore(entry, topic)
        if topic is None or reason is not None:
            self._log.not_written(entry, reason)
            return None
        facts, waits = self._topics.get(topic.name, TopicFacts(topic.name, 1, {})), bool(definition.snapshot)
        stored = self._stored.feed(entry, topic.name)
        feed = self._feeds[shape] = ShapeFeed(stored, topic.groups, facts, waits_for_snapshot=waits)
        self._sources[definition.id] = entry.source
        logger.info("feeding shape shape_id=%s topic=%s groups=%s", definition.id, topic.name, ",".join(topic.groups))
        if (lost := self._lost.get(topic.name) or feed.replaced_topic(facts)) is not None:
            self._set_aside(feed, lost)
        self._release(feed)
        self._notify(feed)
        return feed

    def _may_be_fed(self, entry: ShapeEntry) -> bool:
        """Whether the next process may feed the shape, from its first change on: it is ours, and has not ended."""
        is_ours = entry.definition.writer == self._config.writer and self._config.source in (None, entry.source)
        return is_ours and not self._registry.has_ended(entry)

    def _end(self, shape: Shape) -> None:
        self._forget(shape)
        self._log.ended(shape)
        self._registry.forget(*shape)
        self._notifier.forget(*shape)

    def _forget(self, shape: Shape) -> None:
        if self._feeds.pop(shape, None) is not None:
            del self._sources[shape[1]]
        self._held.forget(shape)
        self._unwritten.pop(shape, None)
        if (left := self._changed.pop(shape, None)) is not None:
            self._left.append(left.stored())
            self._stored.keep(self._left[-1])
        self._log.forget(shape)

    def _reason_to_ignore(self, entry: ShapeEntry, topic: SinkTopic | None) -> str | None:
        shape_id, source = entry.definition.id, entry.source
        if topic is None:
            return "sink.topics has no topic for it"
        if self._config.source not in (None, source):
            return "sink.source names another source"
        if (other := self._sources.get(shape_id, source)) != source:
            return f"source {other} has the same shape: set sink.source"
        try:
            self._registry.records_of(source, shape_id)
        except ConfigError as error:
            return str(error)
        return self._stored.reason_against(topic, entry)

    def _feed_batch(self, values: Iterator[tuple[int, int, bytes]]) -> None:
        self._producer.begin()
        for partition, offset, value in values:
            event = ShapeChangesEvent.from_json(value)
            if event.writer == self._config.writer:
                self._take(event, partition, offset)
        self._commit()

    def _take(self, event: ShapeChangesEvent, partition: int, offset: int) -> None:
        entry = self._registry.entry(event.source, event.shape_id, event.incarnation)
        feed = self._feed(entry)
        shape = event.source, event.shape_id
        incarnation = entry.definition.incarnation if feed is None else feed.incarnation
        if shape in self._held or incarnation != event.incarnation or (feed is None and not self._may_be_fed(entry)):
            return
        if feed is None:
            self._unwritten[shape] = event.incarnation
        if feed is None or feed.problem is not None:
            self._held.hold(shape, partition, offset)
            return
        before = feed.cursor
        try:
            taken = feed.take(event, self._registry.records(event), now_ms())
        except (ConfigError, DecodeError) as error:
            self._set_aside(feed, error)
            taken = TakenEvent(is_held=True)
        self._log.taken(feed, event, is_gap=taken.is_gap)
        self._publish(feed, taken.records)
        if taken.is_held:
            self._held.hold(shape, partition, offset)
        if feed.cursor != before:
            self._changed[shape] = feed
        elif not taken.is_held:
            self._notify(feed)

    def _set_aside(self, feed: ShapeFeed, error: FlushtrackerError) -> None:
        """Its next event is held; the others go on."""
        feed.problem = error
        logger.error("shape is set aside shape_id=%s topic=%s reason=%s", feed.shape_id, feed.topic, error)

    def _publish(self, feed: ShapeFeed, records: Iterable[SinkRecord]) -> None:
        for record in records:
            place = 0 if record.key is None else -1
            self._producer.publish(feed.topic, record.key, record.value, record.headers, place)

    def _commit(self) -> None:
        """Commit the taken changes with the state after them; then notify shapes that needed no record."""
        if not self._changed and not self._left:
            self._producer.commit()
            return
        places = self._producer.places()
        state = self._config.state_topic
        for feed in self._changed.values():
            spans = {number: Span(*place) for (topic, number), place in places.items() if topic == feed.topic}
            feed.place(spans)
            self._left.append(feed.stored())
        for stored in self._left:
            self._stored.keep(stored)
            self._producer.publish(state, stored.key, stored.to_json(), partition=0)
        positions = StoredPositions(self._held.not_past(self._changes.positions), self._config.writer)
        self._producer.publish(state, positions.key, positions.to_json(), partition=0)
        self._producer.commit()
        self._live.committed()
        for feed in self._changed.values():
            self._notify(feed)
        self._changed, self._left = {}, []
        self._notifier.publish()

    def _feed_snapshots(self) -> None:
        """Publish each snapshot that is complete and needed, in a transaction of its own."""
        waiting = [feed for feed in self._feeds.values() if feed.needs_snapshot and feed.problem is None]
        if not waiting or self._snapshots is None:
            return
        self._snapshots.look()
        self._snapshots.keep(self._registry.may_need)
        for feed in waiting:
            found = self._snapshots.complete(feed.source, feed.shape_id)
            if found is None or found.incarnation != feed.incarnation:
                continue
            contained = found.contains.contained
            self._producer.begin()
            try:
                records = self._registry.records_of(feed.source, feed.shape_id)
                with closing(self._snapshots.events(found)) as events:
                    for event in _in_time(events):
                        made_ms = now_ms()
                        self._publish(feed, (records.of_snapshot(row, contained.lsn, made_ms) for row in event.rows))
            except (ConfigError, DecodeError) as error:
                self._producer.abort()
                self._set_aside(feed, error)
                continue
            feed.take_snapshot(contained)
            self._changed[feed.source, feed.shape_id] = feed
            self._commit()
            logger.info("snapshot published shape_id=%s rows=%d", feed.shape_id, found.contains.rows)
            self._release(feed)

    def _look(self) -> None:
        """Ask for the offsets of the groups that have something to read, and notify what they have read."""
        unread = [feed for feed in self._feeds.values() if feed.is_unread and feed.has_topic]
        if not unread:
            return
        try:
            sample = self._sample(unread)
        except TopicLostError as error:
            self._set_aside(next(feed for feed in unread if feed.topic == error.topic), error)
            return
        self._log.unanswered(sample.unanswered)
        for feed in unread:
            if ("topic", feed.topic) in sample.unanswered:
                feed.not_answered()
                continue
            committed = {group: _of(feed.topic, found) for group, found in sample.committed.items()}
            look = TopicLook(_of(feed.topic, sample.begins), committed, _of(feed.topic, sample.ends))
            try:
                moved = feed.look(look, time.monotonic())
            except TopicLostError as error:
                self._set_aside(feed, error)
                continue
            self._log.losses(feed)
            if moved is not None:
                self._notify(feed)
                # Stored soon, so that a later process does not take what retention deletes from now on for unread.
                self._changed[feed.source, feed.shape_id] = feed
            if not feed.is_unread:
                self._release(feed)
        self._notifier.publish()

    def _sample(self, feeds: Iterable[ShapeFeed]) -> SampledOffsets:
        places: dict[str, set[tuple[str, int]]] = {}
        for feed in feeds:
            for group in feed.progress.counted:
                places.setdefault(group, set()).update((feed.topic, partition) for partition in feed.progress.ends)
        return self._groups.sample(places)

    def _notify(self, feed: ShapeFeed) -> None:
        flushed = feed.progress.flushed
        if flushed is not None and flushed > LogOffset.first():
            self._notifier.flushed(feed.source, feed.shape_id, flushed)

    def _release(self, feed: ShapeFeed) -> None:
        """Read the held changes again."""
        if not feed.needs_snapshot and feed.problem is None:
            self._held.release((feed.source, feed.shape_id))


def _in_time(events: Iterable[SnapshotEvent]) -> Iterator[SnapshotEvent]:
    until = time.monotonic() + _SNAPSHOT_S
    for event in events:
        if time.monotonic() > until:
            raise ConfigError(f"its snapshot takes more than {_SNAPSHOT_S / 60:.0f} minutes; {_SMALLER}")
        yield event


def _of(topic: str, found: Mapping[tuple[str, int], int]) -> dict[int, int]:
    return {partition: offset for (name, partition), offset in found.items() if name == topic}
