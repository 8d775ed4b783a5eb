"""The values that a row must have for a condition to be true; an index uses them to find the conditions it may satisfy.

They follow from ``column = constant``, ``column IN (constants)``, ``column = ANY(constant)``, and AND and OR of these.
They are necessary, not sufficient: the condition still decides. Values are parsed by the column's type, and the
condition compares exactly these values with ``==``, so a hash lookup finds a value if and only if the condition
considers it equal. A column that is compared in another type (an integer with a double) has no required values.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

from flushtracker.shapes.where.column_types import type_of_column
from flushtracker.shapes.where.number_values import is_single
from flushtracker.shapes.where.operands import literal_value
from flushtracker.shapes.where.sql_values import FLOAT4, TYPES, SqlType, Value, array_type, common_type, list_types
from flushtracker.shapes.where.tree import AnyOf, ColumnRef, Comparison, Constant, Junction, Membership, Node
from flushtracker.wal.changes import Relation

RequiredValues: TypeAlias = Mapping[str, frozenset[Value]]
"""For each column listed, the allowed values: a matching row has one of them; empty if no row can match."""


def required_values(condition: Node, relation: Relation) -> RequiredValues:
    """The values that ``condition`` requires of rows of ``relation``, to which it, or one of its form, can be bound.

    Raises ``ValueError`` if a literal is not of the type that it is compared in.
    """
    match condition:
        case Comparison("=", ColumnRef(name), Constant() as constant) | Comparison(
            "=", Constant() as constant, ColumnRef(name)
        ):
            return _one_of(name, type_of_column(relation, name), [constant])
        case Membership(ColumnRef(name), constants):
            return _one_of(name, type_of_column(relation, name), constants)
        case AnyOf(ColumnRef(name), Constant() as array):
            return _item_of(name, type_of_column(relation, name), array)
        case Junction("AND", parts):
            return _all([required_values(part, relation) for part in parts])
        case Junction("OR", parts):
            return _any([required_values(part, relation) for part in parts])
    return {}


def value_parser(relation: Relation, column: str) -> Callable[[str], Value]:
    """A parser from the column's text to a value as in :func:`required_values`.

    The parser raises ``ValueError`` for text that is not of the column's type. ``column`` must have required values.
    """
    return type_of_column(relation, column).parse


def _one_of(name: str, column_type: SqlType, constants: Sequence[Constant]) -> RequiredValues:
    own_types = [None if constant.type_oid is None else TYPES[constant.type_oid] for constant in constants]
    for constant, own in zip(constants, own_types, strict=True):
        if own is None:
            continue
        if common_type(column_type, own) is None:
            return {}
        if column_type.oid == FLOAT4 and own.family == "exact":
            value = literal_value(constant, own)
            if value is not None and not is_single(value):
                raise ValueError("not a real")
    types = list_types(column_type, own_types)
    if types.compared.family != column_type.family:
        return {}
    # Nothing equals NULL.
    literals = [constant for constant in constants if constant.text is not None]
    return {name: frozenset(literal_value(literal, types.of_items, types.compared) for literal in literals)}


def _item_of(name: str, column_type: SqlType, array: Constant) -> RequiredValues:
    own = array_type(0, column_type) if array.type_oid is None else TYPES[array.type_oid]
    if own.item is None or own.item.family != column_type.family:
        return {}
    value = literal_value(array, own)
    return {name: frozenset(() if value is None else value.items) - {None}}


def _all(parts: Iterable[RequiredValues]) -> RequiredValues:
    required: dict[str, frozenset[Value]] = {}
    for part in parts:
        for name, values in part.items():
            required[name] = required[name] & values if name in required else values
    return required


def _any(parts: list[RequiredValues]) -> RequiredValues:
    names = parts[0].keys() if parts else frozenset()
    return {
        name: frozenset().union(*(part[name] for part in parts))
        for name in names
        if all(name in part for part in parts)
    }
