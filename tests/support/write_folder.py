"""A writers' job on files in a folder of its own: its streams, its log, and what it has notified."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event
from typing import Any

from deltalake import DeltaTable
from pyspark.sql import SparkSession

from flushtracker.config.job_config import StateConfig
from flushtracker.config.transport import FilesTransport
from flushtracker.config.write_config import ROLES, FlushesConfig, LogConfig, WriteConfig
from flushtracker.delta.storage import table_rows
from flushtracker.event_files import StreamWriter, read_lines, stream_files
from flushtracker.events.registry_events import ShapeEntry
from flushtracker.events.stream_events import FlushNotification, ShapeChangesEvent
from flushtracker.shape_log.write.query import write_shapes
from flushtracker.wal.log_offset import LogOffset
from tests.support.config_file import write_config
from tests.support.log_trace import LogTrace


@dataclass
class WriteFolder:
    """``root`` holds everything; each :meth:`write` is a file, and with it a micro-batch."""

    root: Path
    _streams: dict[str, StreamWriter] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._streams = {role: StreamWriter(self.root / role) for role in ROLES}

    def write(self, changes: Iterable[ShapeChangesEvent | str], entries: Iterable[ShapeEntry] = ()) -> None:
        """Publish a file of changes, and one of registry entries if there are any."""
        self._streams["shapes"].publish(entry.to_json() for entry in entries)
        lines = (event if isinstance(event, str) else event.to_json() for event in changes)
        self._streams["shape_changes"].publish(lines)

    def twin(self, root: Path) -> "WriteFolder":
        """Another job on the same streams."""
        root.mkdir(parents=True)
        for role in ROLES:
            (root / role).symlink_to(self.root / role, target_is_directory=True)
        return WriteFolder(root)

    def config(self, **changes: Any) -> WriteConfig:
        """The configuration, which writes what is available, a file in each batch."""
        config = WriteConfig(
            transport=FilesTransport({role: str(self.root / role) for role in ROLES}, max_files_per_trigger=1),
            flushes=FlushesConfig(str(self.root / "flushes")),
            state=StateConfig(str(self.root / "checkpoint"), shape_groups=2, shuffle_partitions=2),
            sink=LogConfig(str(self.root / "log"), str(self.root / "log_shapes")),
            write_unit="txn_fragment",
            flush="batch",
            trigger_ms=None,
        )
        return replace(config, **changes)

    def config_file(self) -> Path:
        """The same configuration as a file, for a job in a process of its own."""
        settings = {
            "files": {"path": str(self.root), "max_files_per_trigger": 1},
            "storage": str(self.root),
            "status": False,
            "write": {
                "trigger": "available_now",
                "checkpoint": f"{self.root}/checkpoint",
                "shape_groups": 2,
                "shuffle_partitions": 2,
            },
        }
        return write_config(self.root / "config.yaml", settings)

    def run(self, spark: SparkSession, **changes: Any) -> None:
        """Write what is available."""
        write_shapes(spark, self.config(**changes), Event())

    def log_rows(self, shape_id: str) -> list[tuple[int, int, str]]:
        """Offset and operation of each row of a shape, in offset order."""
        if not DeltaTable.is_deltatable(str(self.root / "log")):
            return []
        columns = ["shape_id", "tx_offset", "op_offset", "operation"]
        rows = table_rows(DeltaTable(str(self.root / "log")), columns).to_pylist()
        return sorted(
            (row["tx_offset"], row["op_offset"], row["operation"]) for row in rows if row["shape_id"] == shape_id
        )

    def trace(self) -> LogTrace:
        """All that was done to the log, of which each step was one that the model allows."""
        trace = LogTrace(self.root / "log")
        for file in stream_files(self.root / "shape_changes"):
            for line in read_lines(file):
                trace.publish(ShapeChangesEvent.from_json(line))
        for step in trace.steps():
            trace.take(step)
        for file in stream_files(self.root / "flushes"):
            for line in read_lines(file):
                trace.notify(FlushNotification.from_json(line), file.stat().st_mtime_ns // 1_000_000)
        return trace

    def notified(self) -> list[dict[str, LogOffset]]:
        """What each file of notifications says, by shape."""
        files = [
            [FlushNotification.from_json(line) for line in read_lines(file)]
            for file in stream_files(self.root / "flushes")
        ]
        return [{event.shape_id: event.offset for event in file} for file in files]
