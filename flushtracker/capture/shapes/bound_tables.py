"""``BoundTables``: the tables of a source's shapes, as the catalog described them when the shapes were bound.

A table is compared with the catalog on each connection, at intervals, and when the server describes it: before the
first change of a session and after an ALTER TABLE. A description belongs to a transaction. A comparison that
has already seen that transaction is not repeated, so many new partitions are read at once, and a reconnect reads each
table once.

The partitions of a table are recorded once for all its shapes; :class:`PartitionMap` has those whose changes are
routed. A new partition *joins* with the first transaction that changes it. If it joined earlier, it would be missing
from an earlier TRUNCATE of all partitions that is still to arrive. One that has left is *lost* with the first
transaction after that was noticed.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from typing import Protocol

from flushtracker.capture.shapes.bound_table import BoundTable, present_partitions
from flushtracker.capture.shapes.delayed_shapes import PublishableTables
from flushtracker.capture.shapes.start_visibility import Transactions
from flushtracker.capture.wire.outbox import Outbox
from flushtracker.events.registry_events import PartitionEntry, RegistryEntry, TableEntry
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.partition_map import PartitionMap
from flushtracker.shapes.table_binding import TableBinding
from flushtracker.wal.changes import TableName
from flushtracker.wal.mvcc_snapshot import CatalogRow


class ServerQueries(Transactions, PublishableTables, Protocol):
    """Queries to the server, over an ordinary connection next to the stream.

    Each raises ``PostgresUnavailableError`` if the connection is lost.
    """

    def wal_end(self) -> int:
        """The current end of the flushed WAL: everything sent so far committed before it.

        It survives a crash. Later WAL may not; other commits then get its LSNs.
        """

    def insert_lsn(self) -> int:
        """The current end of the WAL, flushed or not: everything visible by now committed before it."""

    def flush_commits(self) -> None:
        """Flush the WAL up to everything visible now, and wait for that."""

    def resolve(self, definitions: Iterable[ShapeDefinition]) -> Sequence[tuple[ShapeDefinition, TableBinding]]:
        """Each definition, completed from the catalog, with its current table; raises ``ShapeError``.

        A definition with subqueries is repeated with each of its other tables.
        """

    def unreadable_tables(self, oids: Collection[int]) -> Collection[int]:
        """The tables where something has a name without equivalent in UTF-8, which no query can read."""

    def ancestors(self, oid: int, xid: int) -> frozenset[int]:
        """The OIDs of a table's partitioned ancestors, as of the committed transaction ``xid``."""

    def empty_at(self, oid: int) -> int | None:
        """The end of the WAL, flushed or not, at a moment when the table was empty.

        ``None`` if it has or had rows, or had some before it was published and the stream may not send new ones.
        """

    def publication_path(self, oids: Iterable[int]) -> Mapping[int, frozenset[CatalogRow]]:
        """By OID, the catalog rows through which tables are published, regardless of their partitions."""

    def emit_transaction(self) -> None:
        """Have the server send a transaction that commits after this call; on a standby this may do nothing."""

    def check_publication(self) -> str:
        """The publication's version; raises ``PostgresError`` if it does not publish everything."""


class BoundTables:
    """The bindings of one source by OID; keeps ``partitions`` in step with them. Call :meth:`connect` first."""

    def __init__(
        self,
        source: str,
        entries: Iterable[TableEntry],
        partition_entries: Iterable[PartitionEntry],
        outbox: Outbox,
        partitions: PartitionMap,
    ) -> None:
        self._source = source
        self._outbox = outbox
        self._map = partitions
        by_table = defaultdict[int, dict[int, PartitionEntry]](dict)
        for entry in partition_entries:
            by_table[entry.table_oid][entry.binding.oid] = entry
        bindings = [entry.binding for entry in entries]
        self._tables = {binding.oid: BoundTable(source, binding, by_table[binding.oid]) for binding in bindings}
        # By table and partition: partitions that have left and whose earlier changes the connection may still send, and
        # the subset of these whose changes may still come.
        self._left: set[tuple[int, int]] = set()
        self._leaving: dict[tuple[int, int], PartitionEntry] = {}
        self._connected_at = -1
        """The end of the WAL when the connection began; -1 if it is known that nothing is lost."""

    def connect(self, server: ServerQueries, confirmed_lsn: int) -> None:
        """Continue with queries over a new connection, which sends from ``confirmed_lsn`` on."""
        self._server = server
        for key in self._leaving:
            self._map.discard(*key)
        self._left.clear()
        self._leaving.clear()
        for oid, table in self._tables.items():
            table.read_at = None
            for entry in table.entries.values():
                if entry.left_at is not None and (entry.lost_with is None or entry.lost_with >= confirmed_lsn):
                    self._leave(entry)
            self._map_all(oid)
        if self.is_any_unlost():
            self._connected_at = self._server.wal_end()
        self._request_transaction()

    def _request_transaction(self) -> None:
        """If tables are about to lose partitions, have the server send a transaction, with which they lose them."""
        if self.is_any_unlost():
            self._server.emit_transaction()

    def is_any_unlost(self) -> bool:
        """Whether a table is to lose a partition with the next transaction."""
        return any(entry.lost_with is None for entry in self._leaving.values())

    def has_lost_since(self, lsn: int) -> bool:
        """Whether a table lost a partition with a transaction that commits at ``lsn`` or later."""
        return any((entry.lost_with or -1) >= lsn for entry in self.partition_entries)

    def must_lose_with_nothing(self, lsn: int) -> bool:
        """Whether partitions are lost with a transaction without changes that commits at ``lsn``.

        A transaction that an earlier connection without messages may have skipped does not count: later events say that
        there is none. It counts only if the entry already names it.
        """
        return any(
            entry.lost_with == lsn
            or (entry.lost_with is None and entry.left_at is not None and max(entry.left_at, self._connected_at) <= lsn)
            for entry in self._leaving.values()
        )

    def _leave(self, entry: PartitionEntry) -> None:
        key = entry.table_oid, entry.binding.oid
        self._left.add(key)
        self._leaving[key] = entry

    def __getitem__(self, oid: int) -> TableBinding:
        return self._tables[oid].now

    def __iter__(self) -> Iterator[TableBinding]:
        return (table.now for table in self._tables.values())

    @property
    def entries(self) -> tuple[TableEntry, ...]:
        return tuple(TableEntry(self._source, table.base) for table in self._tables.values())

    @property
    def partition_entries(self) -> tuple[PartitionEntry, ...]:
        return tuple(entry for table in self._tables.values() for entry in table.entries.values())

    def table(self, oid: int) -> BoundTable:
        """A table with its entries; do not modify it."""
        return self._tables[oid]

    def has_seen(self, table: int, xid: int) -> bool:
        """Whether the table was read from the catalog after transaction ``xid`` had become visible."""
        read_at = self._tables[table].read_at
        return read_at is not None and read_at.sees(xid)

    def altered(self, oids: Iterable[int]) -> dict[int, TableBinding | None]:
        """The current bindings of those tables that differ from the catalog, in OID order.

        ``None`` if the table was dropped.
        """
        wanted = sorted(set(oids))
        if not wanted:
            return {}
        # A standby's snapshot does not show which transactions are in progress.
        read_at = None if self._server.is_standby() else self._server.snapshot()
        now = self._server.bindings(wanted)
        for oid in wanted:
            self._tables[oid].read_at = read_at
        return {oid: now.get(oid) for oid in wanted if now.get(oid) != self[oid]}

    def column_order(self, oid: int, relation_id: int, lsn: int) -> tuple[str, ...] | None:
        """The columns of a partition of table ``oid``, in the partition's order; ``None`` for the table's order.

        The order matters only for transactions that commit before a column was altered; otherwise the catalog is not
        read.
        """
        bound = self[oid]
        if relation_id == oid or all(column.altered_before <= lsn for column in bound.columns):
            return None
        own = self._server.bindings([relation_id]).get(relation_id)
        return () if own is None else tuple(column.name for column in own.columns)

    def without_empty_arrivals(self, now: TableBinding) -> TableBinding:
        """``now``, with each new empty partition marked as attached without rows.

        The first partition that may have rows ends all shapes of the table, so the others are not checked: capture
        would have to wait for each one that is locked.
        """
        bound, known = self[now.oid], self._tables[now.oid].partitions
        partitions, all_empty = [], True
        for partition in now.partitions:
            is_published = set(partition.published_by) & set(bound.published_by)
            if partition.oid not in known and (partition.may_have_rows or not is_published):
                empty_at = self._server.empty_at(partition.oid) if all_empty else None
                all_empty = empty_at is not None
                partitions.append(replace(partition, may_have_rows=not all_empty, empty_at=empty_at))
            else:
                partitions.append(partition)
        return replace(now, partitions=tuple(partitions))

    def size_reason(self, now: TableBinding) -> str | None:
        """Why a table cannot be recorded in its current form; ``None`` if it can. Its partitions have small entries of
        their own.
        """
        return self._outbox.limit.size_reason(TableEntry(self._source, replace(now, partitions=())))

    def returned(self, now: TableBinding) -> list[TableName]:
        """The partitions that have left and are in ``now`` again, while shapes may still depend on their having
        left.
        """
        return [each.table for each in now.partitions if (now.oid, each.oid) in self._left]

    def handle_begin(self, lsn: int) -> list[tuple[int, int]]:
        """Handle the start of a transaction that commits at ``lsn``; return the lost partitions, by table, that it
        cannot change.
        """
        past = [key for key, entry in self._leaving.items() if entry.lost_with is not None and entry.lost_with < lsn]
        for key in past:
            del self._leaving[key]
        return past

    def lose(self, lsn: int, *, is_empty: bool) -> list[PartitionEntry]:
        """The partitions that tables lose with the transaction that commits at ``lsn``.

        That is the first transaction after the partition was found to have left: all its changes as the table's
        partition committed earlier. The entry may be lost until the transaction is confirmed, because the server then
        resends the transaction. But a transaction that ``is_empty`` except for messages is only recognized by its
        entry.
        """
        placed = []
        for key, entry in self._leaving.items():
            if entry.lost_with is None and entry.left_at is not None and entry.left_at <= lsn:
                lost = self._leaving[key] = self._tables[key[0]].entries[key[1]] = replace(entry, lost_with=lsn)
                placed.append(lost)
        if is_empty and placed:
            self._outbox.publish_entries(placed)
        else:
            for lost in placed:
                self._outbox.publish_entry(lost)
        return [entry for _, entry in sorted(self._leaving.items()) if entry.lost_with == lsn]

    def forget_lost(self, confirmed_lsn: int) -> None:
        """Forget the partitions that were lost before ``confirmed_lsn``, from which on the server may send again.

        A table's owner may create and drop partitions without end.
        """
        entries = [
            entry
            for entry in self.partition_entries
            if entry.is_lost_before(confirmed_lsn) and (entry.table_oid, entry.binding.oid) not in self._leaving
        ]
        for entry in entries:
            del self._tables[entry.table_oid].entries[entry.binding.oid]
            self._left.discard((entry.table_oid, entry.binding.oid))
        self._outbox.delete_entries(entries)

    def record(self, bindings: Iterable[TableBinding], *, has_shapes: bool) -> None:
        """Bind shapes to the current tables, replacing earlier records.

        Without earlier shapes, a table's partitions are the current ones, which may have rows.
        """
        found = {now.oid: self._recorded(now, has_shapes=has_shapes) for now in bindings}
        self._outbox.publish_entries([entry for entries, _ in found.values() for entry in entries])
        changed = [entry for entries, _ in found.values() for entry in entries if isinstance(entry, PartitionEntry)]
        for entry in changed:
            self._leaving.pop((entry.table_oid, entry.binding.oid), None)
            self._left.discard((entry.table_oid, entry.binding.oid))
            if entry.left_at is not None and has_shapes:
                self._leave(entry)
        for oid, (_, bound) in found.items():
            for partition in tuple(self._map.of(oid)):
                self._map.discard(oid, partition)
            self._tables[oid] = bound
            self._map_all(oid)
        if has_shapes and any(entry.left_at is not None for entry in changed):
            self._request_transaction()

    def _recorded(self, now: TableBinding, *, has_shapes: bool) -> tuple[list[RegistryEntry], BoundTable]:
        """The entries that record a table in its current form, and the table with them."""
        table, wal_end = self._tables.get(now.oid), self._server.wal_end
        # Partitions have their own entries: one entry with all of them may be too large.
        base = replace(now, partitions=())
        if table is not None and has_shapes:
            changed = table.changed_partitions(now, wal_end)
        else:
            missing = [] if table is None else table.missing_partitions(now, wal_end)
            changed = [*present_partitions(self._source, now), *missing]
        entries: list[RegistryEntry] = [*changed]
        if table is None or base != table.base:
            entries.insert(0, TableEntry(self._source, base))
        known = {**({} if table is None else table.entries), **{entry.binding.oid: entry for entry in changed}}
        return entries, BoundTable(self._source, base, known, None if table is None else table.read_at)

    def unmap_others(self, live: Set[int]) -> None:
        """Stop routing changes of partitions to tables that are not among the ``live`` ones, which have shapes.

        Such a table is mapped again when it is recorded for its next shape.
        """
        for oid in self._map.tables - live:
            for partition in tuple(self._map.of(oid)):
                self._map.discard(oid, partition)

    def join(self, table: int, partition: int, lsn: int) -> bool:
        """Route changes of a partition as the table's from the transaction that commits at ``lsn`` on.

        Returns whether it has joined now. The entry may be lost until that transaction is confirmed, because the server
        then resends the transaction and the partition joins again.
        """
        bound = self._tables[table]
        entry = bound.entries.get(partition)
        if entry is None or entry.joined is not None or entry.left_at is not None:
            return False
        entry = bound.entries[partition] = replace(entry, joined=lsn)
        self._outbox.publish_entry(entry)
        self._map.add(table, partition, lsn)
        return True

    def _map_all(self, oid: int) -> None:
        table = self._tables[oid]
        for partition in table.partitions:
            if (joined := table.joined(partition)) is not None:
                self._map.add(oid, partition, joined)
        for (root, partition), entry in self._leaving.items():
            if root == oid and entry.joined is not None:
                self._map.add(oid, partition, entry.joined)
