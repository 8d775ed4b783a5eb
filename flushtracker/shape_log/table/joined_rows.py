"""The rows of a shape, by folding its log and, with subqueries, selecting those in the shape.

The log of a shape with subqueries has rows of several tables, more than the shape has. This module selects the rows of
the shape's own table: it evaluates the condition over all of them as of the bound
(:class:`~flushtracker.shapes.where.joined_condition.JoinedCondition`). Only the values that its subqueries return are
kept in memory, no rows of its own table.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from itertools import compress

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from flushtracker.errors import ConfigError, ShapeError
from flushtracker.shape_log.fold import columns_of
from flushtracker.shape_log.table.external_sort import sort_tables
from flushtracker.shape_log.table.fold_items import ROW_ORDER
from flushtracker.shape_log.table.folded_shape import folded_rows
from flushtracker.shape_log.table.found_shape import FoundShape
from flushtracker.shapes.bound_relation import relations_of
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.item_key import JOINED_KEY, joined_prefix
from flushtracker.shapes.where import parse_where
from flushtracker.shapes.where.joined_condition import JoinedCondition
from flushtracker.wal.changes import Row


def joined_shape_rows(
    table: DeltaTable, shape: FoundShape, check: Callable[[], None] | None = None
) -> Iterator[pa.Table]:
    """The shape's rows up to its bound, unordered, with the columns of ``fold_items``.

    Raises:
        ConfigError: the shape has subqueries, and the registry lacks its definition or its tables.
        FlushtrackerError: as ``folded_rows``; and ``DecodeError`` if the condition has no outcome for a row.
    """
    rows = folded_rows(table, shape, check)
    definition = None if shape.entry is None else shape.entry.definition
    if definition is None or not definition.inner_tables:
        return _of_one_table(rows, shape)
    return _joined(rows, shape, definition)


def _of_one_table(rows: Iterable[pa.Table], shape: FoundShape) -> Iterator[pa.Table]:
    """The same rows, of a shape without subqueries, or without a known definition."""
    for table in rows:
        if pc.any(pc.match_substring_regex(table["key"][:1], JOINED_KEY)).as_py():
            raise _unknown(shape)
        yield table


def _unknown(shape: FoundShape) -> ConfigError:
    return ConfigError(
        f"{shape.name} has subqueries, and its log has rows of all tables that they read; which of them are in the "
        "shape cannot be told without its definition and its tables, which only the registry table has (shapes), of "
        "its last incarnation alone, and perhaps not of one that was removed; read the log instead of the rows"
    )


def _joined(rows: Iterable[pa.Table], shape: FoundShape, definition: ShapeDefinition) -> Iterator[pa.Table]:
    condition = joined_condition(shape, definition)
    # Sorting reads all rows before it returns the first one, so the subqueries are complete by then.
    own = sort_tables(_own_rows(rows, condition, definition), ROW_ORDER)
    return _matching(own, condition, named_columns(shape))


def joined_condition(shape: FoundShape, definition: ShapeDefinition) -> JoinedCondition:
    """The shape's condition over the rows of all of its tables; raises ``ConfigError`` if a table is unknown."""
    if shape.table is None or definition.where is None or len(shape.inner) < len({*_inner_names(definition)}):
        raise _unknown(shape)
    try:
        return parse_where(definition.where).joined(definition.table, relations_of((shape.table, *shape.inner)))
    except ShapeError as error:
        raise ConfigError(f"{shape.name} cannot be read, as its tables have changed since it ended: {error}") from error


def named_columns(shape: FoundShape) -> tuple[str, ...] | None:
    """The columns of the shape's rows; ``None`` for all that the log has."""
    is_all = shape.entry is None or shape.entry.definition.columns is None
    return None if is_all else tuple(shape.columns)


def _inner_names(definition: ShapeDefinition) -> Iterator[tuple[str, str]]:
    return (inner.table for inner in definition.inner_tables if inner.table != definition.table)


def _own_rows(rows: Iterable[pa.Table], condition: JoinedCondition, definition: ShapeDefinition) -> Iterator[pa.Table]:
    """The rows of the shape's own table; those of its subqueries' tables are added to the condition."""
    for table in rows:
        for name in condition.inner_tables:
            for value in table.filter(is_of(table, joined_prefix(name)))["value"].to_pylist():
                condition.add(name, columns_of(value))
        yield table.filter(is_of(table, joined_prefix(definition.table)))


def is_of(rows: pa.Table, prefix: str) -> pa.ChunkedArray:
    """Whether each row belongs to the table of a :func:`joined_prefix`."""
    return pc.starts_with(rows["key"], prefix + "/")


def _matching(
    rows: Iterable[pa.Table], condition: JoinedCondition, names: tuple[str, ...] | None
) -> Iterator[pa.Table]:
    """The rows in the shape, with only the columns ``names``."""
    is_settled = False
    for table in rows:
        if not is_settled:
            condition.settle()
            is_settled = True
        values = [columns_of(value) for value in table["value"].to_pylist()]
        is_in = [condition.matches(row) for row in values]
        found = table.filter(pa.array(is_in, pa.bool_()))
        if names is not None:
            texts = [shown_text(row, names) for row in compress(values, is_in)]
            index = found.column_names.index("value")
            found = found.set_column(index, "value", pa.array(texts, table["value"].type))
        yield found


def shown_text(row: Row, names: tuple[str, ...]) -> str:
    """A row as the log has it, with only the columns ``names``."""
    kept = {name: row[name] for name in names if name in row}
    return json.dumps(kept, ensure_ascii=False, separators=(",", ":"))
