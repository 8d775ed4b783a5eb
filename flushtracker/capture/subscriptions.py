"""``Subscriptions``: the shapes that changes are routed to, kept in step with the file, the catalog and the registry.

Every change to a shape is published as its registry entry, and confirmed, before it takes effect. So a later process
knows of it, and routes resent transactions to the same shapes as the first time.

- A shape *starts after* the end of the server's WAL at the time it is added: everything that any process has routed
  committed before that. Only for a new source, for which nothing was routed yet, does it start at the slot's position.
- A shape is *removed at* the end of the server's WAL likewise; the router then sends it nothing more.
- A new *partition* is added to the shapes on its root before its first row is routed, and permanently. A partition that
  was detached or dropped again before its rows were sent is not added: its rows are no longer the root's.
- A shape whose table was renamed or replaced, or that cannot be delivered, is ended: removed, with a reason.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Protocol

from flushtracker.capture.history_check import TransactionIdentity
from flushtracker.capture.outbox import Outbox
from flushtracker.capture.shape_registry import ShapeRegistry
from flushtracker.events.registry_events import ShapeEntry
from flushtracker.events.stream_events import FlushNotification
from flushtracker.shapes.definition import ShapeDefinition, dependency_layers
from flushtracker.shapes.event_router import EventRouter
from flushtracker.wal.changes import Relation, TableName
from flushtracker.wal.log_offset import LogOffset

logger = logging.getLogger(__name__)


class Tables(Protocol):
    """Queries to the server; each raises ``PostgresUnavailableError`` if the connection is lost."""

    def wal_end(self) -> int:
        """The current end of the WAL: everything sent so far committed before it."""

    def resolve(self, definition: ShapeDefinition) -> tuple[ShapeDefinition, int]:
        """The definition, completed from the catalog, and the table's OID; raises ``ShapeError``."""

    def ancestors(self, oid: int, xid: int) -> frozenset[TableName]:
        """The partitioned tables that a table is a partition of, as of the committed transaction ``xid``."""


class Subscriptions:
    """The shapes of one source. ``tables`` may be replaced after a reconnect.

    ``first_starts_after``: where shapes start until the source has begun; ``None`` if it already has.
    """

    def __init__(
        self,
        source: str,
        entries: Iterable[ShapeEntry],
        outbox: Outbox,
        tables: Tables,
        first_starts_after: LogOffset | None = None,
    ) -> None:
        self.router = EventRouter()
        self.tables = tables
        self._source = source
        self._outbox = outbox
        self._first_starts_after = first_starts_after
        self._registry = ShapeRegistry(entries)
        for entry in self._registry.live:
            self.router.add_shape(entry.definition, entry.starts_after.tx_offset)
        # An earlier process may have been killed after it published the entry, and before this.
        for entry in self._registry.removed:
            self._publish_removal(entry)
        self._arrange_layers()

    @property
    def entries(self) -> tuple[ShapeEntry, ...]:
        """The registry's entries of all shapes, past and present, as this process knows them."""
        return (*self._registry.live, *self._registry.removed)

    def mark_source_begun(self) -> None:
        """Fragments are published from here on, so shapes added later start at the end of the WAL."""
        self._first_starts_after = None

    def apply_definitions(self, definitions: Iterable[ShapeDefinition], allow_removing: int = 0) -> None:
        """Add, update and remove shapes to match ``definitions``; if one is refused, nothing changes.

        Raises:
            ShapeError: a definition is refused, or too many shapes would be removed.
        """
        diff = self._registry.compare(definitions, allow_removing)
        for entry in diff.ended:
            logger.warning(
                "shape already ended shape_id=%s removed_at=%s reason=%s",
                *(entry.definition.id, entry.removed_at, entry.ended_because),
            )
        resolved = [self.tables.resolve(definition) for definition in diff.added]
        if diff.added or diff.updated or diff.removed:
            now = LogOffset(self.tables.wal_end(), 0)
            starts_after = self._first_starts_after or now
            added = [ShapeEntry(self._source, definition, oid, starts_after) for definition, oid in resolved]
            removed = [replace(self._registry[shape_id], removed_at=now) for shape_id in diff.removed]
            self._put([*removed, *diff.updated, *added])
            self._remove(removed)
            for entry in added:
                self.router.add_shape(entry.definition, starts_after.tx_offset)
                logger.info("shape added shape_id=%s starts_after=%s", entry.definition.id, starts_after)
        self._arrange_layers()

    def end_shape(self, shape_id: str, reason: str) -> None:
        """Remove a shape that can no longer be delivered; the others continue."""
        logger.error("shape ended shape_id=%s reason=%s", shape_id, reason)
        removed_at = LogOffset(self.tables.wal_end(), 0)
        entry = replace(self._registry[shape_id], removed_at=removed_at, ended_because=reason)
        self._put([entry])
        self._remove([entry])
        self._arrange_layers()

    def handle_relation(self, relation: Relation, transaction: TransactionIdentity) -> None:
        """``transaction`` is about to change ``relation``.

        The server sends a relation before the first change to it, and again after the table was altered.
        """
        for entry in self._registry.live_on([relation.table], relation.relation_id):
            if entry.starts_after.tx_offset < transaction.lsn:
                self._check_table(entry, relation)
        for entry in self._registry.live_on(self.tables.ancestors(relation.relation_id, transaction.xid)):
            definition = entry.definition
            if relation.table not in definition.partitions:
                partitions = (*definition.partitions, relation.table)
                self._put([replace(entry, definition=replace(definition, partitions=partitions))])
                self.router.set_partitions(definition.id, partitions)
                logger.info("partition added shape_id=%s partition=%s", definition.id, ".".join(relation.table))

    def _check_table(self, entry: ShapeEntry, relation: Relation) -> None:
        shape_id, table = entry.definition.id, ".".join(entry.definition.table)
        same_oid, same_name = entry.table_oid == relation.relation_id, entry.definition.table == relation.table
        if same_oid and not same_name:
            self.end_shape(shape_id, f"table {table} was renamed to {'.'.join(relation.table)}")
        elif same_name and not same_oid:
            oids = f"its OID was {entry.table_oid}, and is now {relation.relation_id}"
            self.end_shape(shape_id, f"table {table} is not the same table as when the shape was defined: {oids}")

    def _remove(self, entries: Iterable[ShapeEntry]) -> None:
        for entry in entries:
            self.router.remove_shape(entry.definition.id)
            self._publish_removal(entry)
            logger.info("shape removed shape_id=%s removed_at=%s", entry.definition.id, entry.removed_at)

    def _put(self, entries: Sequence[ShapeEntry]) -> None:
        self._outbox.publish_entries(entries)
        for entry in entries:
            self._registry.put(entry)

    def _publish_removal(self, entry: ShapeEntry) -> None:
        if entry.removed_at is not None:
            removal = FlushNotification(self._source, "removed", entry.definition.id, entry.removed_at)
            self._outbox.publish_removal(removal)

    def _arrange_layers(self) -> None:
        self._outbox.layers = dependency_layers(entry.definition for entry in self._registry.live)
