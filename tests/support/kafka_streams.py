"""Streams on a broker: their configuration as an object and as a file, single topics, and their records."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from flushtracker.events.topic_rules import ROLES, Topics
from flushtracker.kafka.kafka_config import KafkaConfig
from flushtracker.kafka.topic_admin import TopicAdmin
from tests.support.config_file import write_config
from tests.support.waiting import wait_until

TIMEOUT_S = 60


def streams_config(servers: str, topic_name: Callable[[str], str], *, partitions: int = 1) -> KafkaConfig:
    """The configuration of four new topics on a single broker; it creates nothing."""
    prefix = topic_name("streams")
    topics = Topics(**{role: f"{prefix}.{role}" for role in ROLES})
    return KafkaConfig(servers, topics, partitions=partitions, replication_factor=1, retry_timeout_ms=TIMEOUT_S * 1000)


def created_streams(servers: str, topic_name: Callable[[str], str], *, partitions: int = 1) -> KafkaConfig:
    """As :func:`streams_config`, with the topics created."""
    config = streams_config(servers, topic_name, partitions=partitions)
    TopicAdmin(config).create(ROLES)
    return config


def config_file(config: KafkaConfig, path: Path) -> Path:
    """Write the configuration to a file."""
    kafka = {
        "bootstrap_servers": config.bootstrap_servers,
        "topic_prefix": config.topics.flushes.removesuffix(".flushes"),
        "options": dict(config.options),
        "retry_timeout": f"{config.retry_timeout_ms} ms",
        "retention": f"{config.retention_ms} ms",
        "partitions": config.partitions,
        "replication_factor": config.replication_factor,
    }
    has_snapshots = config.topics.snapshots is not None
    return write_config(path, {"kafka": kafka, **({"snapshot": {"into": "kafka"}} if has_snapshots else {})})


def unreachable(config: KafkaConfig, retry_timeout_ms: int) -> KafkaConfig:
    """The same configuration with a server where nothing listens."""
    return replace(config, bootstrap_servers="127.0.0.1:9", retry_timeout_ms=retry_timeout_ms)


def create_topic(servers: str, name: str, settings: Mapping[str, str]) -> None:
    """Create a topic with one partition, bypassing the code under test."""
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(name, 1, config=dict(settings))])[name].result(TIMEOUT_S)
    # The topic may appear in the broker's metadata a moment later.
    wait_until(lambda: name in topic_names(servers), f"new topic {name} is listed", TIMEOUT_S)


def topic_names(servers: str) -> set[str]:
    admin = AdminClient({"bootstrap.servers": servers})
    return set(admin.list_topics(timeout=TIMEOUT_S).topics)


def records(servers: str, topic: str) -> dict[int, list[tuple[str, str]]]:
    """All records of a topic: partition → key and value of each, in order; without empty partitions.

    The value of a tombstone is empty.
    """
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "unused", "enable.partition.eof": True})
    try:
        partitions = consumer.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions
        consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
        found: dict[int, list[tuple[str, str]]] = defaultdict(list)
        open_partitions = set(partitions)

        def is_at_end() -> bool:
            for message in consumer.consume(10_000, 0.1):
                error = message.error()
                if error is None:
                    found[message.partition() or 0].append((_text(message.key()), _text(message.value() or b"")))
                else:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    open_partitions.discard(message.partition() or 0)
            return not open_partitions

        wait_until(is_at_end, f"the end of {topic}", TIMEOUT_S)
        return dict(found)
    finally:
        consumer.close()


def values(servers: str, topic: str) -> list[str]:
    """The values of a topic with one partition."""
    return [value for partition in records(servers, topic).values() for _, value in partition]


def _text(data: str | bytes | None) -> str:
    assert isinstance(data, bytes)
    return data.decode()
