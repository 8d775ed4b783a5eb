"""The columns and types of a shape's rows, and a digest of them.

Capture adds the digest to the shape's changes, from the binding by which it routes them; a reader of the registry
computes it from the table's entry. While both are the same, the rows of those changes have the columns and types that
the reader has told its clients.
"""

import json
from hashlib import sha256
from typing import Final

from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.table_binding import ColumnBinding, TableBinding
from flushtracker.shapes.type_binding import TypeBinding, made_of

_DIGITS: Final = 16


def shape_columns(definition: ShapeDefinition, table: TableBinding) -> dict[str, ColumnBinding]:
    """The shape's columns by name, in the table's order."""
    if definition.columns is None:
        return {column.name: column for column in table.columns}
    chosen = {*definition.columns, *shape_key(definition, table)}
    return {column.name: column for column in table.columns if column.name in chosen}


def shape_key(definition: ShapeDefinition, table: TableBinding) -> tuple[str, ...]:
    return definition.primary_key or table.key


def shape_schema(definition: ShapeDefinition, table: TableBinding) -> str | None:
    """The digest of what readers must know of the shape's rows: the table's name, columns, types and keys.

    All releases must compute the same. ``None`` for a shape with subqueries, whose changes are those of several tables.
    """
    if definition.inner_tables:
        return None
    columns = shape_columns(definition, table).values()
    types = made_of((column.type_oid for column in columns), {each.oid: each for each in table.types})
    facts = [
        table.table,
        shape_key(definition, table),
        table.key,
        [(column.name, column.type_oid, column.type_modifier) for column in columns],
        [_type_facts(each) for each in types],
    ]
    return sha256(json.dumps(facts, separators=(",", ":")).encode()).hexdigest()[:_DIGITS]


def _type_facts(binding: TypeBinding) -> tuple[object, ...]:
    labels = [label.text for label in binding.labels]
    return binding.oid, binding.schema, binding.name, binding.kind, binding.parts, binding.attributes, labels
