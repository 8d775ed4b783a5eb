"""The configuration of the snapshots' job as frozen dataclasses.

Paths are kept as written. Relative ones start at the current directory; URIs such as ``s3://…`` are paths too.
"""

from dataclasses import dataclass, field
from pathlib import Path

from flushtracker.config.job_config import read_trigger_ms
from flushtracker.config.one_file import read_program
from flushtracker.config.postgres_config import TablesConfig, read_tables
from flushtracker.config.spark_config import SparkConfig, read_spark
from flushtracker.config.status_config import StatusConfig
from flushtracker.config.write_config import LogConfig, read_log


@dataclass(frozen=True, slots=True)
class SnapshotConfig:
    """All of it. ``trigger_ms`` is ``None`` for a job that takes the missing snapshots and stops."""

    postgres: TablesConfig
    sink: LogConfig
    trigger_ms: int | None = None
    status: StatusConfig | None = None
    spark: SparkConfig = field(default_factory=SparkConfig)


def load_snapshot_config(path: Path) -> SnapshotConfig:
    """Read the configuration for ``flushtracker snapshot``.

    Raises:
        ConfigError: naming the file, the line and the key.
    """
    file = read_program(path, "snapshot")
    return SnapshotConfig(
        read_tables(file, connections=2),
        read_log(file),
        read_trigger_ms(file.section("snapshot")),
        file.status("snapshot"),
        read_spark(file, "snapshot"),
    )
