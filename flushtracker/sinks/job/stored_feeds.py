"""``StoredFeeds``: what is stored of Kafka sinks (:mod:`flushtracker.sinks.stored_feed`), of the configured topics."""

from contextlib import closing

from flushtracker.events.registry_events import ShapeEntry
from flushtracker.kafka.topic_reader import TopicReader
from flushtracker.sinks.job.feed_config import FeedConfig, SinkTopic
from flushtracker.sinks.job.held_events import Shape
from flushtracker.sinks.stored_feed import POSITIONS_START, StoredFeed, read_feed, read_positions


class StoredFeeds:
    """What the topic of the sink's state has of the shapes and topics in ``config``, and its writer's ``positions``.

    An ended shape stays: neither it, if it begins again, nor another shape may be written to a topic that has its rows.

    Raises:
        BrokerError: the brokers do not answer, or refuse a request.
        DecodeError: what is stored cannot be read.
    """

    def __init__(self, config: FeedConfig) -> None:
        self.positions: dict[int, int] = {}
        self._config = config
        self._feeds: dict[Shape, StoredFeed] = {}
        self._owners: dict[str, Shape] = {}
        """Whose rows a topic has."""
        self._names = {topic.name for topic in config.topics.values()}
        with closing(TopicReader(config.kafka, only_committed=True)) as reader:
            for value in reader.values(config.state_topic):
                if value.startswith(POSITIONS_START):
                    stored = read_positions(value)
                    if stored.writer == config.writer:
                        self.positions = stored.positions
                else:
                    self.keep(read_feed(value))

    def keep(self, feed: StoredFeed) -> None:
        """Note what is stored now, or will be by the open transaction."""
        if feed.shape_id in self._config.topics:
            self._feeds[feed.source, feed.shape_id] = feed
        for topic in self._names.intersection((feed.topic, *feed.old_topics)):
            self._owners[topic] = feed.source, feed.shape_id

    def feed(self, entry: ShapeEntry, topic: str) -> StoredFeed:
        """What a shape continues from, which may be nothing."""
        definition = entry.definition
        stored = self._feeds.get((entry.source, definition.id))
        if stored is not None and stored.incarnation >= definition.incarnation:
            return stored
        old_topics = () if stored is None else (*stored.old_topics, stored.topic)
        return StoredFeed(
            source=entry.source,
            shape_id=definition.id,
            incarnation=definition.incarnation,
            topic=topic,
            old_topics=old_topics,
        )

    def reason_against(self, topic: SinkTopic, entry: ShapeEntry) -> str | None:
        """Why the shape cannot be written to the topic, whose rows may have been deleted since without a record."""
        definition = entry.definition
        shape = entry.source, definition.id
        if (owner := self._owners.get(topic.name, shape)) != shape:
            return f"its topic has rows of shape {owner[1]!r} of source {owner[0]}: give it another one"
        stored = self._feeds.get(shape)
        if stored is None:
            return None
        if stored.incarnation == definition.incarnation:
            return None if stored.topic == topic.name else f"it is written to topic {stored.topic}"
        is_old = topic.name in (stored.topic, *stored.old_topics)
        return "its topic has rows of an earlier incarnation: give it another one" if is_old else None
