"""``flushtracker topics`` on a real broker: it reports faults, creates missing topics, and changes nothing else."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaError, Producer

from flushtracker.cli import main
from flushtracker.config.secret_options import SecretOptions
from flushtracker.errors import BrokerError, ConfigError
from flushtracker.events.topic_rules import ROLES, topic_faults
from flushtracker.kafka.kafka_config import KafkaConfig
from flushtracker.kafka.publisher import KafkaPublisher
from flushtracker.kafka.topic_admin import TopicAdmin, require_topics
from tests.support.brokers import Broker
from tests.support.kafka_job import SILENT
from tests.support.kafka_streams import (
    config_file,
    create_topic,
    created_streams,
    streams_config,
    topic_names,
)

TopicName = Callable[[str], str]


def topics(config: KafkaConfig, folder: Path, *options: str) -> int:
    return main(["topics", "--config", str(config_file(config, folder / "kafka.yaml")), *options])


@pytest.fixture
def config(broker: Broker, topic_name: TopicName) -> KafkaConfig:
    """Four streams whose topics do not exist yet."""
    return streams_config(broker.bootstrap_servers, topic_name)


def test_missing_topics_are_reported_and_created_only_on_request(
    config: KafkaConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Created topics are correct, and a second run changes nothing."""
    config = replace(config, partitions=3)
    names = config.topics.by_role()
    assert topics(config, tmp_path) == 2
    output = capsys.readouterr()
    assert output.out.splitlines() == [f"{role}: there is no topic {names[role]}" for role in ROLES]
    assert output.err == (
        f"flushtracker topics: 4 of 4 topics at {config.bootstrap_servers} are missing or wrong; --create creates the "
        "missing ones\n"
    )
    assert not set(names.values()) & topic_names(config.bootstrap_servers)

    for state in ("created", "ok"):
        assert topics(config, tmp_path, "--create") == 0
        output = capsys.readouterr()
        assert output.out.splitlines() == [f"{role}: topic {names[role]}, 3 partitions: {state}" for role in ROLES]
        assert output.err == ""


def test_all_faults_are_reported_and_left_unchanged(
    config: KafkaConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every fault is reported, not only the first, and missing topics are created nevertheless."""
    name, flushes = config.topics.fragments, config.topics.flushes
    create_topic(config.bootstrap_servers, name, {"cleanup.policy": "compact,delete", "retention.bytes": "1000000"})
    create_topic(config.bootstrap_servers, flushes, {})
    before = TopicAdmin(config).facts(["fragments"])
    assert topics(config, tmp_path, "--create") == 2
    output = capsys.readouterr()
    assert [line.split(", but must be ")[0] for line in output.out.splitlines()] == [
        f"fragments: topic {name}, 1 partition: wrong",
        f"  topic {name}: cleanup.policy is compact,delete",
        f"  topic {name}: message.timestamp.type is CreateTime",
        f"  topic {name}: max.message.bytes is 1048588",
        f"  topic {name}: retention.bytes is 1000000",
        f"flushes: topic {flushes}, 1 partition: wrong",
        f"  topic {flushes}: cleanup.policy is delete",
        f"  topic {flushes}: message.timestamp.type is CreateTime",
        f"shapes: topic {config.topics.shapes}, 1 partition: created",
        f"shape_changes: topic {config.topics.shape_changes}, 1 partition: created",
    ]
    assert output.err == f"flushtracker topics: 2 of 4 topics at {config.bootstrap_servers} are missing or wrong\n"
    assert TopicAdmin(config).facts(["fragments"]) == before

    with pytest.raises(ConfigError) as caught:
        require_topics(config, ["fragments", "shapes"])
    assert str(caught.value).count(f"topic {name}: ") == 4
    assert str(caught.value).endswith(". `flushtracker topics` checks and creates topics")


@pytest.mark.parametrize("days", [-400, 400])
def test_records_of_a_producer_with_a_wrong_clock_are_taken_and_kept(
    config: KafkaConfig, tmp_path: Path, days: int
) -> None:
    """By its time, a broker would delete the record of a year ago before it is read, and refuse that of next year."""
    assert topics(config, tmp_path, "--create") == 0
    producer, times = Producer({"bootstrap.servers": config.bootstrap_servers}, logger=SILENT), list[object]()
    now_ms = int(time.time() * 1000)
    for topic in config.topics.by_role().values():
        producer.produce(
            topic,
            b"x",
            "key",
            timestamp=now_ms + days * 86_400_000,
            on_delivery=lambda error, message: times.append(error or message.timestamp()),
        )
    assert producer.flush(120) == 0
    assert len(times) == 4
    for found in times:
        assert isinstance(found, tuple), found
        assert found[0] == TIMESTAMP_LOG_APPEND_TIME
        assert abs(found[1] - now_ms) < 86_400_000


def test_notification_that_expands_is_rejected_by_its_size(config: KafkaConfig, tmp_path: Path) -> None:
    """One of some kilobytes could have 400 MB in the memory of each job that reads it."""
    assert topics(config, tmp_path, "--create") == 0
    options = {"bootstrap.servers": config.bootstrap_servers, "compression.type": "zstd", "message.max.bytes": 5 << 20}
    producer, errors = Producer(options, logger=SILENT), list[KafkaError | None]()
    for size in (4 << 20, 10_000):
        producer.produce(config.topics.flushes, b" " * size, "any", on_delivery=lambda error, _: errors.append(error))
        assert producer.flush(120) == 0
    assert [None if error is None else error.code() for error in errors] == [KafkaError.MSG_SIZE_TOO_LARGE, None]


def test_the_broker_reports_every_setting_that_the_rules_need(config: KafkaConfig) -> None:
    """A topic with default settings is wrong for every stream, and no setting is unknown."""
    create_topic(config.bootstrap_servers, config.topics.fragments, {})
    facts = TopicAdmin(config).facts(["fragments"])["fragments"]
    assert facts is not None
    faults = {
        role: topic_faults(role, facts, retention_ms=604_800_001, max_event_bytes=config.max_event_bytes)
        for role in ROLES
    }
    assert [len(faults[role]) for role in ROLES] == [3, 2, 3, 3]
    assert "unknown" not in str(faults)


def test_records_are_counted(broker: Broker, topic_name: TopicName) -> None:
    """Over all partitions, as soon as the topic exists."""
    config = created_streams(broker.bootstrap_servers, topic_name, partitions=4)
    assert TopicAdmin(config).record_count("fragments") == 0
    publisher = KafkaPublisher(config)
    for number in range(50):
        publisher.publish(config.topics.fragments, str(number), "{}")
    publisher.flush(30)
    assert TopicAdmin(config).record_count("fragments") == 50
    with pytest.raises(BrokerError, match=r"^there is no topic streams-\w+\.shapes"):
        TopicAdmin(streams_config(broker.bootstrap_servers, topic_name)).record_count("shapes")


def test_a_topic_that_cannot_be_created_is_reported(
    config: KafkaConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message contains the broker's reason, and what to do."""
    assert topics(replace(config, replication_factor=3), tmp_path, "--create") == 6
    said = capsys.readouterr().err
    assert said.startswith(
        f"flushtracker topics: topic {config.topics.fragments} cannot be created: "
        "Unable to replicate the partition 3 time(s)"
    )
    assert said.endswith("; start all brokers, or set kafka.replication_factor to their number\n")


SASL = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "me"}


@pytest.mark.parametrize(
    "case",
    [
        ({"security.protocol": "hunter2"}, 2, 'Invalid value "…" for configuration property "security.protocol"; '),
        ({"sasl.pasword": "hunter2"}, 2, 'No such configuration property: "sasl.pasword"; correct the configuration'),
        ({**SASL, "sasl.mechanism": "hunter2", "sasl.password": "x"}, 2, "Unsupported SASL mechanism: …; correct"),
        ({"stats_cb": "hunter2"}, 2, "Kafka's client rejects its options: "),
        ({**SASL, "sasl.password": "hunter2"}, 6, "refuses the client: sasl_plaintext://"),
        ({"security.protocol": "SSL", "ssl.key.password": "hunter2"}, 6, "does not answer within 3 s: ssl://"),
    ],
)
def test_options_reach_the_client_and_no_value_is_shown(
    config: KafkaConfig, tmp_path: Path, capfd: pytest.CaptureFixture[str], case: tuple[dict[str, str], int, str]
) -> None:
    """Neither if the client rejects them nor if the broker does; librdkafka itself prints nothing."""
    options, code, message = case
    config = replace(config, options=SecretOptions(options), retry_timeout_ms=3_000)
    assert topics(config, tmp_path, "--verbose") == code
    output = capfd.readouterr()
    (line,) = [line for line in output.err.splitlines() if line.startswith("flushtracker topics: ")]
    assert message in line
    assert "hunter2" not in line
    assert output.out == ""
