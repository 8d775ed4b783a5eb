"""Strict parsing of JSON events: a missing field or a wrong type raises a ``DecodeError`` that names the field.

Every event is one object with ``v`` and ``source``. Numbers are at most 2**63 − 1, to fit a Spark ``bigint``.
"""

import json
from collections.abc import Mapping
from typing import Any, Final, TypeVar

from flushtracker.errors import DecodeError
from flushtracker.wal.changes import TableName
from flushtracker.wal.log_offset import LogOffset

VERSION: Final = 1
MAX_BIGINT: Final = 2**63 - 1

_T = TypeVar("_T")


def dump_event(source: str, **fields: object) -> str:
    return json.dumps({"v": VERSION, "source": source, **fields}, separators=(",", ":"), ensure_ascii=False)


def load_event(text: str | bytes, what: str) -> dict[str, Any]:
    """Parse one event and check its version; ``what`` names the kind of event in a ``DecodeError``."""
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"{what} is not JSON: {_describe(error)}") from error
    if not isinstance(fields, dict):
        raise DecodeError(f"{what} is a JSON {type(fields).__name__}, expected an object")
    version = get_field(fields, "v")
    if type(version) is not int or version != VERSION:
        raise DecodeError(f"{what} has v {version!r:.40}, this program reads v {VERSION}")
    return fields


def _describe(error: Exception) -> str:
    """Describe the error and its position without quoting the text."""
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at character {error.pos}"
    return type(error).__name__


def get_field(fields: Mapping[str, Any], name: str) -> Any:
    if name not in fields:
        raise DecodeError(f"{name} is missing")
    return fields[name]


def typed_field(fields: Mapping[str, Any], name: str, kind: type[_T]) -> _T:
    value = get_field(fields, name)
    if type(value) is not kind:
        raise DecodeError(f"{name} has type {type(value).__name__}, expected {kind.__name__}")
    return value


def text_field(fields: Mapping[str, Any], name: str) -> str:
    value = typed_field(fields, name, str)
    if not value:
        raise DecodeError(f"{name} is empty")
    return value


def integer_field(fields: Mapping[str, Any], name: str, least: int) -> int:
    value = typed_field(fields, name, int)
    if not least <= value <= MAX_BIGINT:
        raise DecodeError(f"{name} is {value!r:.40}, expected {least} to {MAX_BIGINT}")
    return value


def objects_field(fields: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    values = typed_field(fields, name, list)
    if not all(type(value) is dict for value in values):
        raise DecodeError(f"{name} has an element that is not an object")
    return values


def offset_field(fields: Mapping[str, Any], name: str, least_tx_offset: int = 0) -> LogOffset:
    value = typed_field(fields, name, dict)
    try:
        return LogOffset(integer_field(value, "tx_offset", least_tx_offset), integer_field(value, "op_offset", 0))
    except DecodeError as error:
        raise DecodeError(f"{name}: {error}") from error


def offset_json(offset: LogOffset) -> dict[str, int]:
    return {"tx_offset": offset.tx_offset, "op_offset": offset.op_offset}


def strings_field(fields: Mapping[str, Any], name: str) -> tuple[str, ...]:
    return _strings(get_field(fields, name), name)


def table_field(fields: Mapping[str, Any], name: str) -> TableName:
    return table_name(get_field(fields, name))


def table_name(value: object) -> TableName:
    """A schema and a name, from a list of two."""
    names = _strings(value, "a table")
    if len(names) != 2:
        raise DecodeError(f"a table has {len(names)} names, expected two: schema and table")
    return names[0], names[1]


def _strings(value: object, name: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(type(text) is str for text in value):
        raise DecodeError(f"{name} is not a list of strings")
    return tuple(value)
