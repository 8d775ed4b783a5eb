"""What Kafka's compaction leaves of removed shapes in the topics ``flushes`` and ``shapes``."""

from collections.abc import Callable
from contextlib import closing

from flushtracker.capture.shapes.delayed_shapes import DelayedShapes
from flushtracker.capture.shapes.shape_registry import SourceEntries
from flushtracker.capture.shapes.subscriptions import Subscriptions
from flushtracker.capture.source.prior_state import read_prior_state
from flushtracker.capture.wire.event_limit import EventLimit
from flushtracker.capture.wire.outbox import Outbox
from flushtracker.events.records import flush_keys, record_of
from flushtracker.events.stream_events import FlushNotification
from flushtracker.kafka.kafka_config import KafkaConfig
from flushtracker.kafka.publisher import KafkaPublisher
from flushtracker.kafka.topic_reader import TopicReader
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.source_name import SourceName
from tests.support.brokers import Broker
from tests.support.kafka_streams import create_topic, records, streams_config
from tests.support.scripted_source import LSN, NAME, Source
from tests.support.waiting import wait_until

_SOON = {
    "cleanup.policy": "compact",
    "segment.ms": "200",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "100",
}
_SHAPES = [f"shape-{number}" for number in range(20)]


class KafkaSource(Source):
    """A source that publishes to real topics."""

    def __init__(self, config: KafkaConfig, publisher: KafkaPublisher) -> None:
        self._config, self.kafka = config, publisher
        super().__init__()

    def resume(self, entries: SourceEntries, confirmed_lsn: int, delayed: DelayedShapes | None = None) -> None:
        self.outbox = Outbox(self.kafka, self._config.topics, lambda _: None, EventLimit(1 << 20, 1 << 20))
        self.subscriptions = Subscriptions("7/1/s", entries, self.outbox, self.tables, confirmed_lsn, delayed)


def test_compaction_leaves_nothing_of_removed_shapes_but_short_entries(
    broker: Broker, topic_name: Callable[[str], str]
) -> None:
    """Tombstones included: of twenty shapes that were removed, ``flushes`` has nothing, and ``shapes`` their ids."""
    config = streams_config(broker.bootstrap_servers, topic_name)
    for topic in (config.topics.flushes, config.topics.shapes):
        create_topic(config.bootstrap_servers, topic, _SOON)
    for topic in (config.topics.fragments, config.topics.shape_changes):
        create_topic(config.bootstrap_servers, topic, {})
    publisher = KafkaPublisher(config)
    source = KafkaSource(config, publisher)
    live = ShapeDefinition("live", NAME)
    source.define(*(ShapeDefinition(shape_id, NAME) for shape_id in _SHAPES), live)
    for shape_id in (*_SHAPES, "live"):
        flushed = record_of(FlushNotification("7/1/s", "flushed", shape_id, LogOffset(LSN, 2), "log"))
        publisher.publish(config.topics.flushes, flushed.key, flushed.value)
    source.subscriptions.apply_definitions([live], allow_removing=100)
    source.subscriptions.removed.condense(source.tables.wal_end() + 1)

    def keys(topic: str) -> list[str]:
        # Only a closed segment is compacted, and a new record closes one.
        publisher.publish(topic, "another", None)
        publisher.flush(10)
        found = records(config.bootstrap_servers, topic)[0]
        return sorted(key for key, _ in found if key != "another")

    wait_until(
        lambda: keys(config.topics.flushes) == [flush_keys("7/1/s", "live", "log")[0]], "flushes are deleted", 30
    )
    entries = ["", "7", "71", "live", *_SHAPES]
    wait_until(lambda: len(keys(config.topics.shapes)) == len(entries), "the registry is compacted", 30)
    found = records(config.bootstrap_servers, config.topics.shapes)[0]
    sizes = [len(value) for key, value in found if any(f'"{shape_id}"' in key for shape_id in _SHAPES)]
    assert len(sizes) == len(_SHAPES)
    assert max(sizes) < 150

    base = SourceName.parse("7/1/s")
    assert base is not None
    with closing(TopicReader(config)) as reader:
        prior = read_prior_state(reader, config.topics, base)
    source.resume(prior.entries, source.tables.wal_end() + 1)
    source.define(live, ShapeDefinition("shape-7", NAME))
    (refused,) = source.subscriptions.refused.shown
    assert refused.reason.startswith("shape 'shape-7' was removed at ")
    publisher.close()
