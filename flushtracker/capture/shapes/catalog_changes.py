"""``CatalogChanges``: updates the records of tables from catalog and stream, and ends shapes that cannot be kept.

When a table is compared with the catalog, and when partitions join and are lost, is told in
:mod:`flushtracker.capture.shapes.bound_tables`.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from flushtracker.capture.shapes.bound_tables import BoundTables, ServerQueries
from flushtracker.capture.shapes.new_partitions import warn_of_partition
from flushtracker.capture.shapes.shape_losses import ShapeLosses
from flushtracker.capture.shapes.shape_registry import ShapeRegistry
from flushtracker.capture.wire.history_check import TransactionIdentity
from flushtracker.shapes.event_router import EventRouter
from flushtracker.shapes.sent_relation import since_first_bound
from flushtracker.shapes.table_binding import TableBinding
from flushtracker.wal.changes import Column, Relation

logger = logging.getLogger(__name__)


class CatalogChanges:
    """The tables of one source, which are ``bound``. ``end_shapes`` ends shapes by id, each with its reason.

    Call :meth:`connect` first.
    """

    def __init__(
        self,
        registry: ShapeRegistry,
        tables: BoundTables,
        router: EventRouter,
        losses: ShapeLosses,
        end_shapes: Callable[[Mapping[str, str]], None],
    ) -> None:
        self._registry = registry
        self.bound = tables
        self._router = router
        self._losses = losses
        self._end_shapes = end_shapes
        for binding in tables:
            router.tables.bind(binding)

    def connect(self, server: ServerQueries, confirmed_lsn: int) -> None:
        """Continue over a new connection, which sends from ``confirmed_lsn`` on."""
        self._server = server
        self.bound.connect(server, confirmed_lsn)

    def check(self) -> None:
        """Compare every table with its recorded binding, and end the shapes that cannot be kept."""
        self._check(self._registry.table_oids)
        live = self._registry.table_oids
        self.bound.unmap_others(live)
        self._router.tables.keep_bound(live)

    def check_of(self, shape_ids: Collection[str]) -> bool:
        """Compare the tables of shapes with the catalog; return whether anything differs. Shapes may have ended."""
        oids = {oid for shape_id in shape_ids for oid in self._registry[shape_id].table_oids}
        before = {oid: self.bound[oid] for oid in oids}
        self._check(before)
        return any(self.bound[oid] != binding for oid, binding in before.items()) or not all(
            map(self._registry.is_live, shape_ids)
        )

    def handle_begin(self, lsn: int) -> None:
        """Handle the start of a transaction that commits at ``lsn``."""
        for table, partition in self.bound.handle_begin(lsn):
            self._router.tables.drop_partition(table, partition)

    def forget_lost(self, confirmed_lsn: int) -> None:
        """Forget the partitions that were lost before ``confirmed_lsn``, the slot's."""
        self.bound.forget_lost(confirmed_lsn)

    def lost_partitions(self, lsn: int, *, is_empty: bool) -> Iterator[tuple[int, Relation]]:
        """The partitions that tables lose with the transaction that commits at ``lsn``, each with the table's OID.

        The server does not send DROP and DETACH, so the shapes lose the rows with the first transaction after these
        were noticed. All transactions that may have changed the partition as part of the table come before it.
        """
        for entry in self.bound.lose(lsn, is_empty=is_empty):
            table, partition = self.bound[entry.table_oid], entry.binding
            logger.info("partition lost table_oid=%s partition=%s", table.oid, ".".join(partition.table))
            columns = tuple(Column(column.name, column.type_oid) for column in table.columns)
            yield table.oid, Relation(partition.oid, *partition.table, "nothing", columns)

    def handle_relation(self, relation: Relation, transaction: TransactionIdentity) -> None:
        """Handle a description of ``relation``, which ``transaction`` is about to change.

        The server sends one before the first change, and again after the table was altered.
        """
        oid = relation.relation_id
        oids = {oid, *self._server.ancestors(oid, transaction.xid)}
        live = self._registry.table_oids
        self._check(table for table in live & oids if not self.bound.has_seen(table, transaction.xid))
        for table in sorted(live & oids):
            if relation.unreadable_name is not None:
                self._end_shapes(self._losses.by_unreadable_name(table))
                continue
            if self.bound.table(table).is_unclear(oid, transaction.lsn):
                self._end_shapes(self._losses.by_unclear_partition(table, relation, transaction))
            elif self.bound.join(table, oid, transaction.lsn):
                logger.info("partition joined table_oid=%s partition=%s", table, ".".join(relation.table))
                ids = (entry.definition.id for entry in self._registry.live_on(table))
                warn_of_partition(relation, (self._router.part(shape_id, table) for shape_id in ids))
            self._end_shapes(self._losses.by_relation(table, relation, transaction))

    def handle_unreadable(self, relation_id: int, column: str, transaction: TransactionIdentity) -> None:
        """End the shapes that read ``column`` of a row changed by ``transaction``, because it cannot be decoded."""
        concerned = {relation_id, *self._router.partitions.tables_of(relation_id)}
        for table in sorted(self._registry.table_oids & concerned):
            self._end_shapes(self._losses.by_unreadable(table, column, transaction))

    def _check(self, oids: Iterable[int]) -> None:
        oids = set(oids)
        for oid in self._server.unreadable_tables(oids):
            self._end_shapes(self._losses.by_unreadable_name(oid))
            oids.discard(oid)
        for oid, now in self.bound.altered(oids).items():
            if now is None:
                self._end_shapes(self._losses.by_drop(oid))
            else:
                self._rebind(now)

    def _rebind(self, now: TableBinding) -> bool:
        """Record an altered table, and end the shapes that cannot be kept.

        Returns whether it is recorded. A table too large to record ends all of its shapes, not capture.
        """
        bound, now = self.bound[now.oid], self.bound.without_empty_arrivals(now)
        self._end_shapes(self._losses.by_difference(now))
        now = since_first_bound(bound, now, self._server.insert_lsn)
        if (reason := self.bound.size_reason(now)) is not None:
            self._end_shapes(self._losses.by_size(now.oid, reason))
            return False
        self._record([now], has_shapes=now.oid in self._registry.table_oids)
        return True

    def bind(self, bindings: Iterable[TableBinding]) -> None:
        """Record the tables of new shapes; differences may end the existing shapes of a table."""
        by_oid = {binding.oid: binding for binding in bindings}
        has_shapes = by_oid.keys() & self._registry.table_oids
        self._record([binding for oid, binding in by_oid.items() if oid not in has_shapes], has_shapes=False)
        for oid in sorted(has_shapes):
            if self.bound[oid] != by_oid[oid] and not self._rebind(by_oid[oid]):
                # As a new table it fits: that was checked when the new shapes were resolved.
                self._record([by_oid[oid]], has_shapes=False)

    def _record(self, bindings: Collection[TableBinding], *, has_shapes: bool) -> None:
        if bindings:
            self.bound.record(bindings, has_shapes=has_shapes)
        for binding in bindings:
            self._router.tables.bind(binding)
