"""Reads the stored state of Kafka sinks (:mod:`flushtracker.sinks.stored_feed`)."""

from contextlib import closing

from flushtracker.kafka.kafka_config import KafkaConfig
from flushtracker.kafka.topic_reader import TopicReader
from flushtracker.sinks.stored_feed import POSITIONS_START, StoredFeed, read_feed, read_positions


def read_stored(config: KafkaConfig, topic: str) -> tuple[dict[tuple[str, str], StoredFeed], dict[int, int]]:
    """What is stored of each source and shape, and the positions; raises ``BrokerError`` and ``DecodeError``."""
    feeds: dict[tuple[str, str], StoredFeed] = {}
    positions: dict[int, int] = {}
    with closing(TopicReader(config, only_committed=True)) as reader:
        for value in reader.values(topic):
            if value.startswith(POSITIONS_START):
                positions = read_positions(value)
            else:
                feed = read_feed(value)
                feeds[feed.source, feed.shape_id] = feed
    return feeds, positions
