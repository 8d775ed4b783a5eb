"""``BoundTables``: the tables of a source's shapes, each as the catalog described it when its shapes were bound to it.

A table is compared with the catalog again whenever the server describes it, after each connection, and at intervals.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from flushtracker.capture.outbox import Outbox
from flushtracker.capture.start_visibility import Transactions
from flushtracker.events.registry_events import ShapeEntry, TableEntry
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.table_binding import TableBinding
from flushtracker.wal.changes import Relation


class Tables(Transactions, Protocol):
    """Queries to the server, over an ordinary connection next to the stream.

    Each raises ``PostgresUnavailableError`` if the connection is lost.
    """

    def wal_end(self) -> int:
        """The current end of the flushed WAL: everything sent so far committed before it. It survives a crash."""

    def resolve(self, definitions: Iterable[ShapeDefinition]) -> Sequence[tuple[ShapeDefinition, TableBinding]]:
        """Each definition, completed from the catalog, and its table as it is now; raises ``ShapeError``."""

    def ancestors(self, oid: int, xid: int) -> frozenset[int]:
        """The OIDs of a table's partitioned ancestors, as of the committed transaction ``xid``."""

    def bindings(self, oids: Iterable[int]) -> Mapping[int, TableBinding]:
        """The tables with these OIDs as they are now, by OID; one that was dropped is left out."""

    def has_rows(self, oid: int) -> bool:
        """Whether a table has, or has had, rows; never ``False`` for one that was attached with rows in it."""

    def check_publication(self) -> str:
        """The publication's version; raises ``PostgresError`` if it does not publish everything."""


class BoundTables:
    """The bindings of one source by OID. ``server`` is the current connection's; each reconnect replaces it."""

    def __init__(self, source: str, entries: Iterable[TableEntry], outbox: Outbox, server: Tables) -> None:
        self.server = server
        self._source = source
        self._outbox = outbox
        self._bindings = {entry.binding.oid: entry.binding for entry in entries}

    def __getitem__(self, oid: int) -> TableBinding:
        return self._bindings[oid]

    def __iter__(self) -> Iterator[TableBinding]:
        return iter(self._bindings.values())

    @property
    def entries(self) -> tuple[TableEntry, ...]:
        """The tables' entries in the registry."""
        return tuple(TableEntry(self._source, binding) for binding in self)

    def record(self, binding: TableBinding) -> None:
        """Bind shapes to the table as it is now, in place of what was recorded of it."""
        self._outbox.publish_entries([TableEntry(self._source, binding)])
        self._bindings[binding.oid] = binding

    def altered(self, oids: Iterable[int]) -> dict[int, TableBinding | None]:
        """Those of the tables that differ from the catalog, in the order of their OIDs, as they are now.

        ``None``: it was dropped.
        """
        wanted = sorted(set(oids))
        now = self.server.bindings(wanted)
        return {oid: now.get(oid) for oid in wanted if now.get(oid) != self[oid]}

    def without_empty_arrivals(self, now: TableBinding) -> TableBinding:
        """``now``, in which each new partition that is empty counts as attached without rows."""
        bound = self[now.oid]
        known = {partition.oid for partition in bound.partitions}
        partitions = tuple(
            replace(partition, may_have_rows=self.server.has_rows(partition.oid))
            if partition.oid not in known
            and (partition.may_have_rows or not set(partition.published_by) & set(bound.published_by))
            else partition
            for partition in now.partitions
        )
        return replace(now, partitions=partitions)

    def with_partitions(self, entry: ShapeEntry) -> ShapeEntry:
        """The entry with all of its table's partitions: one may have been created after the shape was resolved."""
        known = entry.definition.partitions
        new = tuple(each.table for each in self[entry.table_oid].partitions if each.table not in known)
        return replace(entry, definition=replace(entry.definition, partitions=(*known, *new))) if new else entry

    def with_partition(self, entry: ShapeEntry, relation: Relation, lsn: int) -> ShapeEntry:
        """The entry with ``relation`` as a partition from ``lsn`` on; the same object if it is none, or known."""
        definition = entry.definition
        # Under its current name: in a transaction that is resent, it may have an older one.
        members = [(partition.oid, partition.table) for partition in self[entry.table_oid].partitions]
        if (relation.relation_id, relation.table) not in members or relation.table in definition.partitions:
            return entry
        partitions, joined = (*definition.partitions, relation.table), (*definition.joined, (relation.table, lsn))
        return replace(entry, definition=replace(definition, partitions=partitions, joined=joined))
