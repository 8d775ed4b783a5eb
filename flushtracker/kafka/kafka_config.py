"""Brokers and topics: ``conf/kafka.yaml`` as frozen dataclasses. Imports no Kafka client."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from flushtracker.config.file_kinds import KAFKA, read_kind
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
    "bootstrap.servers": "use bootstrap_servers instead",
    "metadata.broker.list": "use bootstrap_servers instead",
    "delivery.timeout.ms": "use retry_timeout instead",
    "message.timeout.ms": "use retry_timeout instead",
    "message.max.bytes": "use max_event_bytes instead",
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
    """Read a file such as ``conf/kafka.yaml``.

    Raises:
        ConfigError: naming the file, the line and the key.
    """
    return kafka_config(read_kind(path, KAFKA))


def kafka_config(section: YamlMapping) -> KafkaConfig:
    """Read the same settings from a section of another file.

    Raises:
        ConfigError: naming the file, the line and the key.
    """
    topic_keys = ("retention", "partitions", "replication_factor", "max_event_bytes")
    section.allow("bootstrap_servers", "topics", "options", "retry_timeout", *topic_keys)
    max_event_bytes = section.optional_integer("max_event_bytes", at_least=_LEAST_EVENT_BYTES, at_most=MAX_EVENT_BYTES)
    return KafkaConfig(
        bootstrap_servers=section.text("bootstrap_servers").value,
        topics=_topics(section.mapping("topics")),
        options=read_options(section.optional_mapping("options")),
        retry_timeout_ms=section.optional_duration_ms("retry_timeout") or _DEFAULT_RETRY_TIMEOUT_MS,
        retention_ms=section.optional_duration_ms("retention") or _DEFAULT_RETENTION_MS,
        partitions=section.integer("partitions", default=_DEFAULT_PARTITIONS, at_least=1),
        replication_factor=section.integer("replication_factor", default=_DEFAULT_REPLICATION_FACTOR, at_least=1),
        max_event_bytes=MAX_EVENT_BYTES if max_event_bytes is None else max_event_bytes,
    )


def _topics(topics: YamlMapping) -> Topics:
    topics.allow(*ROLES, *SNAPSHOT_ROLES)
    has_snapshots = any(role in topics for role in SNAPSHOT_ROLES)
    roles: dict[str, str] = {}
    for role in (*ROLES, *SNAPSHOT_ROLES) if has_snapshots else ROLES:
        name = topics.text(role).value
        if name in roles:
            raise topics.error(role, f"is the same topic as {roles[name]}; each stream needs its own")
        roles[name] = role
    return Topics(**{role: name for name, role in roles.items()})


def read_options(options: YamlMapping | None) -> SecretOptions:
    """Options for librdkafka; raises ``ConfigError`` for one that the user cannot set."""
    if options is None:
        return SecretOptions()
    for name, reason in _RESERVED.items():
        if name in options:
            raise options.error(name, f"cannot be set: {reason}")
    return SecretOptions(options.scalars())
