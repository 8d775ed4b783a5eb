"""How to read the shapes of a group from their table in an exported snapshot."""

from collections.abc import Hashable, Iterable, Iterator, Sequence

from flushtracker.config.postgres_config import TablesConfig
from flushtracker.errors import FlushtrackerError, ShapeError
from flushtracker.events.registry_events import ShapeEntry
from flushtracker.postgres.connection import Connection
from flushtracker.postgres.snapshot_export import ExportedTable, Leaf
from flushtracker.shape_log.snapshot.due_shapes import DueTable
from flushtracker.shape_log.snapshot.read_plan import (
    ItemColumns,
    ReadPlan,
    RowFilter,
    ShapeReads,
    TableReads,
    plan_ranges,
)
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.shape import BoundShape, Shape
from flushtracker.shapes.shape_parts import parts_of
from flushtracker.shapes.table_binding import TableBinding, reason_to_end
from flushtracker.shapes.where.server_text import server_text


def readable_shapes(
    group: DueTable, exported: ExportedTable, failed: dict[str, FlushtrackerError]
) -> tuple[ShapeReads, ...]:
    """How to read each shape; shapes that no longer fit their table are added to ``failed``."""
    found = list[ShapeReads]()
    for entry in group.shapes:
        shape_id = entry.definition.id
        try:
            found.append(shape_reads(entry, group.table, exported, group.inner))
        except ShapeError as error:
            failed[shape_id] = error
    return tuple(found)


def shape_reads(
    entry: ShapeEntry, bound: TableBinding, exported: ExportedTable, inner: Sequence[TableBinding] = ()
) -> ShapeReads:
    """How to read one shape; raises ``ShapeError`` if its table, or one of the ``inner`` ones, no longer fits it.

    The ``inner`` ones are all that it reads, in the order of their export.
    """
    parts = {part.table: part for part in parts_of(entry.definition)}
    tables = [*_part_reads(parts[entry.definition.table], bound, exported.binding, exported.leaves)]
    for table, found in zip(inner, exported.inner, strict=True):
        tables += _part_reads(parts[table.table], table, found.binding, found.leaves)
    return ShapeReads(entry.definition.id, tuple(tables))


def _part_reads(
    definition: ShapeDefinition, bound: TableBinding, now: TableBinding, leaves: Iterable[Leaf]
) -> Iterator[TableReads]:
    shape, key, where = Shape(definition), definition.primary_key, definition.where
    can_lose = definition.keys_have_partitions
    reason = reason_to_end(shape.used_columns, bound, now, key, shape.filter, can_lose_partitions=can_lose)
    if reason is not None:
        raise ShapeError(
            f"shape {definition.id!r}: {reason}; capture ends it, and then flushtracker resync begins it again"
        )
    layouts: dict[Hashable, tuple[BoundShape, str | None, RowFilter | None]] = {}
    for relation in (leaf.relation for leaf in leaves):
        layout = relation.columns, relation.replica_identity
        if layout not in layouts:
            bound_shape, text, own = shape.bind(relation), None, None
            if where is not None and shape.may_overflow:
                own = RowFilter(where, relation)
            elif where is not None:
                text = server_text(where, relation)
            layouts[layout] = bound_shape, text, own
        items, text, own = layouts[layout]
        yield TableReads(ItemColumns(items.columns, items.key_columns, items.prefix_in(relation)), text, own)


def read_plan(
    config: TablesConfig,
    connection: Connection,
    source: str,
    exported: ExportedTable,
    attempt: int,
    shapes: tuple[ShapeReads, ...],
) -> ReadPlan:
    return ReadPlan(
        dict(config.connection),
        exported.snapshot_id,
        attempt,
        source,
        tuple(leaf.relation.table for leaf in exported.all_leaves),
        shapes,
        plan_ranges([leaf.pages for leaf in exported.all_leaves], connection.server_version),
        config.statement_timeout_ms,
    )
