"""The largest LSN that a PostgreSQL replication slot may confirm while many writers flush at their own pace.

The names below are public: the tracker itself, what a writer of shapes needs (docs/writers.md), and the readers of
shape logs. Each is imported on first use, so a program needs only the packages for the names that it uses. Trackers of
many shapes at once (``ShapeGroup``, ``FragmentChain``) need numpy, and ``FlushNotifier`` needs confluent-kafka.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from flushtracker.errors import CutMissingError, DecodeError, FlushtrackerError, GapError, PositionError
    from flushtracker.events.records import Record, record_of
    from flushtracker.events.registry_events import ShapeEntry, parse_registry_entry
    from flushtracker.events.snapshot_events import SnapshotEnd, SnapshotEvent, SnapshotRow
    from flushtracker.events.stream_events import FlushNotification, FragmentEvent, FragmentShape, ShapeChangesEvent
    from flushtracker.kafka.flush_notifier import FlushNotifier
    from flushtracker.kafka.kafka_config import KafkaConfig, load_kafka_config
    from flushtracker.shape_log.fold import fold
    from flushtracker.shape_log.position import Position
    from flushtracker.shape_log.shape_chain import chain_position, cursor_after, new_items
    from flushtracker.shape_log.snapshot_reader import SnapshotCursor, SnapshotReader
    from flushtracker.shape_log.table.reader import ShapeRead, ShapesRead, read_shape, read_shape_log, read_shapes
    from flushtracker.tracking.aligned_tracker import AlignedTracker
    from flushtracker.tracking.chain_links import ChainLinks, Link
    from flushtracker.tracking.flush_tracker import FlushTracker, Pending
    from flushtracker.tracking.fragment_chain import FragmentChain
    from flushtracker.tracking.group_report import GroupReport, PendingShape
    from flushtracker.tracking.shape_events import ShapeEvent, ShapeEvents
    from flushtracker.tracking.shape_group import ShapeGroup
    from flushtracker.tracking.source_tracker import ChainReport, SourceTracker
    from flushtracker.wal.changes import Commit, LogItem
    from flushtracker.wal.log_offset import LogOffset
    from flushtracker.wal.lsn import format_lsn, parse_lsn

__version__ = "0.1.0"

__all__ = [
    "AlignedTracker",
    "ChainLinks",
    "ChainReport",
    "Commit",
    "CutMissingError",
    "DecodeError",
    "FlushNotification",
    "FlushNotifier",
    "FlushTracker",
    "FlushtrackerError",
    "FragmentChain",
    "FragmentEvent",
    "FragmentShape",
    "GapError",
    "GroupReport",
    "KafkaConfig",
    "Link",
    "LogItem",
    "LogOffset",
    "Pending",
    "PendingShape",
    "Position",
    "PositionError",
    "Record",
    "ShapeChangesEvent",
    "ShapeEntry",
    "ShapeEvent",
    "ShapeEvents",
    "ShapeGroup",
    "ShapeRead",
    "ShapesRead",
    "SnapshotCursor",
    "SnapshotEnd",
    "SnapshotEvent",
    "SnapshotReader",
    "SnapshotRow",
    "SourceTracker",
    "chain_position",
    "cursor_after",
    "fold",
    "format_lsn",
    "load_kafka_config",
    "new_items",
    "parse_lsn",
    "parse_registry_entry",
    "read_shape",
    "read_shape_log",
    "read_shapes",
    "record_of",
]

_NAMES: Final = {
    "shape_log.table.reader": ("ShapeRead", "ShapesRead", "read_shape", "read_shape_log", "read_shapes"),
    "errors": ("CutMissingError", "DecodeError", "FlushtrackerError", "GapError", "PositionError"),
    "events.stream_events": ("FlushNotification", "FragmentEvent", "FragmentShape", "ShapeChangesEvent"),
    "events.snapshot_events": ("SnapshotEnd", "SnapshotEvent", "SnapshotRow"),
    "events.registry_events": ("ShapeEntry", "parse_registry_entry"),
    "kafka.flush_notifier": ("FlushNotifier",),
    "kafka.kafka_config": ("KafkaConfig", "load_kafka_config"),
    "events.records": ("Record", "record_of"),
    "tracking.aligned_tracker": ("AlignedTracker",),
    "tracking.flush_tracker": ("FlushTracker", "Pending"),
    "tracking.chain_links": ("ChainLinks", "Link"),
    "tracking.fragment_chain": ("FragmentChain",),
    "tracking.group_report": ("GroupReport", "PendingShape"),
    "tracking.shape_events": ("ShapeEvent", "ShapeEvents"),
    "tracking.shape_group": ("ShapeGroup",),
    "tracking.source_tracker": ("ChainReport", "SourceTracker"),
    "wal.changes": ("Commit", "LogItem"),
    "wal.log_offset": ("LogOffset",),
    "wal.lsn": ("format_lsn", "parse_lsn"),
    "shape_log.fold": ("fold",),
    "shape_log.position": ("Position",),
    "shape_log.snapshot_reader": ("SnapshotCursor", "SnapshotReader"),
    "shape_log.shape_chain": ("chain_position", "cursor_after", "new_items"),
}
_MODULE_OF: Final = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> object:
    """Import a public name on first use (PEP 562)."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'flushtracker' has no attribute {name!r}")
    value = getattr(import_module(f"flushtracker.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
