"""The configuration of the snapshots' job: ``conf/snapshot_shapes.yaml`` as frozen dataclasses.

Paths are kept as written. Relative ones start at the current directory; URIs such as ``s3://…`` are paths too.
"""

from dataclasses import dataclass, field
from pathlib import Path

from flushtracker.config.file_kinds import SNAPSHOT, read_kind
from flushtracker.config.job_config import read_trigger_ms
from flushtracker.config.postgres_config import TablesConfig, read_tables
from flushtracker.config.spark_config import SparkConfig, read_spark
from flushtracker.config.status_config import StatusConfig, read_status
from flushtracker.config.storage_path import require_distinct_paths
from flushtracker.config.write_config import LogConfig, read_log_sink


@dataclass(frozen=True, slots=True)
class SnapshotConfig:
    """The whole file. ``trigger_ms`` is ``None`` for a job that takes the missing snapshots and stops."""

    postgres: TablesConfig
    sink: LogConfig
    trigger_ms: int | None = None
    status: StatusConfig | None = None
    spark: SparkConfig = field(default_factory=SparkConfig)


def load_snapshot_config(path: Path) -> SnapshotConfig:
    """Read a configuration file of ``flushtracker snapshot``.

    Raises:
        ConfigError: naming the file, the line and the key.
    """
    root = read_kind(path, SNAPSHOT)
    root.allow("postgres", "storage", "spark", "sink", "trigger", "status")
    spark = read_spark(root)
    config = SnapshotConfig(
        read_tables(root.mapping("postgres")),
        read_log_sink(root.mapping("sink"), spark.storage),
        read_trigger_ms(root) if "trigger" in root else None,
        read_status(root),
        spark,
    )
    require_distinct_paths(root, [("sink", "log"), ("sink", "shapes")])
    return config
