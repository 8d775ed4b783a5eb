"""The partitions that an earlier release recorded with each shape, as entries of their own."""

from collections import defaultdict
from collections.abc import Iterable, Iterator

from flushtracker.capture.shape_registry import SourceEntries
from flushtracker.events.registry_events import PartitionEntry, ShapeEntry
from flushtracker.wal.changes import TableName


def earlier_partitions(entries: SourceEntries) -> Iterator[PartitionEntry]:
    """What the registry still lacks: an entry for each partition that came later than the table's own entry.

    Shapes did not all list the same. What one lists as there from its start has no rows from before, if for another it
    joined later, or has yet to join.
    """
    known = {(entry.table_oid, entry.binding.oid) for entry in entries.partitions}
    shapes = defaultdict[int, list[ShapeEntry]](list)
    for shape in entries.shapes:
        if shape.removed_at is None and shape.definition.partitions:
            shapes[shape.table_oid].append(shape)
    for table in entries.tables:
        for partition in table.binding.partitions:
            joined = _joined(partition.table, shapes[table.binding.oid])
            if joined != 0 and (table.binding.oid, partition.oid) not in known:
                yield PartitionEntry(table.source, table.binding.oid, partition, joined)


def _joined(partition: TableName, shapes: Iterable[ShapeEntry]) -> int | None:
    """When a partition joined, for all shapes on its table; see :class:`PartitionEntry`."""
    last = 0
    for shape in shapes:
        if partition not in shape.definition.partitions:
            return None
        last = max(last, dict(shape.joined).get(partition, 0))
    return last
