"""``PartitionMap``: maps each partition to its tables, with the transaction from which its changes count as theirs.

Tables are identified by their OIDs, because names change: after a schema is renamed, another table may have the name.
Without a catalog, as in a replay, they are identified by name.
"""

from collections.abc import Mapping, Set
from types import MappingProxyType
from typing import TypeAlias

from flushtracker.wal.changes import TableName

TableKey: TypeAlias = int | TableName
"""A table's identity (it may be a partition): its OID, or its name without a catalog."""

_NONE: Mapping[TableKey, int] = MappingProxyType({})


class PartitionMap:
    """The leaf partitions of tables, each with the commit LSN of the first transaction that changed it.

    Before that transaction the partition had no rows; 0 if it may always have had rows. A partition may belong to
    several tables: to a root, and to partitioned tables between the two.
    """

    def __init__(self) -> None:
        self._joined: dict[TableKey, dict[TableKey, int]] = {}
        self._tables: dict[TableKey, tuple[TableKey, ...]] = {}
        self._last: tuple[TableKey, int, frozenset[TableKey]] | None = None

    def add(self, table: TableKey, partition: TableKey, joined: int = 0) -> None:
        """Add a partition, or change when it joined."""
        partitions = self._joined.setdefault(table, {})
        if partition not in partitions:
            self._tables[partition] = (*self._tables.get(partition, ()), table)
        partitions[partition] = joined
        self._last = None

    def discard(self, table: TableKey, partition: TableKey) -> None:
        partitions = self._joined.get(table, {})
        if partition not in partitions:
            return
        del partitions[partition]
        if not partitions:
            del self._joined[table]
        if left := tuple(each for each in self._tables[partition] if each != table):
            self._tables[partition] = left
        else:
            del self._tables[partition]
        self._last = None

    @property
    def tables(self) -> Set[TableKey]:
        return self._joined.keys()

    def tables_of(self, partition: TableKey) -> tuple[TableKey, ...]:
        """The tables that have this partition; empty for any other table."""
        return self._tables.get(partition, ())

    def of(self, table: TableKey) -> Mapping[TableKey, int]:
        """The partitions of a table with their first commit LSN; empty for any other table."""
        return self._joined.get(table, _NONE)

    def at(self, table: TableKey, lsn: int) -> frozenset[TableKey]:
        """The partitions in which a transaction with this commit LSN may have found rows."""
        if self._last is None or self._last[:2] != (table, lsn):
            found = frozenset(partition for partition, joined in self.of(table).items() if joined <= lsn)
            self._last = (table, lsn, found)
        return self._last[2]

    def check_invariants(self) -> None:
        """Raise ``AssertionError`` if the two directions disagree; for tests."""
        down = {(table, partition) for table, partitions in self._joined.items() for partition in partitions}
        up = [(table, partition) for partition, tables in self._tables.items() for table in tables]
        if sorted(map(str, down)) != sorted(map(str, up)) or not all(self._joined.values()):
            raise AssertionError(f"tables have the partitions {down}, and partitions the tables {up}")
