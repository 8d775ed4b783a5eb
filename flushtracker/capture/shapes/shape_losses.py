"""``ShapeLosses``: which live shapes cannot be kept after a change, each with the reason."""

from collections.abc import Iterator

from flushtracker.capture.shapes.bound_tables import BoundTables
from flushtracker.capture.shapes.shape_registry import ShapeRegistry
from flushtracker.capture.wire.history_check import TransactionIdentity
from flushtracker.errors import listed
from flushtracker.events.registry_events import ShapeEntry
from flushtracker.shapes.event_router import EventRouter
from flushtracker.shapes.routing_version import routing_reason
from flushtracker.shapes.sent_relation import conflict_for, conflicts
from flushtracker.shapes.table_binding import TableBinding, reason_to_end
from flushtracker.wal.changes import Relation

Reasons = dict[str, str]
"""By shape id."""


class ShapeLosses:
    """Changes nothing itself; the caller ends the shapes."""

    def __init__(self, registry: ShapeRegistry, tables: BoundTables, router: EventRouter) -> None:
        self._registry = registry
        self._tables = tables
        self._router = router

    def by_routing(self, since: int) -> Reasons:
        """The shapes that this release routes differently from version ``since`` of the rules."""
        found = {live.definition.id: routing_reason(live.definition, since) for live in self._registry.live}
        return {shape_id: reason for shape_id, reason in found.items() if reason is not None}

    def by_publication(self) -> Reasons:
        """All shapes, after the publication was altered."""
        reason = "the publication was altered or recreated, so changes may not have been sent"
        return {live.definition.id: reason for live in self._registry.live}

    def by_drop(self, table: int) -> Reasons:
        reason = f"table {'.'.join(self._tables[table].table)} was dropped"
        return {each.definition.id: reason for each in self._registry.live_on(table)}

    def by_difference(self, now: TableBinding) -> Reasons:
        """The shapes on a table that cannot be kept, given the differences between its record and its current form."""
        bound = self._tables[now.oid]
        returned = [".".join(name) for name in self._tables.returned(now)]
        reasons = {}
        for entry in self._registry.live_on(now.oid):
            part = self._router.part(entry.definition.id, now.oid)
            reason = reason_to_end(
                part.used_columns,
                bound,
                now,
                part.definition.primary_key,
                part.filter,
                can_lose_partitions=part.definition.keys_have_partitions,
            )
            if reason is None and returned:
                name = ".".join(bound.table)
                reason = f"partition {listed(returned)} of table {name} was detached and attached again"
            if reason is not None:
                reasons[entry.definition.id] = reason
        return reasons

    def by_unclear_partition(self, table: int, partition: Relation, transaction: TransactionIdentity) -> Reasons:
        """The shapes that get ``transaction``, when it may have changed the partition before it was attached."""
        name, root = ".".join(partition.table), ".".join(self._tables[table].table)
        reason = f"partition {name} was changed by {transaction}, before or after it was attached to {root}"
        return {entry.definition.id: reason for entry in self._that_get(table, transaction)}

    def by_relation(self, table: int, relation: Relation, transaction: TransactionIdentity) -> Reasons:
        """The shapes that get ``transaction`` and do not fit rows of ``relation``, the table or a partition."""
        name = self._tables.table(table).name_of(relation.relation_id)
        # Without a name, it became a partition after this transaction, or left without ever having joined.
        order = self._tables.column_order(table, relation.relation_id, transaction.lsn)
        found = {} if name is None else conflicts(self._tables[table], name, relation, transaction.lsn, order)
        reasons = {}
        for entry in self._that_get(table, transaction) if found else ():
            reason = conflict_for(self._router.part(entry.definition.id, table).used_columns, found)
            if reason is not None:
                reasons[entry.definition.id] = reason
        return reasons

    def by_unreadable(self, table: int, column: str, transaction: TransactionIdentity) -> Reasons:
        """The shapes that get ``transaction`` and read ``column``, which has a value that cannot be decoded."""
        reasons = {}
        for entry in self._that_get(table, transaction):
            part = self._router.part(entry.definition.id, table)
            used = part.used_columns
            if used is None or column in used or part.definition.primary_key is None:
                name = ".".join(part.definition.table)
                reasons[entry.definition.id] = (
                    f"{transaction} wrote text without equivalent in UTF-8 to column {column} of table {name}"
                )
        return reasons

    def by_size(self, table: int, size_reason: str) -> Reasons:
        """All shapes on a table that has too many columns and types to be recorded."""
        return {entry.definition.id: size_reason for entry in self._registry.live_on(table)}

    def by_unreadable_name(self, table: int) -> Reasons:
        """All shapes on a table where something has a name that cannot be converted to UTF-8."""
        name = ".".join(self._tables[table].table)
        reason = f"table {name}, or one of its columns, partitions and types, has a name without equivalent in UTF-8"
        return {entry.definition.id: reason for entry in self._registry.live_on(table)}

    def _that_get(self, table: int, transaction: TransactionIdentity) -> Iterator[ShapeEntry]:
        """The live shapes on a table that get changes of ``transaction``."""
        live = self._registry.live_on(table)
        return (entry for entry in live if entry.starts_after.tx_offset < transaction.lsn)
