"""The configuration of snapshots for writers of other storages: ``snapshot.into: kafka``."""

from dataclasses import dataclass
from pathlib import Path

from flushtracker.config.job_config import read_trigger_ms
from flushtracker.config.one_file import read_program
from flushtracker.config.postgres_config import TablesConfig, read_tables
from flushtracker.config.status_config import StatusConfig
from flushtracker.kafka.kafka_config import KafkaConfig, read_kafka


@dataclass(frozen=True, slots=True)
class PublishConfig:
    """All of it. ``trigger_ms`` is ``None`` for a job that takes the missing snapshots and stops."""

    postgres: TablesConfig
    kafka: KafkaConfig
    trigger_ms: int | None = None
    status: StatusConfig | None = None


def load_publish_config(path: Path) -> PublishConfig | None:
    """Read the configuration for a ``flushtracker snapshot`` that publishes rows; ``None`` if it writes them.

    Raises:
        ConfigError: naming the file, the line and the key.
    """
    file = read_program(path, "snapshot")
    if not file.publishes_snapshots:
        return None
    return PublishConfig(
        read_tables(file, connections=2),
        read_kafka(file),
        read_trigger_ms(file.section("snapshot")),
        file.status("snapshot"),
    )
