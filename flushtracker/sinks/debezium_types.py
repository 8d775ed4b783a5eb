"""``ConnectType``: how Debezium's PostgreSQL connector sends the values of a type: the JSON value, and its schema.

Its defaults, but for ``decimal.handling.mode=string``: ``time.precision.mode=adaptive``, ``interval.handling.mode=
numeric``, ``binary.handling.mode=bytes``, ``hstore.handling.mode=json``. A type that is none of Debezium's stays
PostgreSQL's text, where Debezium leaves the column out; ``docs/kafka_sinks.md`` has every difference.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias

from flushtracker.shapes.builtin_types import ITEMS
from flushtracker.shapes.type_binding import TypeBinding
from flushtracker.shapes.where.time_values import parse_time
from flushtracker.sinks import debezium_times as times
from flushtracker.sinks import debezium_values as values
from flushtracker.sinks.debezium_values import Converter

Schema: TypeAlias = Mapping[str, Any]
"""A schema as Connect's JSON converter writes it, but for ``optional`` and ``field``."""

UNAVAILABLE: Final = "__debezium_unavailable_value"
"""Stands for a large value that an update has not changed, and the server has not sent."""
_UNAVAILABLE_UUID: Final = "b68a35a7-17ad-35b3-af2a-ae46edb4545a"
_UNAVAILABLE_HSTORE: Final = f'{{"{UNAVAILABLE}":"{UNAVAILABLE}"}}'
_NUMBERS: Final = frozenset({"int16", "int32", "int64", "float", "double"})
_BOX: Final = 603
"""Its arrays are written otherwise than those of other types."""
_UNLIMITED: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class ConnectType:
    """What makes the JSON value of a text, and the schema of these values."""

    convert: Converter
    schema: Schema

    @property
    def unavailable(self) -> Any:
        """What stands for a value of this type that the server has not sent; ``None`` if nothing can."""
        items = self.schema.get("items")
        match items or self.schema:
            case {"name": "io.debezium.data.Uuid"} if items:
                value = _UNAVAILABLE_UUID
            case {"type": "string"}:
                value = _UNAVAILABLE_HSTORE if self.convert is values.hstore else UNAVAILABLE
            case {"type": "bytes"}:
                value = values.base64(UNAVAILABLE.encode())
            case {"type": kind} if items and kind in _NUMBERS:
                return list(UNAVAILABLE.encode())
            case _:
                return None
        return [value] if items else value

    def field(self, name: str, *, is_optional: bool) -> Schema:
        """The schema of a struct's field."""
        return {**self.schema, "optional": is_optional, "field": name}

    def array(self, *, is_flat: bool) -> "ConnectType":
        convert = partial(values.array, self.convert, is_flat=is_flat)
        return ConnectType(convert, {"type": "array", "items": {**self.schema, "optional": True}})


def connect_type(
    type_oid: int, type_modifier: int, types: Mapping[int, TypeBinding], *, is_flat: bool = False
) -> ConnectType:
    """How a column is sent; ``types`` are those of its table that are not built in, by OID.

    ``is_flat``: an array of several dimensions is one of all its elements, because no schema can tell them apart.

    >>> connect_type(1082, -1, {}).convert("1970-01-02")
    1
    >>> connect_type(1700, -1, {}).convert("1.50")
    '1.50'
    >>> connect_type(1007, -1, {}).convert("{1,NULL,3}")
    [1, None, 3]
    """
    binding = types.get(type_oid)
    if binding is None:
        if (element := ITEMS.get(type_oid, _BOX)) != _BOX:
            return _builtin(element, type_modifier).array(is_flat=is_flat)
        return _builtin(type_oid, type_modifier)
    if binding.kind == "array" and not _has_commas(binding.parts[0], types):
        return _TEXT
    if binding.kind in ("domain", "array"):
        # The registry lacks the modifier of a domain's base type, so that counts as unrestricted.
        inner = connect_type(binding.parts[0], -1, types, is_flat=is_flat)
        return inner.array(is_flat=is_flat) if binding.kind == "array" else inner
    if binding.kind == "enum":
        allowed = ",".join(label.text for label in binding.labels)
        return _semantic(str, "string", "io.debezium.data.Enum", allowed=allowed)
    return _BY_NAME.get(binding.name, _TEXT) if binding.kind == "base" else _TEXT


def _has_commas(element_oid: int, types: Mapping[int, TypeBinding]) -> bool:
    """Whether commas are known to separate the elements of an array: an extension may have chosen another character."""
    binding = types.get(element_oid)
    if binding is None:
        return element_oid != _BOX
    if binding.kind == "domain":
        return _has_commas(binding.parts[0], types)
    return binding.kind != "base" or binding.name in _BY_NAME


def _builtin(type_oid: int, type_modifier: int) -> ConnectType:
    if type_oid in _BITS:
        if type_modifier == 1:
            return ConnectType(values.one_bit, {"type": "boolean"})
        length = _UNLIMITED if type_modifier < 0 else type_modifier
        return _semantic(values.bits, "bytes", "io.debezium.data.Bits", length=str(length))
    if type_oid == _TIMESTAMPTZ:
        convert = partial(times.timestamptz, type_modifier)
        return _semantic(convert, "string", "io.debezium.time.ZonedTimestamp")
    if type_oid in _IN_MILLIS and 0 <= type_modifier <= _MILLIS_DIGITS:
        return _IN_MILLIS[type_oid]
    return _BY_OID.get(type_oid, _TEXT)


def _semantic(convert: Converter, kind: str, name: str, **parameters: str) -> ConnectType:
    schema = {"type": kind, "name": name, "version": 1}
    return ConnectType(convert, {**schema, "parameters": parameters} if parameters else schema)


_TEXT: Final = ConnectType(str, {"type": "string"})
_JSON: Final = _semantic(str, "string", "io.debezium.data.Json")
_POINT: Final = {
    "type": "struct",
    "fields": [
        {"type": "double", "optional": False, "field": "x"},
        {"type": "double", "optional": False, "field": "y"},
        {"type": "bytes", "optional": True, "field": "wkb"},
        {"type": "int32", "optional": True, "field": "srid"},
    ],
    "name": "io.debezium.data.geometry.Point",
    "version": 1,
    "doc": "Geometry (POINT)",
}
_BY_OID: Final[Mapping[int, ConnectType]] = {
    16: ConnectType(values.is_true, {"type": "boolean"}),
    17: ConnectType(values.hex_bytes, {"type": "bytes"}),
    20: ConnectType(int, {"type": "int64"}),
    21: ConnectType(int, {"type": "int16"}),
    23: ConnectType(int, {"type": "int32"}),
    26: ConnectType(int, {"type": "int64"}),
    114: _JSON,
    142: _semantic(str, "string", "io.debezium.data.Xml"),
    600: ConnectType(values.point, _POINT),
    700: ConnectType(values.floating, {"type": "float"}),
    701: ConnectType(values.floating, {"type": "double"}),
    790: ConnectType(values.money, {"type": "string"}),
    1082: _semantic(times.days, "int32", "io.debezium.time.Date"),
    1083: _semantic(parse_time, "int64", "io.debezium.time.MicroTime"),
    1114: _semantic(times.micros, "int64", "io.debezium.time.MicroTimestamp"),
    1186: _semantic(times.interval, "int64", "io.debezium.time.MicroDuration"),
    1266: _semantic(times.timetz, "string", "io.debezium.time.ZonedTime"),
    1700: ConnectType(values.numeric, {"type": "string"}),
    2950: _semantic(str, "string", "io.debezium.data.Uuid"),
    3614: _semantic(str, "string", "io.debezium.data.Tsvector"),
    3802: _JSON,
}
"""Other types are sent as PostgreSQL's text."""
_BY_NAME: Final = {
    "hstore": _semantic(values.hstore, "string", "io.debezium.data.Json"),
    "ltree": _semantic(str, "string", "io.debezium.data.Ltree"),
    "citext": _TEXT,
}
"""Types of extensions, which have no OID of their own."""
_BITS: Final = frozenset({1560, 1562})
_TIMESTAMPTZ: Final = 1184
_MILLIS_DIGITS: Final = 3
_IN_MILLIS: Final = {
    1083: _semantic(partial(times.millis, parse_time), "int32", "io.debezium.time.Time"),
    1114: _semantic(partial(times.millis, times.timestamp_us), "int64", "io.debezium.time.Timestamp"),
}
"""Types that are sent in milliseconds if a column has at most three digits of a second."""
