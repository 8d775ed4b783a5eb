"""The configuration of snapshots for writers with other storages: ``kafka`` instead of ``sink``."""

from dataclasses import dataclass
from pathlib import Path

from flushtracker.config.file_kinds import SNAPSHOT, read_kind
from flushtracker.config.job_config import read_trigger_ms
from flushtracker.config.postgres_config import TablesConfig, read_tables
from flushtracker.config.status_config import StatusConfig, read_status
from flushtracker.config.streams import SNAPSHOTS
from flushtracker.kafka.kafka_config import KafkaConfig, kafka_config


@dataclass(frozen=True, slots=True)
class PublishConfig:
    """The whole file. ``trigger_ms`` is ``None`` for a job that takes the missing snapshots and stops."""

    postgres: TablesConfig
    kafka: KafkaConfig
    trigger_ms: int | None = None
    status: StatusConfig | None = None


def load_publish_config(path: Path) -> PublishConfig | None:
    """Read a configuration of ``flushtracker snapshot`` with ``kafka``; ``None`` if it has no such section.

    Raises:
        ConfigError: naming the file, the line and the key.
    """
    root = read_kind(path, SNAPSHOT)
    if "kafka" not in root:
        return None
    root.allow("postgres", "kafka", "trigger", "status")
    # Either both topics are set or neither.
    root.mapping("kafka").mapping("topics").text(SNAPSHOTS)
    return PublishConfig(
        read_tables(root.mapping("postgres")),
        kafka_config(root.mapping("kafka")),
        read_trigger_ms(root) if "trigger" in root else None,
        read_status(root),
    )
