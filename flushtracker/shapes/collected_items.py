"""``CollectedItems``: what the changes of a fragment are to each shape, item by item."""

from collections import ChainMap
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from flushtracker.errors import DecodeError, FlushtrackerError, ShapeError
from flushtracker.shapes.log_items import log_items
from flushtracker.shapes.open_transaction import OpenTransaction
from flushtracker.shapes.partition_map import PartitionMap
from flushtracker.shapes.routed_tables import Route, RoutedTables
from flushtracker.shapes.shape import BoundShape
from flushtracker.shapes.truncation import Truncation, truncated
from flushtracker.wal.changes import Change, LogItem, Relation, TransactionFragment, change_bytes

FEW_SHAPES: Final = 16
"""Measuring a change would cost more than a few percent of routing it to fewer."""


@dataclass(slots=True)
class ShapePart:
    """One shape's items from one fragment."""

    items: list[LogItem] = field(default_factory=list)
    change_count: int = 0


@dataclass(frozen=True, slots=True)
class CollectedItems:
    """Each shape's part of the first ``count`` changes, the truncations that they have altered, and what fails."""

    parts: Mapping[str, ShapePart]
    truncations: Mapping[str, Truncation]
    failures: dict[str, FlushtrackerError]
    count: int


def collect_items(
    tables: RoutedTables, transaction: OpenTransaction, fragment: TransactionFragment, most_bytes: int | None
) -> CollectedItems:
    """Collect the items of so many changes that they reach ``most_bytes``, or of all; changes no state.

    Raises:
        FlushtrackerError: an error that is not of single shapes.
    """
    parts: dict[str, ShapePart] = {}
    failures: dict[str, FlushtrackerError] = {}
    truncations = ChainMap({}, transaction.truncations)
    relation: Relation | None = None
    routes: Sequence[Route] = ()
    items_bytes = 0
    for count, change in enumerate(fragment.changes, 1):
        shapes = 0
        if change.relation is not relation:
            relation = change.relation
            routes = tables.routes(change, fragment.lsn)
        for route in routes:
            for candidate in route.index.candidates(change, fragment.lsn):
                if candidate.shape_id in failures:
                    continue
                try:
                    bound = candidate.bound_to(route.index.relation)
                    items = _items(bound, change, route, tables.partitions, truncations)
                except (ShapeError, DecodeError) as error:
                    failures[candidate.shape_id] = error
                    continue
                if items:
                    part = parts.setdefault(candidate.shape_id, ShapePart())
                    part.items.extend(items)
                    part.change_count += 1
                    shapes += 1
        if most_bytes is not None and shapes >= FEW_SHAPES:
            items_bytes += shapes * change_bytes(change)
            if items_bytes >= most_bytes:
                return CollectedItems(parts, truncations.maps[0], failures, count)
    return CollectedItems(parts, truncations.maps[0], failures, len(fragment.changes))


def _items(
    bound: BoundShape,
    change: Change,
    route: Route,
    partitions: PartitionMap,
    truncations: MutableMapping[str, Truncation],
) -> tuple[LogItem, ...]:
    """The items of ``change`` for a shape; updates ``truncations`` for the shape."""
    own = bound.filter(change)
    if own is None:
        return ()
    table, relation = route.table, route.relation
    if partitions.of(table) and not bound.definition.keys_have_partitions:
        shape_id = bound.definition.id
        joined = None if relation == table else partitions.at(table, change.offset.tx_offset)
        before = truncations.get(shape_id, Truncation())
        truncations[shape_id], has_effect = truncated(before, change, relation, joined)
        if not has_effect:
            return ()
    if bound.enums:
        bound.require_labels(own)
    return log_items(bound, own)
