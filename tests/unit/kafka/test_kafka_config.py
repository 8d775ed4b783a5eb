"""How to reach Kafka: how a file is read, and the message for each wrong one."""

from dataclasses import replace
from pathlib import Path

import pytest

from flushtracker.events.topic_rules import Topics
from flushtracker.kafka.kafka_config import KafkaConfig, load_kafka_config
from tests.support.config_files import ConfigFile

FILE = ConfigFile("flushtracker.yaml", load_kafka_config)
MINIMAL = "kafka:\n  bootstrap_servers: kafka:9092\n"
TOPICS = Topics("flushtracker.fragments", "flushtracker.flushes", "flushtracker.shapes", "flushtracker.shape_changes")


def test_every_key_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No key has its default value here."""
    monkeypatch.setenv("PASSWORD", "hunter2")
    config = FILE.load(
        tmp_path,
        MINIMAL + '  retention: "2 days"\n  partitions: 9\n  replication_factor: 2\n  retry_timeout: "5 seconds"\n'
        "  topic_prefix: p\n  max_event_bytes: 1000000\n"
        '  options: {security.protocol: SASL_SSL, sasl.password: "${PASSWORD}", linger.ms: 20}\n',
    )
    assert config.bootstrap_servers == "kafka:9092"
    assert config.topics == Topics("p.fragments", "p.flushes", "p.shapes", "p.shape_changes")
    assert (config.retention_ms, config.partitions, config.replication_factor) == (172_800_000, 9, 2)
    assert (config.retry_timeout_ms, config.max_event_bytes) == (5_000, 1_000_000)
    assert dict(config.options) == {"security.protocol": "SASL_SSL", "sasl.password": "hunter2", "linger.ms": "20"}
    assert "hunter2" not in repr(config)


def test_a_writer_of_another_storage_needs_the_brokers_alone(tmp_path: Path) -> None:
    """Neither the server, nor the storage, nor the shapes."""
    config = FILE.load(tmp_path, MINIMAL)
    assert config == KafkaConfig("kafka:9092", TOPICS)
    assert (config.retention_ms, config.retry_timeout_ms) == (604_800_000, 60_000)


def test_topics_of_snapshots_are_there_if_these_are_published(tmp_path: Path) -> None:
    """Only writers of other storages need them."""
    topics = FILE.load(tmp_path, MINIMAL + "snapshot: {into: kafka}\n").topics
    assert topics == replace(TOPICS, snapshots="flushtracker.snapshots", snapshots_taken="flushtracker.snapshots_taken")


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ("acks", "flushtracker sets it, because the order and completeness of the streams depend on it"),
        ("enable.idempotence", "flushtracker sets it, because the order and completeness of the streams depend on it"),
        ("partitioner", "flushtracker sets it, because the order and completeness of the streams depend on it"),
        ("bootstrap.servers", "use kafka.bootstrap_servers instead"),
        ("delivery.timeout.ms", "use kafka.retry_timeout instead"),
        ("isolation.level", "flushtracker sets it, read_committed wherever records of other programs count"),
    ],
)
def test_reserved_options_are_refused(tmp_path: Path, option: str, reason: str) -> None:
    """The message has the reason, but not the value, which may be a secret."""
    assert FILE.refusal(tmp_path, f"{MINIMAL}  options:\n    linger.ms: 5\n    {option}: hunter2\n") == (
        f"flushtracker.yaml line 5: kafka.options.{option} cannot be set: {reason}"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("storage: x\n", "flushtracker.yaml line 1: kafka is missing"),
        ("kafka: {partitions: 1}\n", "flushtracker.yaml line 1: kafka.bootstrap_servers is missing"),
        (
            MINIMAL + "  partition: 1\n",
            "flushtracker.yaml line 3: kafka.partition is not a known key; did you mean part",
        ),
        (
            MINIMAL + "  partitions: 0\n",
            "flushtracker.yaml line 3: kafka.partitions is '0', not a number of at least 1",
        ),
        (
            MINIMAL + "  topic_prefix: a b\n",
            "flushtracker.yaml line 3: kafka.topic_prefix is 'a b', not a topic name: ",
        ),
    ],
)
def test_a_wrong_key_or_value_is_named(tmp_path: Path, text: str, message: str) -> None:
    """The message has the file, the line and the key."""
    assert FILE.refusal(tmp_path, text).startswith(message)
