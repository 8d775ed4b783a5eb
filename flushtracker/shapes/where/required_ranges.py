"""The ranges in which a row's values must lie for a condition to be true, for an index.

They follow from ``<``, ``<=``, ``>``, ``>=`` and BETWEEN of a column and a constant, from LIKE with a prefix, and from
AND and OR of these. Like :mod:`~.required_values`, they are necessary, not sufficient: the condition still decides.

A range is used only if the condition compares exactly the column's values, in the order of their Python values. So a
column that is compared in another type (an integer with a double, which rounds it) has no range, and neither does text,
whose order depends on the collation. The range of a prefix is one of the column's raw text, as LIKE reads it: trailing
blanks of ``character(n)`` count.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeAlias

from flushtracker.shapes.where.column_types import type_of_column
from flushtracker.shapes.where.operands import literal_value
from flushtracker.shapes.where.sql_values import TYPES, SqlType, Value, common_type
from flushtracker.shapes.where.tree import ColumnRef, Comparison, Constant, Junction, Like, Node
from flushtracker.shapes.where.value_range import ValueRange, prefix_range
from flushtracker.wal.changes import Relation

RequiredRanges: TypeAlias = Mapping[str, ValueRange]
"""For each column listed, a range that contains the value of every row that matches; NULL never matches."""

_ORDERED_FAMILIES: Final = frozenset(
    ["exact", "float", "boolean", "uuid", "datetime", "instant", "time", "interval", "enum"]
)
"""Families whose values Python orders as PostgreSQL does; others are not indexed."""
_PREFIX_FAMILIES: Final = frozenset(["text", "character"])
_FLIPPED: Final = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


def required_ranges(condition: Node, relation: Relation) -> RequiredRanges:
    """The ranges that ``condition`` requires of rows of ``relation``, to which it, or one of its form, can be bound.

    Raises ``ValueError`` if a literal is not of the type that it is compared in.
    """
    if isinstance(condition, Comparison):
        # Most shapes have equalities alone, and there may be a million of them.
        return {} if condition.operator == "=" else _compared(condition, relation)
    match condition:
        case Like(ColumnRef(name), pattern) if pattern is not None and pattern.prefix:
            return (
                {name: prefix_range(pattern.prefix)}
                if type_of_column(relation, name).family in _PREFIX_FAMILIES
                else {}
            )
        case Junction("AND", parts):
            return _all([required_ranges(part, relation) for part in parts])
        case Junction("OR", parts):
            return _any([required_ranges(part, relation) for part in parts])
    return {}


def range_parser(relation: Relation, column: str) -> Callable[[str], Value]:
    """A parser from the column's text to a value that can be compared with its ranges of :func:`required_ranges`.

    The parser raises ``ValueError`` for text that is not of the column's type. ``column`` must have a required range.
    """
    sql_type = type_of_column(relation, column)
    return str if sql_type.family in _PREFIX_FAMILIES else sql_type.parse


def _compared(node: Comparison, relation: Relation) -> RequiredRanges:
    match node:
        case Comparison(operator, ColumnRef(name), Constant() as constant) if operator in _FLIPPED:
            return _bounded(name, type_of_column(relation, name), operator, constant)
        case Comparison(operator, Constant() as constant, ColumnRef(name)) if operator in _FLIPPED:
            return _bounded(name, type_of_column(relation, name), _FLIPPED[operator], constant)
    return {}


def _bounded(name: str, column_type: SqlType, operator: str, constant: Constant) -> RequiredRanges:
    common = column_type if constant.type_oid is None else common_type(column_type, TYPES[constant.type_oid])
    if common is None or common.family != column_type.family or common.family not in _ORDERED_FAMILIES:
        return {}
    bound = literal_value(constant, common)
    if bound is None:
        # Comparisons with NULL are never true, so no row matches; the condition decides that.
        return {}
    return {name: ValueRange(high=bound) if operator in ("<", "<=") else ValueRange(low=bound)}


def _all(parts: Iterable[RequiredRanges]) -> RequiredRanges:
    required: dict[str, ValueRange] = {}
    for part in parts:
        for name, found in part.items():
            required[name] = required[name] & found if name in required else found
    return required


def _any(parts: list[RequiredRanges]) -> RequiredRanges:
    """The ranges of columns that every part has; a range open on both sides excludes only NULL and is omitted."""
    required = dict(parts[0])
    for part in parts[1:]:
        required = {name: found | part[name] for name, found in required.items() if name in part}
    return {name: found for name, found in required.items() if found.open_ends < 2}
