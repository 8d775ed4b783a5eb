"""Log items: how a change of a shape is recorded in the shape's log, with its key and its values.

============  =============================================  ================================================
item          ``replica: default``                           ``replica: full``
============  =============================================  ================================================
insert        value: the whole row                           the same
update        value: the key and the columns that changed    value: the whole row;
                                                             old_value: the changed columns' old values,
                                                             or the old row if it is not whole
delete        value: the key                                 value: the whole old row
truncate      no key, no value; of a partition, if keys      the same
              have partitions, or of one of the shape's
              tables: what begins those keys
============  =============================================  ================================================

"Whole" means the shape's columns that the server sent: old rows have only the replica identity, and updates omit
unchanged TOAST columns, which ``replica: full`` takes from the old row if that has them. A column whose old value is
unknown counts as changed. ``old_value`` says which these are: it has the key only if the old row has the replica
identity alone, and then all of that, because an update keeps the key.

An update of the key is a delete at ``(tx, op)`` and an insert at ``(tx, op + 1)``, because a log by key cannot express
that a row has moved. The insert's unchanged TOAST columns are filled in from the old row if that is known. If it is not
(the table is not ``REPLICA IDENTITY FULL``), the insert would lack them permanently, so it is an error that ends the
shape. The same applies to an update that moves a row into the shape.

The items of a change are built once for all shapes of the same form
(:attr:`~flushtracker.shapes.shape.BoundShape.item_form`), which share them.
"""

from collections import ChainMap
from collections.abc import Hashable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from flushtracker.errors import DecodeError, FlushtrackerError, ShapeError
from flushtracker.shapes.item_key import key_values
from flushtracker.shapes.partition_map import PartitionMap
from flushtracker.shapes.routed_tables import Route, RoutedTables
from flushtracker.shapes.routed_transaction import RoutedTransaction, Truncation, truncated
from flushtracker.shapes.shape import BoundShape, filled_new_row
from flushtracker.wal.changes import (
    Change,
    Delete,
    Insert,
    LogItem,
    Relation,
    Row,
    TransactionFragment,
    Truncate,
    Update,
    change_bytes,
)
from flushtracker.wal.log_offset import LogOffset


def log_items(shape: BoundShape, change: Change) -> tuple[LogItem, ...]:
    """The items of ``change``, in offset order; two for an update that changes the key, else one.

    ``change`` is the shape's, as returned by :meth:`BoundShape.filter`, not the table's. The last item's offset is the
    shape's last offset in the log; it is recorded nowhere else.

    Raises:
        DecodeError: the row lacks a key column.
    """
    match change:
        case Truncate():
            if shape.empties_by_prefix:
                return (LogItem(change.offset, "truncate_partition", shape.prefix_in(change.relation)),)
            return (LogItem(change.offset, "truncate"),)
        case Insert():
            return (_insert(shape, change, change.offset, change.new),)
        case Delete():
            return (_delete(shape, change, change.old),)
        case Update():
            return _update(shape, change)


def _update(shape: BoundShape, update: Update) -> tuple[LogItem, ...]:
    offset, old = update.offset, update.old
    if old is None:
        # No key column has changed, and every column that was sent counts as changed.
        return (LogItem(offset, "update", _key(shape, update, update.new), _chosen(shape, update.new)),)
    new = filled_new_row(update)
    key = _key(shape, update, new)
    if _key(shape, update, old) != key:
        shape.require_whole(update, new)
        after = LogOffset(offset.tx_offset, offset.op_offset + 1)
        return (_delete(shape, update, old), _insert(shape, update, after, new))
    sent = _chosen(shape, new if shape.definition.replica == "full" else update.new)
    changed = {name for name, value in sent.items() if name not in old or old[name] != value}
    if shape.definition.replica == "full":
        is_whole = update.relation.replica_identity == "full"
        old_value = {name: text for name, text in _chosen(shape, old).items() if not is_whole or name in changed}
        return (LogItem(offset, "update", key, sent, old_value),)
    # Key columns are read from the filled-in row: one may be an unchanged TOAST column.
    value = {name: new[name] for name in shape.columns if name in changed or name in shape.key_columns}
    return (LogItem(offset, "update", key, value),)


def _insert(shape: BoundShape, change: Change, offset: LogOffset, row: Row) -> LogItem:
    return LogItem(offset, "insert", _key(shape, change, row), _chosen(shape, row))


def _delete(shape: BoundShape, change: Change, old: Row) -> LogItem:
    key = _key(shape, change, old)
    if shape.definition.replica == "full":
        return LogItem(change.offset, "delete", key, _chosen(shape, old))
    return LogItem(change.offset, "delete", key, {name: old[name] for name in shape.key_columns})


def _key(shape: BoundShape, change: Change, row: Row) -> str:
    return shape.prefix_in(change.relation) + key_values(shape.key_of(change, row))


def _chosen(shape: BoundShape, row: Row) -> Row:
    return row if shape.has_all_columns else {name: row[name] for name in shape.columns if name in row}


FEW_SHAPES: Final = 16
"""Below this many shapes, measuring a change would cost more than a few percent of routing it."""


@dataclass(slots=True)
class ShapePart:
    items: list[LogItem] = field(default_factory=list)
    change_count: int = 0


@dataclass(frozen=True, slots=True)
class CollectedItems:
    """Each shape's part of the first ``count`` changes, the truncations that they altered, and the failures."""

    parts: Mapping[str, ShapePart]
    truncations: Mapping[str, Truncation]
    failures: dict[str, FlushtrackerError]
    count: int


def collect_items(
    tables: RoutedTables, transaction: RoutedTransaction, fragment: TransactionFragment, most_bytes: int | None
) -> CollectedItems:
    """Collect the items of changes until they reach ``most_bytes``, or of all; no state is changed.

    Raises:
        FlushtrackerError: an error that does not concern single shapes.
    """
    truncations = ChainMap({}, transaction.truncations)
    collector = _Collector(tables.partitions, truncations)
    relation: Relation | None = None
    routes: Sequence[Route] = ()
    items_bytes, count = 0, 0
    for change in fragment.changes:
        count += 1
        if change.relation is not relation:
            relation = change.relation
            routes = tables.routes(change, fragment.lsn)
        shapes = collector.collect(change, routes, fragment.lsn)
        if most_bytes is not None and shapes >= FEW_SHAPES:
            items_bytes += shapes * change_bytes(change)
            if items_bytes >= most_bytes:
                break
    return CollectedItems(collector.parts, truncations.maps[0], collector.failures, count)


class _Collector:
    """The parts and the failures so far; updates ``truncations``."""

    def __init__(self, partitions: PartitionMap, truncations: MutableMapping[str, Truncation]) -> None:
        self.parts: dict[str, ShapePart] = {}
        self.failures: dict[str, FlushtrackerError] = {}
        self._partitions = partitions
        self._truncations = truncations

    def collect(self, change: Change, routes: Sequence[Route], lsn: int) -> int:
        """Add the items of a change in a transaction that commits at ``lsn``; return how many shapes have some."""
        shapes = 0
        made: dict[Hashable, tuple[LogItem, ...]] = {}
        for route in routes:
            has_partitions = bool(self._partitions.of(route.table))
            for candidate in route.index.candidates(change, lsn):
                shape_id = candidate.shape_id
                if shape_id in self.failures:
                    continue
                try:
                    bound = candidate.bound_to(route.index.relation)
                    own = bound.filter(change)
                    if own is None or (has_partitions and not self._has_effect(bound, change, route)):
                        continue
                    if len(routes) > 1:
                        self._require_first(bound, change)
                    form = type(own), bound.item_form
                    items = made.get(form) or made.setdefault(form, _items(bound, own))
                except (ShapeError, DecodeError) as error:
                    self.failures[shape_id] = error
                    continue
                part = self.parts.get(shape_id)
                if part is None:
                    part = self.parts[shape_id] = ShapePart()
                part.items.extend(items)
                part.change_count += 1
                shapes += 1
        return shapes

    def _has_effect(self, bound: BoundShape, change: Change, route: Route) -> bool:
        """Whether a change of a partitioned table or its partition affects the shape; updates ``truncations``."""
        if bound.definition.keys_have_partitions:
            return True
        shape_id, table, relation = bound.definition.id, route.table, route.relation
        joined = None if relation == table else self._partitions.at(table, change.offset.tx_offset)
        before = self._truncations.get(shape_id, Truncation())
        self._truncations[shape_id], has_effect = truncated(before, change, relation, joined)
        return has_effect

    def _require_first(self, bound: BoundShape, change: Change) -> None:
        """Raise ``ShapeError`` if the shape already has the change through another of its tables."""
        part = self.parts.get(bound.definition.id)
        if part is not None and part.items[-1].offset >= change.offset:
            table, relation = (".".join(each) for each in (bound.definition.table, change.relation.table))
            raise ShapeError(
                f"shape {bound.definition.id!r}: {relation} was attached to table {table}, or to one that has its rows "
                "too, and the shape reads both, while a row can be in its log only once"
            )


def _items(bound: BoundShape, own: Change) -> tuple[LogItem, ...]:
    if bound.enums:
        bound.require_labels(own)
    return log_items(bound, own)
