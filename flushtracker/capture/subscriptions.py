"""``Subscriptions``: the shapes that are routed to, kept in step with the file, the catalog and the registry.

Whatever changes for a shape is published as its registry entry, and confirmed, before it takes effect: so a process
that comes after knows it too, and routes what is sent again to the same shapes as the first time.

- A shape *starts after* the end of the server's WAL at the moment when it is added: everything that was ever routed,
  by whichever process, committed before that. Only in a source's first moment, when nothing was routed yet, it starts
  where the slot does.
- A shape is *removed at* the end of the server's WAL likewise, and then the router gives it nothing more.
- A *partition* that comes up is added to the shapes on its root before its first row is routed, and stays theirs. One
  that was detached or dropped again before its rows were sent is nobody's, as those rows are the root's no more.
- A shape whose table was renamed or is another one now, or that cannot be delivered, is ended: removed, with a reason.
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
    """What is asked of the server; each raises ``PostgresUnavailableError`` where it cannot be asked."""

    def wal_end(self) -> int:
        """Where the WAL ends now: whatever was sent so far committed before it."""

    def resolve(self, definition: ShapeDefinition) -> tuple[ShapeDefinition, int]:
        """The definition with all that the catalog adds to it, and the table's OID; raises ``ShapeError``."""

    def ancestors(self, oid: int, xid: int) -> frozenset[TableName]:
        """The partitioned tables that a table is a partition of, after the transaction ``xid``, which has committed."""


class Subscriptions:
    """The shapes of one source. ``tables`` may be replaced after a reconnect.

    ``first_starts_after``: where shapes start as long as the source has not begun, ``None`` once it has.
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
        # An earlier process may have died between the entry and this.
        for entry in self._registry.removed:
            self._publish_removal(entry)
        self._arrange_layers()

    def source_begins(self) -> None:
        """From here on fragments are published, so that shapes added later start at the WAL's end."""
        self._first_starts_after = None

    def follow(self, definitions: Iterable[ShapeDefinition]) -> None:
        """Make the shapes those of ``definitions``; all of them, or nothing changes.

        Raises:
            ShapeError: a definition is refused.
        """
        wanted = self._registry.compare(definitions)
        for entry in wanted.ended:
            logger.warning(
                "shape stays ended shape_id=%s removed_at=%s reason=%s",
                *(entry.definition.id, entry.removed_at, entry.ended_because),
            )
        resolved = [self.tables.resolve(definition) for definition in wanted.added]
        if wanted.added or wanted.updated or wanted.removed:
            now = LogOffset(self.tables.wal_end(), 0)
            starts_after = self._first_starts_after or now
            added = [ShapeEntry(self._source, definition, oid, starts_after) for definition, oid in resolved]
            removed = [replace(self._registry[shape_id], removed_at=now) for shape_id in wanted.removed]
            self._put([*removed, *wanted.updated, *added])
            self._remove(removed)
            for entry in added:
                self.router.add_shape(entry.definition, starts_after.tx_offset)
                logger.info("shape added shape_id=%s starts_after=%s", entry.definition.id, starts_after)
        self._arrange_layers()

    def end_shape(self, shape_id: str, reason: str) -> None:
        """Remove a shape that cannot be delivered any more; the others go on."""
        logger.error("shape ended shape_id=%s reason=%s", shape_id, reason)
        removed_at = LogOffset(self.tables.wal_end(), 0)
        entry = replace(self._registry[shape_id], removed_at=removed_at, ended_because=reason)
        self._put([entry])
        self._remove([entry])
        self._arrange_layers()

    def handle_relation(self, relation: Relation, transaction: TransactionIdentity) -> None:
        """``transaction`` is about to change ``relation``; the server says so once, and again when something about the
        table has changed.
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
            self.end_shape(shape_id, f"table {table} is another one than when the shape was defined")

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
