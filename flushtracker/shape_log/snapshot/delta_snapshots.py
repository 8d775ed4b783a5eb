"""``DeltaSnapshots``: snapshots in the shape log, for the shapes of the registry table."""

from collections.abc import Sequence
from threading import Event

from pyspark.sql import SparkSession

from flushtracker.config.snapshot_config import SnapshotConfig
from flushtracker.delta.registry_table import RegistryTable
from flushtracker.events.registry import Registry
from flushtracker.shape_log.shape_snapshot import ShapeKey
from flushtracker.shape_log.snapshot.attempt import take_snapshot
from flushtracker.shape_log.snapshot.due_shapes import DueTable
from flushtracker.shape_log.snapshot.live_snapshot_status import LiveSnapshotStatus
from flushtracker.shape_log.snapshot.loop import SnapshotLoop
from flushtracker.shape_log.snapshot.snapshot_store import Outcome
from flushtracker.shape_log.table.snapshots import snapshot_incarnations
from flushtracker.wal.names import LOG_WRITER


class DeltaSnapshots:
    """A :class:`flushtracker.shape_log.snapshot.snapshot_store.SnapshotStore`; Spark reads the rows."""

    def __init__(self, spark: SparkSession, config: SnapshotConfig) -> None:
        self._spark, self._config = spark, config
        self._registry = RegistryTable(config.sink.shapes, config.sink.storage_options)

    def takes(self, writer: str) -> bool:
        return writer == LOG_WRITER

    def has_changed(self) -> bool:
        return self._registry.has_changed()

    def registry(self) -> Registry:
        return self._registry.entries()

    def taken(self) -> dict[ShapeKey, int]:
        return snapshot_incarnations(self._config.sink.log, self._config.sink.storage_options)

    def take(self, group: DueTable, stop: Event, live: LiveSnapshotStatus) -> Outcome:
        return take_snapshot(self._spark, self._config, group, stop, live)


def log_snapshots(
    spark: SparkSession,
    config: SnapshotConfig,
    stop: Event,
    shape_ids: Sequence[str] = (),
    *,
    again: bool = False,
    live: LiveSnapshotStatus | None = None,
) -> SnapshotLoop:
    """The loop that takes snapshots for the shape log of ``config``."""
    return SnapshotLoop(DeltaSnapshots(spark, config), config, stop, shape_ids, again=again, live=live)
