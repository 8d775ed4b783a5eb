"""``EventRouter``: routes each WAL fragment to the shapes that it affects.

Its state is the shapes by table, the tables' partitions, and the open transaction with the shapes that have taken part
in it. It guarantees:

- A shape takes part in a transaction from its first item on; ``has_begin`` is set on that fragment only. A change
  without an item for a shape does not make the shape take part.
- The commit goes to every shape that took part, and to no other, even if its own fragment has nothing for the shape.
- A new shape receives only transactions that commit above everything routed before: not the open one, and no older one
  that is resent.
- A removed shape receives nothing more, even in mid-transaction. The commit still names it, marked ``removed``, because
  the tracker must close the transaction that it registered.
- What a shape receives depends on the transaction alone, not on how it is split into fragments, nor on whether it was
  routed before.
- A transaction's fragments arrive in order, with no other transaction's in between. Anything else is an error, never a
  guess. *Transactions* may arrive in any order, because a server resends old ones.

Which tables a change concerns is decided by :mod:`~flushtracker.shapes.routed_tables`.

The cost of a change is a lookup by table, a lookup by the row's values, and a test of each shape found
(:mod:`~flushtracker.shapes.shape_index`).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from flushtracker.errors import DecodeError, FlushtrackerError, ShapeError, first_of
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.log_items import ShapePart, collect_items
from flushtracker.shapes.partition_map import TableKey
from flushtracker.shapes.routed_fragment import RoutedFragment, RoutedFragments
from flushtracker.shapes.routed_tables import RoutedTables
from flushtracker.shapes.routed_transaction import (
    RoutedTransaction,
    Truncation,
    continued_transaction,
    partial_truncation,
)
from flushtracker.shapes.shape import Shape
from flushtracker.shapes.shape_index import ShapeIndex
from flushtracker.shapes.shape_parts import parts_of
from flushtracker.shapes.shape_schema import shape_schema
from flushtracker.shapes.table_binding import TableBinding
from flushtracker.wal.changes import TransactionFragment
from flushtracker.wal.log_offset import LogOffset


@dataclass(slots=True)
class _Registered:
    """A routed shape on ``table``, and its parts by table: one, or several if it has subqueries.

    ``schema`` is the digest of its columns and types as of ``binding``.
    """

    definition: ShapeDefinition
    table: TableKey
    parts: Mapping[TableKey, Shape]
    binding: TableBinding | None = None
    schema: str | None = None


class EventRouter:
    """Routes one stream of fragments to shapes.

    One router serves its stream for the lifetime of the process: it remembers how far it has routed. After a reconnect,
    call :meth:`forget_open_transaction`. It forgets removed shapes, except those of the open transaction. The caller,
    which has the registry, must check that a removed shape's id is only reused for its next incarnation.

    With ``by_oid``, tables are identified by OID, and the caller keeps ``partitions`` in step with the catalog. Without
    it they are identified by name, and the partitions are those that definitions list.

    >>> from flushtracker.wal.changes import Column, Commit, Insert, Relation
    >>> orders = Relation(1, "public", "orders", "default", (Column("id", 20, is_key=True), Column("total", 1700)))
    >>> low = ShapeDefinition("low", orders.table, where="id < 100")
    >>> high = ShapeDefinition("high", orders.table, where="id >= 100")
    >>> insert = Insert(orders, LogOffset(1000, 0), {"id": "7", "total": "12.50"})
    >>> commit = Commit("2026-11-21T01:02:03.456789Z", end_lsn=1040)
    >>> fragment = TransactionFragment(742, 1000, insert.offset, has_begin=True, commit=commit, changes=(insert,))
    >>> for part in EventRouter([low, high]).route(fragment):
    ...     print(part.shape_id, part.items[0].operation, part.items[0].key, part.items[0].value)
    low insert "public"."orders"/"7" {'id': '7', 'total': '12.50'}

    Raises:
        ShapeError: a definition is refused, or two have the same id.
    """

    _index_type = ShapeIndex

    def __init__(self, definitions: Iterable[ShapeDefinition] = (), *, by_oid: bool = False) -> None:
        self.tables = RoutedTables(self._index_type, by_oid=by_oid)
        """The caller sets their bindings, and drops their partitions; only this router adds and removes shapes."""
        self.partitions = self.tables.partitions
        self._registered: dict[str, _Registered] = {}
        self._open: RoutedTransaction | None = None
        self._routed_up_to: LogOffset | None = None
        for definition in definitions:
            self.add_shape(definition)

    @property
    def shape_ids(self) -> frozenset[str]:
        return frozenset(self._registered)

    @property
    def shape_count(self) -> int:
        """The number of routed shapes; may be read from any thread."""
        return len(self._registered)

    def part(self, shape_id: str, table: TableKey) -> Shape:
        return self._registered[shape_id].parts[table]

    def add_shape(self, definition: ShapeDefinition, starts_after: int = -1, table_oid: int | None = None) -> None:
        """Add a shape, starting with the first transaction above everything routed so far.

        With ``starts_after``, it must also be above that commit LSN: this router does not know what earlier processes
        have routed. ``table_oid`` identifies its table in a router ``by_oid``; the OIDs of inner tables are in the
        definition.

        Raises:
            ShapeError: its ``where`` is refused, its id is in use, or it lists other partitions than another shape on
                its table.
        """
        shape_id = definition.id
        if shape_id in self._registered:
            raise ShapeError(f"shape {shape_id!r} cannot be added: its id is in use")
        if self._routed_up_to is not None:
            starts_after = max(starts_after, self._routed_up_to.tx_offset)
        oids = {each.table: each.table_oid for each in definition.inner_tables} | {definition.table: table_oid}
        parts = {self.tables.key_of(part, oids.get(part.table)): Shape(part) for part in parts_of(definition)}
        self._registered[shape_id] = _Registered(definition, next(iter(parts)), parts)
        for table, part in parts.items():
            self.tables.add(table, part, starts_after)

    def remove_shape(self, shape_id: str) -> LogOffset | None:
        """Stop routing to the shape, and return the offset for its ``removed`` event.

        Nothing was or will be routed to the shape past that offset, which may lie inside the open transaction. ``None``
        if this router has not routed anything. It does not know what an earlier process routed: after a restart, use
        the greater of this offset and one past everything routed earlier.

        Raises:
            ShapeError: there is no such shape.
        """
        registered = self._registered.pop(shape_id, None)
        if registered is None:
            raise ShapeError(f"shape {shape_id!r} cannot be removed: it is not routed")
        for table in registered.parts:
            self.tables.remove(table, shape_id)
        if self._open is not None and shape_id in self._open.shapes:
            self._open.removed[shape_id] = registered.definition.writer
        return self._routed_up_to

    def forget_open_transaction(self) -> None:
        """Drop the open transaction after a lost connection: it is resent whole, perhaps after older ones."""
        self._open = None

    def route(
        self, fragment: TransactionFragment, *, check: Callable[[RoutedFragment], None] | None = None
    ) -> tuple[RoutedFragment, ...]:
        """Each shape's part of ``fragment``, ordered by shape id; a keepalive goes to no shape.

        ``check`` may raise for a part that cannot be delivered. If this raises, the router is unchanged. An error about
        a shape has its ``shape_id``, and in ``shape_errors`` the errors found with it for other shapes. Once all these
        shapes are removed, the same fragment can be routed to the others.

        Raises:
            GapError: the fragment does not follow the previous one.
            ShapeError: a shape cannot be kept on a table seen for the first time, or altered, or a partition was
                truncated without the others.
            DecodeError: a row lacks a column that routing needs, or has a value that is not of its column's type.
        """
        return self.route_some(fragment, None, check=check).parts

    def route_some(
        self,
        fragment: TransactionFragment,
        most_bytes: int | None,
        *,
        check: Callable[[RoutedFragment], None] | None = None,
    ) -> RoutedFragments:
        """Route changes until their items, for all shapes, reach ``most_bytes``, but at least one change.

        Bytes are those of the changes, once for each shape. A change for a few shapes is not counted.
        """
        transaction = continued_transaction(self._open, fragment, self._routed_up_to)
        if transaction is None:
            self._advance(fragment.last_log_offset)
            return RoutedFragments(fragment, ())
        collected = collect_items(self.tables, transaction, fragment, most_bytes)
        own_parts, truncations, failures = collected.parts, collected.truncations, collected.failures
        rest = None
        if collected.count < len(fragment.changes):
            fragment, rest = fragment.cut(collected.count)
        if fragment.commit is not None:
            self._refuse_partial_truncations({**transaction.truncations, **truncations}, failures)
        recipients = own_parts.keys() if fragment.commit is None else transaction.shapes | own_parts.keys()
        nothing = ShapePart()
        parts = [(shape_id, own_parts.get(shape_id, nothing)) for shape_id in sorted(recipients)]
        routed = tuple(
            RoutedFragment(
                shape_id,
                transaction.xid,
                fragment.lsn,
                fragment.last_log_offset,
                has_begin=shape_id not in transaction.shapes,
                commit=fragment.commit,
                items=tuple(part.items),
                change_count=part.change_count,
                removed=shape_id in transaction.removed,
                incarnation=self._incarnation_of(shape_id),
                writer=self._writer_of(shape_id, transaction),
                schema=self._schema_of(shape_id),
            )
            for shape_id, part in parts
        )
        if check is not None:
            _check(check, routed, failures)
        if failures:
            raise first_of(failures)
        transaction.shapes.update(own_parts)
        transaction.truncations.update(truncations)
        transaction.last_log_offset = fragment.last_log_offset
        self._open = transaction if fragment.commit is None else None
        self._advance(fragment.last_log_offset)
        # The second item of a split update lies past the fragment's last offset.
        for part in routed:
            if part.items and part.items[-1].offset.op_offset > fragment.last_log_offset.op_offset:
                self._advance(part.items[-1].offset)
        return RoutedFragments(fragment, routed, rest)

    def _incarnation_of(self, shape_id: str) -> int:
        registered = self._registered.get(shape_id)
        return 1 if registered is None else registered.definition.incarnation

    def _writer_of(self, shape_id: str, transaction: RoutedTransaction) -> str:
        registered = self._registered.get(shape_id)
        if shape_id in transaction.removed or registered is None:
            return transaction.removed[shape_id]
        return registered.definition.writer

    def _schema_of(self, shape_id: str) -> str | None:
        """The schema by which the shape is routed now; computed once for each binding."""
        registered = self._registered.get(shape_id)
        if registered is None:
            return None
        binding = self.tables.binding_of(registered.table)
        if registered.binding is not binding:
            registered.binding = binding
            registered.schema = None if binding is None else shape_schema(registered.definition, binding)
        return registered.schema

    def _refuse_partial_truncations(
        self, truncations: Mapping[str, Truncation], failures: dict[str, FlushtrackerError]
    ) -> None:
        for shape_id, truncation in sorted(truncations.items()):
            if truncation.partial and shape_id in self._registered and shape_id not in failures:
                failures[shape_id] = partial_truncation(self._registered[shape_id].definition, truncation)

    def _advance(self, offset: LogOffset) -> None:
        self._routed_up_to = offset if self._routed_up_to is None else max(self._routed_up_to, offset)

    def check_invariants(self) -> None:
        """Raise ``AssertionError`` if an index or the open transaction disagrees with the shapes; for tests."""
        routed = self.tables.check_invariants()
        expected = {(table, shape_id) for shape_id, found in self._registered.items() for table in found.parts}
        if routed != expected:
            raise AssertionError(f"the tables have the shapes {routed}, expected {expected}")
        current = self._open
        # A later incarnation gets nothing of the transaction in which the previous one was removed.
        if current is None:
            return
        if not current.shapes - self._registered.keys() <= current.removed.keys() <= current.shapes:
            raise AssertionError(f"{sorted(current.removed)} are marked removed in the open transaction")


def _check(
    check: Callable[[RoutedFragment], None], routed: Iterable[RoutedFragment], failures: dict[str, FlushtrackerError]
) -> None:
    """Check the parts of shapes that have not failed."""
    for own in routed:
        if own.shape_id in failures:
            continue
        try:
            check(own)
        except (ShapeError, DecodeError) as error:
            failures[own.shape_id] = error
