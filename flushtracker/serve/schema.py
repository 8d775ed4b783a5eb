"""``electric-schema``: the types of a shape's columns, by the names that clients' parsers use."""

import json
from collections.abc import Iterable, Mapping
from typing import Final

from flushtracker.shapes.builtin_types import ITEMS, NAMES
from flushtracker.shapes.table_binding import ColumnBinding, TableBinding
from flushtracker.shapes.type_binding import TypeBinding

_HEADER: Final = 4
"""What PostgreSQL adds to lengths in type modifiers."""
_NO_PRECISION: Final = 0xFFFF

_WITH_PRECISION: Final = frozenset({1083, 1114, 1184, 1266})


def schema_json(columns: Iterable[ColumnBinding], table: TableBinding | None) -> str:
    """The header's value: an object with an object per column; ``{}`` if the table is unknown."""
    if table is None:
        return "{}"
    types = {each.oid: each for each in table.types}
    found = {column.name: _column(column, table, types) for column in columns}
    return json.dumps(found, separators=(",", ":"))


def _column(column: ColumnBinding, table: TableBinding, types: Mapping[int, TypeBinding]) -> dict[str, object]:
    oid, is_array = item_type(column.type_oid, types)
    type_name = NAMES.get(oid) or (types[oid].name if oid in types else f"oid:{oid}")
    if is_array and (domain := _domain_of_items(column.type_oid, types)) is not None:
        # As in Electric, whose clients may have a parser with this name.
        type_name = domain
    found: dict[str, object] = {"type": type_name}
    if is_array:
        found["dims"] = 1
    if column.name in table.key:
        # A parser refuses NULLs in a not-null column, so only what is certain is stated: key columns have none.
        found |= {"not_null": True, "pk_index": table.key.index(column.name)}
    return found | _modified(oid, column.type_modifier)


def item_type(oid: int, types: Mapping[int, TypeBinding]) -> tuple[int, bool]:
    """The type whose texts are parsed (a domain's base type), and whether the column has arrays of it."""
    is_array = False
    for _ in range(10):
        if oid in ITEMS:
            oid, is_array = ITEMS[oid], True
        elif oid in types and types[oid].kind in {"domain", "array"} and types[oid].parts:
            is_array = is_array or types[oid].kind == "array"
            oid = types[oid].parts[0]
        else:
            break
    return oid, is_array


def _domain_of_items(oid: int, types: Mapping[int, TypeBinding]) -> str | None:
    """The name of the domain whose arrays a column has."""
    array = types.get(oid)
    items = None if array is None or array.kind != "array" else types.get(array.parts[0])
    return None if items is None or items.kind != "domain" else items.name


def _modified(oid: int, modifier: int) -> dict[str, object]:
    """The meaning of a type modifier, as in ``varchar(20)``."""
    name = NAMES.get(oid)
    found: dict[str, object] = {}
    if modifier < 0:
        return found
    if name == "varchar":
        found = {"max_length": modifier - _HEADER}
    elif name == "bpchar":
        found = {"length": modifier - _HEADER}
    elif name in {"bit", "varbit"}:
        found = {"length": modifier}
    elif name == "numeric":
        scale = (modifier - _HEADER) & 0x7FF
        found = {"precision": (modifier - _HEADER) >> 16 & 0xFFFF, "scale": (scale ^ 0x400) - 0x400}
    elif name == "interval" and modifier & _NO_PRECISION != _NO_PRECISION:
        found = {"precision": modifier & _NO_PRECISION}
    elif oid in _WITH_PRECISION:
        found = {"precision": modifier}
    return found
