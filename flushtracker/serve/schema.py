"""``electric-schema``: the types of a shape's columns, as the clients' parsers know them."""

import json
from collections.abc import Iterable, Mapping
from typing import Final

from flushtracker.shapes.table_binding import ColumnBinding, TableBinding
from flushtracker.shapes.type_binding import TypeBinding

_HEADER: Final = 4
"""What PostgreSQL adds to lengths in type modifiers."""
_NO_PRECISION: Final = 0xFFFF

_NAMES: Final[Mapping[int, str]] = {
    16: "bool",
    17: "bytea",
    18: "char",
    19: "name",
    20: "int8",
    21: "int2",
    23: "int4",
    25: "text",
    26: "oid",
    27: "tid",
    28: "xid",
    114: "json",
    142: "xml",
    600: "point",
    601: "lseg",
    602: "path",
    603: "box",
    604: "polygon",
    628: "line",
    650: "cidr",
    700: "float4",
    701: "float8",
    718: "circle",
    774: "macaddr8",
    790: "money",
    829: "macaddr",
    869: "inet",
    1042: "bpchar",
    1043: "varchar",
    1082: "date",
    1083: "time",
    1114: "timestamp",
    1184: "timestamptz",
    1186: "interval",
    1266: "timetz",
    1560: "bit",
    1562: "varbit",
    1700: "numeric",
    2950: "uuid",
    3220: "pg_lsn",
    3614: "tsvector",
    3615: "tsquery",
    3802: "jsonb",
    3904: "int4range",
    3906: "numrange",
    3908: "tsrange",
    3910: "tstzrange",
    3912: "daterange",
    3926: "int8range",
    4072: "jsonpath",
}
_ARRAYS: Final[Mapping[int, int]] = {
    1000: 16,
    1001: 17,
    1002: 18,
    1003: 19,
    1016: 20,
    1005: 21,
    1007: 23,
    1009: 25,
    1028: 26,
    199: 114,
    143: 142,
    1017: 600,
    651: 650,
    1021: 700,
    1022: 701,
    791: 790,
    1040: 829,
    1041: 869,
    1014: 1042,
    1015: 1043,
    1182: 1082,
    1183: 1083,
    1115: 1114,
    1185: 1184,
    1187: 1186,
    1270: 1266,
    1561: 1560,
    1563: 1562,
    1231: 1700,
    2951: 2950,
    3221: 3220,
    3807: 3802,
}
_WITH_PRECISION: Final = frozenset({1083, 1114, 1184, 1266})


def schema_json(columns: Iterable[ColumnBinding], table: TableBinding | None) -> str:
    """The header's value: an object with an object for each column; ``{}`` if the table is not known."""
    if table is None:
        return "{}"
    types = {each.oid: each for each in table.types}
    found = {column.name: _column(column, table, types) for column in columns}
    return json.dumps(found, separators=(",", ":"))


def _column(column: ColumnBinding, table: TableBinding, types: Mapping[int, TypeBinding]) -> dict[str, object]:
    oid, is_array = _item_type(column.type_oid, types)
    type_name = _NAMES.get(oid) or (types[oid].name if oid in types else f"oid:{oid}")
    found: dict[str, object] = {"type": type_name}
    if is_array:
        found["dims"] = 1
    if column.name in table.key:
        # A parser refuses NULLs of a column that has none, so only what is certain is said: a key has none.
        found |= {"not_null": True, "pk_index": table.key.index(column.name)}
    return found | _modified(oid, column.type_modifier)


def _item_type(oid: int, types: Mapping[int, TypeBinding]) -> tuple[int, bool]:
    """The type whose texts are parsed, and whether the column has arrays of it; a domain's is what it is over."""
    is_array = False
    for _ in range(10):
        if oid in _ARRAYS:
            oid, is_array = _ARRAYS[oid], True
        elif oid in types and types[oid].kind in {"domain", "array"} and types[oid].parts:
            is_array = is_array or types[oid].kind == "array"
            oid = types[oid].parts[0]
        else:
            break
    return oid, is_array


def _modified(oid: int, modifier: int) -> dict[str, object]:
    """What a type modifier says, as in ``varchar(20)``."""
    name = _NAMES.get(oid)
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
