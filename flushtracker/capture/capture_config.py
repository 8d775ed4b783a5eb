"""Capture's configuration: ``conf/capture.yaml`` as frozen dataclasses."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from flushtracker.capture.eviction.config import EvictionRule, read_eviction_rule
from flushtracker.capture.wire.event_limit import EventLimit
from flushtracker.config.file_kinds import CAPTURE, read_kind
from flushtracker.config.postgres_config import read_connection
from flushtracker.config.secret_options import SecretOptions
from flushtracker.config.status_config import StatusConfig, read_status
from flushtracker.config.storage_config import deltalake_options, read_storage
from flushtracker.config.strict_yaml import YamlMapping
from flushtracker.kafka.kafka_config import KafkaConfig, kafka_config
from flushtracker.postgres.publication_name import PublicationName
from flushtracker.wal.fragment_converter import DEFAULT_MAX_BATCH_BYTES

_FULL: Final = "full"


@dataclass(frozen=True, slots=True)
class SlotConfig:
    """The server, the slot and the publication to read. ``connection`` has libpq's keywords.

    ``failover``: whether a new slot is synchronized to standbys (PostgreSQL 17 and later).
    """

    connection: SecretOptions
    slot: str
    publication: PublicationName
    failover: bool = True


@dataclass(frozen=True, slots=True)
class Intervals:
    """The intervals of periodic work, in milliseconds; ``heartbeat_ms`` is ``None`` for no heartbeats."""

    status_ms: int = 1_000
    acks_ms: int = 1_000
    keepalive_ms: int = 5_000
    shapes_ms: int = 2_000
    heartbeat_ms: int | None = None


@dataclass(frozen=True, slots=True)
class CaptureConfig:
    """The whole configuration. ``max_tx_size`` is ``None`` for no limit."""

    postgres: SlotConfig
    kafka: KafkaConfig
    shapes: Path
    acks: str
    storage_options: SecretOptions
    intervals: Intervals
    max_batch_size: int = 100
    max_batch_bytes: int = DEFAULT_MAX_BATCH_BYTES
    max_tx_size: int | None = None
    status: StatusConfig | None = None
    eviction: EvictionRule | None = None

    @property
    def event_limit(self) -> EventLimit:
        return EventLimit(self.kafka.max_event_bytes, self.max_batch_bytes)


def load_capture_config(path: Path) -> CaptureConfig:
    """Read a configuration file of ``flushtracker capture``.

    Raises:
        ConfigError: the file is not usable; the message names the file, the line and the key.
    """
    root = read_kind(path, CAPTURE)
    limits = ("max_batch_size", "max_batch_bytes", "max_tx_size")
    root.allow(
        "postgres", "kafka", "shapes", "acks", "storage", "storage_options", "intervals", "status", "evict", *limits
    )
    status = read_status(root)
    return CaptureConfig(
        postgres=_slot(root.mapping("postgres")),
        kafka=kafka_config(root.mapping("kafka")),
        shapes=Path(root.text("shapes").value),
        acks=root.text("acks").value,
        storage_options=deltalake_options(read_storage(root), root),
        intervals=_intervals(root.optional_mapping("intervals")),
        max_batch_size=root.integer("max_batch_size", default=100, at_least=1),
        max_batch_bytes=root.integer("max_batch_bytes", default=DEFAULT_MAX_BATCH_BYTES, at_least=1),
        max_tx_size=root.optional_integer("max_tx_size", at_least=1),
        status=status,
        eviction=read_eviction_rule(root, status),
    )


def _slot(postgres: YamlMapping) -> SlotConfig:
    postgres.allow("connection", "slot", "publication", "failover", "replica_identity")
    identity = postgres.optional_text("replica_identity")
    if identity is not None and identity.value != _FULL:
        raise postgres.wrong("replica_identity", _FULL)
    return SlotConfig(
        read_connection(postgres),
        postgres.text("slot").value,
        PublicationName.of(postgres.text("publication").value, sets_identities=identity is not None),
        failover=postgres.optional_boolean("failover") is not False,
    )


def _intervals(intervals: YamlMapping | None) -> Intervals:
    defaults = Intervals()
    if intervals is None:
        return defaults
    intervals.allow("status", "acks", "keepalive", "shapes", "heartbeat")
    return Intervals(
        intervals.optional_duration_ms("status") or defaults.status_ms,
        intervals.optional_duration_ms("acks") or defaults.acks_ms,
        intervals.optional_duration_ms("keepalive") or defaults.keepalive_ms,
        intervals.optional_duration_ms("shapes") or defaults.shapes_ms,
        intervals.optional_duration_ms("heartbeat"),
    )
