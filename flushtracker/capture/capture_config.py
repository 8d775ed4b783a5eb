"""Capture's configuration as frozen dataclasses."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from flushtracker.capture.eviction.config import EvictionRule, read_eviction_rule
from flushtracker.capture.wire.event_limit import EventLimit
from flushtracker.config.one_file import read_program
from flushtracker.config.postgres_config import read_connection
from flushtracker.config.secret_options import SecretOptions
from flushtracker.config.status_config import StatusConfig
from flushtracker.config.storage_config import deltalake_options
from flushtracker.config.strict_yaml import YamlMapping
from flushtracker.kafka.kafka_config import KafkaConfig, read_kafka
from flushtracker.wal.fragment_converter import DEFAULT_MAX_BATCH_BYTES

_FULL: Final = "full"


@dataclass(frozen=True, slots=True)
class SlotConfig:
    """The server, the slot and the publication to read. ``connection`` has libpq's keywords.

    ``failover``: whether a new slot is synchronized to standbys (PostgreSQL 17 and later). ``sets_identities``: capture
    sets REPLICA IDENTITY FULL on tables of shapes that need it.
    """

    connection: SecretOptions
    slot: str
    publication: str
    failover: bool = True
    sets_identities: bool = False


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
    """Read the configuration for ``flushtracker capture`` and the commands on its slot.

    Raises:
        ConfigError: the file is not usable; the message names the file, the line and the key.
    """
    file = read_program(path, "capture")
    capture = file.section("capture")
    if "replica_identity" in capture:
        capture.choice("replica_identity", _FULL)
    return CaptureConfig(
        postgres=SlotConfig(
            read_connection(file),
            capture.text("slot").value,
            capture.text("publication").value,
            failover=capture.optional_boolean("failover") is not False,
            sets_identities="replica_identity" in capture,
        ),
        kafka=read_kafka(file),
        shapes=Path(file.root.text("shapes").value),
        acks=file.place("acks"),
        storage_options=deltalake_options(file.section("storage")),
        intervals=_intervals(file.section("capture.intervals")),
        max_batch_size=capture.integer("max_batch_size", at_least=1),
        max_batch_bytes=capture.integer("max_batch_bytes", at_least=1),
        max_tx_size=capture.optional_integer("max_tx_size", at_least=1),
        status=file.status("capture"),
        eviction=read_eviction_rule(file),
    )


def _intervals(intervals: YamlMapping) -> Intervals:
    return Intervals(
        intervals.duration_ms("status"),
        intervals.duration_ms("acks"),
        intervals.duration_ms("keepalive"),
        intervals.duration_ms("shapes"),
        intervals.optional_duration_ms("heartbeat"),
    )
