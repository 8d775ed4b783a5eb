"""The largest LSN that a PostgreSQL replication slot may confirm while many writers flush at their own pace.

The names below are the public API: the tracker itself, and the events that writers exchange with it. Each is imported
on first use, so that a program needs only the dependencies of the modules that it uses.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from flushtracker.errors import DecodeError, FlushtrackerError, GapError
    from flushtracker.events.stream_events import FlushNotification, FragmentEvent, FragmentShape, ShapeChangesEvent
    from flushtracker.kafka.records import Record, record_of
    from flushtracker.tracking.flush_tracker import FlushTracker, Pending
    from flushtracker.tracking.fragment_chain import FragmentChain, Link
    from flushtracker.tracking.shape_group import ShapeFlush, ShapeFragment, ShapeGroup
    from flushtracker.tracking.source_tracker import SourceTracker
    from flushtracker.wal.changes import Commit, LogItem
    from flushtracker.wal.log_offset import LogOffset
    from flushtracker.wal.lsn import format_lsn, parse_lsn

__version__ = "0.1.0"

__all__ = [
    "Commit",
    "DecodeError",
    "FlushNotification",
    "FlushTracker",
    "FlushtrackerError",
    "FragmentChain",
    "FragmentEvent",
    "FragmentShape",
    "GapError",
    "Link",
    "LogItem",
    "LogOffset",
    "Pending",
    "Record",
    "ShapeChangesEvent",
    "ShapeFlush",
    "ShapeFragment",
    "ShapeGroup",
    "SourceTracker",
    "format_lsn",
    "parse_lsn",
    "record_of",
]

_MODULES: Final = (
    "errors",
    "wal.lsn",
    "wal.log_offset",
    "wal.changes",
    "tracking.flush_tracker",
    "tracking.source_tracker",
    "tracking.fragment_chain",
    "tracking.shape_group",
    "events.stream_events",
    "kafka.records",
)


def __getattr__(name: str) -> object:
    """Import a public name on first use (PEP 562)."""
    if name in __all__:
        for module in _MODULES:
            found = import_module(f"flushtracker.{module}")
            if hasattr(found, name):
                return getattr(found, name)
    raise AttributeError(f"module 'flushtracker' has no attribute {name!r}")
