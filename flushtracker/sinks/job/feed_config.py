"""The configuration of Kafka sinks: the section ``sink``."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from flushtracker.config.one_file import read_config
from flushtracker.config.status_config import StatusConfig
from flushtracker.config.strict_yaml import YamlMapping
from flushtracker.kafka.kafka_config import KafkaConfig, read_kafka


@dataclass(frozen=True, slots=True)
class SinkTopic:
    """The topic of one shape: the consumer groups that must have read it, and its partitions if it is created.

    ``has_schemas``: its records are as Connect's JSON converter writes them with ``schemas.enable``.
    """

    name: str
    groups: tuple[str, ...]
    partitions: int
    has_schemas: bool = False


@dataclass(frozen=True, slots=True)
class FeedConfig:
    """All of it; ``topics`` by the id of the shape. ``source`` is whose shapes they are, ``None`` for any."""

    kafka: KafkaConfig
    writer: str
    name: str
    database: str
    poll_ms: int
    state_topic: str
    topics: Mapping[str, SinkTopic]
    source: str | None = None
    status: StatusConfig | None = None


def load_feed_config(path: Path) -> FeedConfig:
    """Read it; raises ``ConfigError`` naming the file, the line and the key."""
    file = read_config(path)
    sink = file.section("sink")
    topics = sink.mapping("topics")
    found = {shape_id: _topic(topics.mapping(shape_id)) for shape_id in topics}
    names = [topic.name for topic in found.values()]
    kafka, state_topic = read_kafka(file), file.topic("sinks")
    streams = {state_topic, *kafka.topics.by_role().values()}
    for shape_id, topic in found.items():
        if topic.name in streams:
            raise topics.mapping(shape_id).error("topic", f"is {topic.name}, which has a stream of flushtracker")
        if names.count(topic.name) > 1:
            raise topics.error(shape_id, f"has the topic {topic.name}, as another shape: each needs its own")
    database, source = sink.optional_text("database"), sink.optional_text("source")
    return FeedConfig(
        kafka=kafka,
        writer=sink.text("writer").value,
        name=sink.text("name").value,
        database="" if database is None else database.value,
        poll_ms=sink.duration_ms("poll"),
        state_topic=state_topic,
        topics=found,
        source=None if source is None else source.value,
        status=file.status("sink"),
    )


def _topic(section: YamlMapping) -> SinkTopic:
    section.allow("topic", "groups", "partitions", "schemas")
    groups = section.optional_texts("groups") or ()
    if not groups:
        raise section.error("groups", "is missing: the consumer groups whose commits say what is durable")
    partitions = section.optional_integer("partitions", at_least=1)
    names, has_schemas = tuple(group.value for group in groups), section.optional_boolean("schemas")
    return SinkTopic(section.topic_name("topic"), names, partitions or 1, bool(has_schemas))
