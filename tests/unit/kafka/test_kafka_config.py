"""How to reach Kafka: how a file is read, and the message for each wrong one."""

from pathlib import Path

import pytest

from flushtracker.config.strict_yaml import read_yaml
from flushtracker.errors import ConfigError
from flushtracker.events.topic_rules import Topics
from flushtracker.kafka.kafka_config import KafkaConfig, kafka_config, load_kafka_config
from tests.support.config_files import ConfigFile

EXAMPLE = Path(__file__).parents[3] / "conf" / "kafka.yaml"
FILE = ConfigFile("kafka.yaml", load_kafka_config)
TOPICS = "topics: {fragments: f, flushes: g, shapes: s, shape_changes: c}\n"
MINIMAL = "bootstrap_servers: kafka:9092\n" + TOPICS


def test_every_key_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No key has its default value here."""
    monkeypatch.setenv("PASSWORD", "hunter2")
    config = FILE.load(
        tmp_path,
        MINIMAL + 'retention: "2 days"\npartitions: 9\nreplication_factor: 2\nretry_timeout: "5 seconds"\n'
        'options: {security.protocol: SASL_SSL, sasl.password: "${PASSWORD}", linger.ms: 20}\n',
    )
    assert (config.bootstrap_servers, config.topics) == ("kafka:9092", Topics("f", "g", "s", "c"))
    assert (config.retention_ms, config.partitions, config.replication_factor) == (172_800_000, 9, 2)
    assert config.retry_timeout_ms == 5_000
    assert dict(config.options) == {"security.protocol": "SASL_SSL", "sasl.password": "hunter2", "linger.ms": "20"}
    assert "hunter2" not in repr(config)


def test_omitted_keys_have_their_defaults(tmp_path: Path) -> None:
    """The minimal file states where the brokers and the streams are."""
    config = FILE.load(tmp_path, MINIMAL)
    assert config == KafkaConfig("kafka:9092", Topics("f", "g", "s", "c"))
    assert (config.retention_ms, config.retry_timeout_ms) == (604_800_000, 60_000)


def test_the_configuration_can_be_a_section_of_another_file(tmp_path: Path) -> None:
    """Its errors then name that file and section."""
    path = tmp_path / "capture.yaml"
    path.write_text("kafka:\n  bootstrap_servers: kafka:9092\n  topics: {fragments: f, flushes: g, shapes: s}\n")
    with pytest.raises(ConfigError, match=r"capture.yaml line 3: kafka\.topics\.shape_changes is missing"):
        kafka_config(read_yaml(path).mapping("kafka"))


def test_the_shipped_file_is_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    """It gets the brokers' addresses from a variable."""
    monkeypatch.setenv("KAFKA_BOOTSTRAP", "kafka:9092")
    config = load_kafka_config(EXAMPLE)
    assert config.bootstrap_servers == "kafka:9092"
    assert config.topics.by_role() == {
        role: f"flushtracker.{role}" for role in ("fragments", "flushes", "shapes", "shape_changes")
    }


def test_topics_of_snapshots_are_both_there_or_neither(tmp_path: Path) -> None:
    """Only writers of other storages need them; one alone would publish what is never known to be complete."""
    both = MINIMAL.replace("shape_changes: c", "shape_changes: c, snapshots: n, snapshots_taken: t")
    topics = FILE.load(tmp_path, both).topics
    assert topics == Topics("f", "g", "s", "c", "n", "t")
    assert list(topics.by_role().values()) == ["f", "g", "s", "c", "n", "t"]
    assert FILE.refusal(tmp_path, both.replace(", snapshots_taken: t", "")) == (
        "kafka.yaml line 2: topics.snapshots_taken is missing"
    )
    assert "topics.snapshots is missing" in FILE.refusal(tmp_path, both.replace(" snapshots: n,", ""))


def test_each_stream_has_a_topic_of_its_own(tmp_path: Path) -> None:
    """Otherwise a reader would take another stream's records for malformed ones of its own."""
    assert FILE.refusal(tmp_path, MINIMAL.replace("shapes: s", "shapes: f")) == (
        "kafka.yaml line 2: topics.shapes is the same topic as fragments; each stream needs its own"
    )


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ("acks", "flushtracker sets it, because the order and completeness of the streams depend on it"),
        ("enable.idempotence", "flushtracker sets it, because the order and completeness of the streams depend on it"),
        ("partitioner", "flushtracker sets it, because the order and completeness of the streams depend on it"),
        ("bootstrap.servers", "use bootstrap_servers instead"),
        ("delivery.timeout.ms", "use retry_timeout instead"),
        ("isolation.level", "flushtracker sets it, read_committed wherever records of other programs count"),
    ],
)
def test_reserved_options_are_refused(tmp_path: Path, option: str, reason: str) -> None:
    """The message has the reason, but not the value, which may be a secret."""
    assert FILE.refusal(tmp_path, f"{MINIMAL}options:\n  linger.ms: 5\n  {option}: hunter2\n") == (
        f"kafka.yaml line 5: options.{option} cannot be set: {reason}"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TOPICS, "kafka.yaml line 1: bootstrap_servers is missing"),
        (MINIMAL + "partition: 1\n", "kafka.yaml line 3: partition is not a known key; did you mean partitions or"),
        (MINIMAL + "partitions: 0\n", "kafka.yaml line 3: partitions is '0', not a number of at least 1"),
        (MINIMAL.replace("fragments:", "acks: a, fragments:"), "kafka.yaml line 2: topics.acks is not a known key; "),
    ],
)
def test_a_wrong_key_or_value_is_named(tmp_path: Path, text: str, message: str) -> None:
    """The message has the file, the line and the key."""
    assert FILE.refusal(tmp_path, text).startswith(message)
