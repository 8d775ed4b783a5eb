"""Brokers and topics as frozen dataclasses. Imports no Kafka client."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from flushtracker.config.one_file import OneFile, read_config
from flushtracker.config.secret_options import SecretOptions
from flushtracker.config.strict_yaml import YamlMapping
from flushtracker.events.topic_rules import MAX_EVENT_BYTES, ROLES, SNAPSHOT_ROLES, Topics

_DEFAULT_RETENTION_MS: Final = 7 * 24 * 3_600_000
_DEFAULT_RETRY_TIMEOUT_MS: Final = 60_000
_DEFAULT_PARTITIONS: Final = 4
_DEFAULT_REPLICATION_FACTOR: Final = 3
_LEAST_EVENT_BYTES: Final = 128 << 10
"""Enough for an event that names some shapes or has a row of a few kilobytes, even if all of it is escaped in JSON."""

_ORDER: Final = "flushtracker sets it, because the order and completeness of the streams depend on it"
_RESERVED: Final = {
    "bootstrap.servers": "use kafka.bootstrap_servers instead",
    "metadata.broker.list": "use kafka.bootstrap_servers instead",
    "delivery.timeout.ms": "use kafka.retry_timeout instead",
    "message.timeout.ms": "use kafka.retry_timeout instead",
    "message.max.bytes": "use kafka.max_event_bytes instead",
    "isolation.level": "flushtracker sets it, read_committed wherever records of other programs count",
} | dict.fromkeys(
    (
        "acks",
        "request.required.acks",
        "delivery.report.only.error",
        "enable.gapless.guarantee",
        "enable.idempotence",
        "max.in.flight",
        "max.in.flight.requests.per.connection",
        "message.send.max.retries",
        "partitioner",
        "queue.buffering.max.kbytes",
        "queue.buffering.max.messages",
        "retries",
        "transactional.id",
    ),
    _ORDER,
)
"""Options that the user cannot set, each with the reason for the error message."""


@dataclass(frozen=True, slots=True)
class KafkaConfig:
    """The brokers, the topics and the client's options.

    ``options`` are passed to librdkafka unchanged: TLS, SASL, tuning. ``retry_timeout_ms`` is how long unavailable
    brokers are retried. ``retention_ms`` is the longest stall to survive; topics are created with it, ``partitions``
    and ``replication_factor``. No record is larger than ``max_event_bytes``, with its key.
    """

    bootstrap_servers: str
    topics: Topics
    options: SecretOptions = field(default_factory=SecretOptions)
    retry_timeout_ms: int = _DEFAULT_RETRY_TIMEOUT_MS
    retention_ms: int = _DEFAULT_RETENTION_MS
    partitions: int = _DEFAULT_PARTITIONS
    replication_factor: int = _DEFAULT_REPLICATION_FACTOR
    max_event_bytes: int = MAX_EVENT_BYTES


def load_kafka_config(path: Path) -> KafkaConfig:
    """Read brokers and topics from a file such as ``conf/flushtracker.yaml``.

    Raises:
        ConfigError: naming the file, the line and the key.
    """
    return read_kafka(read_config(path))


def read_kafka(file: OneFile) -> KafkaConfig:
    """Read ``kafka``; the topics of snapshots only if these are published.

    Raises:
        ConfigError: naming the file, the line and the key.
    """
    kafka = file.section("kafka")
    roles = (*ROLES, *SNAPSHOT_ROLES) if file.publishes_snapshots else ROLES
    return KafkaConfig(
        bootstrap_servers=file.brokers,
        topics=Topics(**{role: file.topic(role) for role in roles}),
        options=_options(kafka.optional_mapping("options")),
        retry_timeout_ms=kafka.optional_duration_ms("retry_timeout") or _DEFAULT_RETRY_TIMEOUT_MS,
        retention_ms=kafka.duration_ms("retention"),
        partitions=kafka.integer("partitions", at_least=1),
        replication_factor=kafka.integer("replication_factor", at_least=1),
        max_event_bytes=kafka.integer("max_event_bytes", at_least=_LEAST_EVENT_BYTES, at_most=MAX_EVENT_BYTES),
    )


def _options(options: YamlMapping | None) -> SecretOptions:
    """Options for librdkafka; raises ``ConfigError`` for one that the user cannot set."""
    if options is None:
        return SecretOptions()
    for name, reason in _RESERVED.items():
        if name in options:
            raise options.error(name, f"cannot be set: {reason}")
    return SecretOptions(options.scalars())
