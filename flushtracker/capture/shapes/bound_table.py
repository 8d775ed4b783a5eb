"""``BoundTable``: one table as its shapes are bound to it, with later changes of its partitions."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from flushtracker.events.registry_events import PartitionEntry, bound_now
from flushtracker.shapes.table_binding import PartitionBinding, TableBinding
from flushtracker.wal.changes import TableName
from flushtracker.wal.mvcc_snapshot import MvccSnapshot


@dataclass(slots=True)
class BoundTable:
    """A table of ``source``: ``base`` from its own entry, and the ``entries`` of its partitions, by OID.

    ``now`` combines both. ``read_at`` is a snapshot taken just before the catalog was last read; ``None`` if unusable.
    """

    source: str
    base: TableBinding
    entries: dict[int, PartitionEntry]
    read_at: MvccSnapshot | None = None
    now: TableBinding = field(init=False)
    partitions: Mapping[int, PartitionBinding] = field(init=False)

    def __post_init__(self) -> None:
        self.now = bound_now(self.base, self.entries.values())
        self.partitions = {partition.oid: partition for partition in self.now.partitions}

    def joined(self, oid: int) -> int | None:
        return self.entries[oid].joined

    def name_of(self, oid: int) -> TableName | None:
        """The recorded name of the table, or of its partition with that OID; ``None`` if it has no such partition."""
        if oid == self.base.oid:
            return self.base.table
        partition = self.partitions.get(oid)
        return None if partition is None else partition.table

    def is_unclear(self, partition: int, lsn: int) -> bool:
        """Whether the transaction that commits at ``lsn`` may have changed a partition before it was attached.

        The partition was a table of its own, and empty when it was found. If the transaction changed it before that,
        the rows were removed again, so most likely it preceded the ATTACH.
        """
        entry = self.entries.get(partition)
        return entry is not None and entry.joined is None and entry.empty_at is not None and lsn < entry.empty_at

    def changed_partitions(self, now: TableBinding, wal_end: Callable[[], int]) -> list[PartitionEntry]:
        """The entries of partitions that were added, altered or removed."""
        changed = []
        for partition in now.partitions:
            known = self.partitions.get(partition.oid)
            if known != partition:
                joined = None if known is None else self.joined(partition.oid)
                entry = self.entries.get(partition.oid)
                empty_at = partition.empty_at if known is None or entry is None else entry.empty_at
                changed.append(PartitionEntry(self.source, now.oid, partition, joined, empty_at=empty_at))
        left = self.partitions.keys() - {partition.oid for partition in now.partitions}
        left_at = wal_end() if left else None
        return changed + [
            PartitionEntry(self.source, now.oid, self.partitions[oid], self.joined(oid), left_at)
            for oid in sorted(left)
        ]

    def missing_partitions(self, now: TableBinding, wal_end: Callable[[], int]) -> list[PartitionEntry]:
        """New entries for known partitions that the table lost while it had no live shapes."""
        left = self.entries.keys() - {partition.oid for partition in now.partitions}
        entries = [self.entries[oid] for oid in sorted(left)]
        return [replace(entry, left_at=wal_end(), lost_with=0) for entry in entries if entry.left_at is None]


def present_partitions(source: str, now: TableBinding) -> list[PartitionEntry]:
    """The entries of a table's partitions when the first of its live shapes is added: each may have rows."""
    return [PartitionEntry(source, now.oid, partition, 0) for partition in now.partitions]
