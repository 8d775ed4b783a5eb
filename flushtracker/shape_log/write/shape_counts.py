"""Counts the shapes in the registry for the status and the log: live, ended, and without a snapshot."""

from collections import defaultdict
from collections.abc import Mapping
from heapq import nlargest, nsmallest

from flushtracker.events.registry import Registry
from flushtracker.events.registry_events import ShapeEntry
from flushtracker.shape_log.shape_snapshot import ShapeKey
from flushtracker.status.document import bounded
from flushtracker.status.write_status import MOST_LISTED, ShapeNote, SourceShapes
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.names import LOG_WRITER

_REMOVED = "its owner removed it"


def count_shapes(registry: Registry, snapshots: Mapping[ShapeKey, int]) -> dict[str, SourceShapes]:
    """The counts by source, without other writers' shapes. O(shapes).

    ``snapshots`` has the incarnation of each shape's last snapshot.
    """
    live, ended = defaultdict[str, list[ShapeEntry]](list), defaultdict[str, list[ShapeEntry]](list)
    for entry in registry.entries.values():
        if isinstance(entry, ShapeEntry) and entry.definition.writer == LOG_WRITER:
            (live if entry.removed_at is None else ended)[entry.source].append(entry)
    return {source: _counted(live[source], ended[source], snapshots) for source in sorted({*live, *ended})}


def with_own_flushes(registry: Registry) -> list[str]:
    """The ids of live shapes with flush limits by bytes or time, which ``flush: batch`` does not use."""
    return sorted(
        entry.definition.id
        for entry in registry.entries.values()
        if isinstance(entry, ShapeEntry) and entry.definition.writer == LOG_WRITER and entry.removed_at is None
        if (entry.definition.flush.bytes, entry.definition.flush.interval_ms) != (None, None)
    )


def _counted(live: list[ShapeEntry], ended: list[ShapeEntry], snapshots: Mapping[ShapeKey, int]) -> SourceShapes:
    lacking = [
        entry.definition.id
        for entry in live
        if entry.definition.snapshot
        and snapshots.get((entry.source, entry.definition.id), 0) < entry.definition.incarnation
    ]
    last = nlargest(MOST_LISTED, ended, key=lambda entry: (_removed_at(entry), entry.definition.id))
    notes = (ShapeNote(entry.definition.id, bounded(entry.ended_because or _REMOVED)) for entry in last)
    return SourceShapes(len(live), len(ended), tuple(notes), len(lacking), tuple(nsmallest(MOST_LISTED, lacking)))


def _removed_at(entry: ShapeEntry) -> LogOffset:
    return entry.removed_at or LogOffset.before_all()
