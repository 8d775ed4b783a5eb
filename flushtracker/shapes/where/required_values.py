"""The values that a row must have for a condition to be true: an index finds by them the conditions that it may meet.

They follow from ``column = constant``, ``column IN (constants)``, and AND and OR of such. What they say is necessary,
not sufficient: the condition still decides. A value is what the column's type makes of its text, and the condition
compares just these values by ``==``; so a look-up by hash finds a value if and only if the condition finds it equal.
Where it compares the column in another type (an integer with a double) nothing is required.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from flushtracker.shapes.where.binding import read_literal
from flushtracker.shapes.where.sql_values import FLOAT4, TYPES, SqlType, Value, common_type, is_single
from flushtracker.shapes.where.tree import ColumnRef, Comparison, Constant, Junction, Membership, Node
from flushtracker.wal.changes import Relation

RequiredValues: TypeAlias = Mapping[str, frozenset[Value]]
"""For each column that is named, the values of which a row must have one: none, where no row can match."""

_Types: TypeAlias = Mapping[str, int]


def required_values(condition: Node, relation: Relation) -> RequiredValues:
    """What ``condition`` requires of the rows of ``relation``, to which it, or one of its form, can be bound.

    Raises ``ValueError`` where a literal is not of the type that it is compared in.
    """
    return _required(condition, {column.name: column.type_oid for column in relation.columns})


def value_parser(relation: Relation, column: str) -> Callable[[str], Value]:
    """Makes of the column's text what :func:`required_values` holds; raises ``ValueError`` where it is not of its type.

    ``column`` is one that is named there.
    """
    return TYPES[next(found.type_oid for found in relation.columns if found.name == column)].parse


def _required(node: Node, types: _Types) -> RequiredValues:
    match node:
        case Comparison("=", ColumnRef(name), Constant() as constant):
            return _one_of(name, TYPES[types[name]], [constant])
        case Comparison("=", Constant() as constant, ColumnRef(name)):
            return _one_of(name, TYPES[types[name]], [constant])
        case Membership(ColumnRef(name), constants):
            return _one_of(name, TYPES[types[name]], constants)
        case Junction("AND", parts):
            return _all([_required(part, types) for part in parts])
        case Junction("OR", parts):
            return _any([_required(part, types) for part in parts])
    return {}


def _one_of(name: str, column_type: SqlType, constants: Iterable[Constant]) -> RequiredValues:
    common: SqlType | None = column_type
    for constant in constants:
        if common is None or constant.type_oid is None:
            continue
        own = TYPES[constant.type_oid]
        if column_type.oid == FLOAT4 and own.family == "exact":
            value = read_literal(constant, own)
            if value is not None and not is_single(value):
                raise ValueError("not a real")
        common = common_type(common, own)
    if common is None or common.family != column_type.family:
        return {}
    # Nothing equals NULL.
    return {name: frozenset(read_literal(constant, common) for constant in constants if constant.text is not None)}


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
