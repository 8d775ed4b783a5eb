"""Strict parsing of JSON events: a missing field or a wrong type raises a ``DecodeError`` that names the field.

Every event is one object with ``v`` and ``source``, in JSON as RFC 8259 defines it, in UTF-8 without a byte order mark.
The parser refuses what the RFC leaves undefined, a key that occurs twice in one object and half a surrogate pair, and
Python's extensions ``NaN`` and ``Infinity``. An integer has no fraction and no exponent, and is at most 2**63 − 1, to
fit a Spark ``bigint``.
"""

import json
from collections.abc import Mapping
from typing import Any, Final, NoReturn, TypeVar

from flushtracker.errors import START_ANEW, DecodeError, NewerEventError
from flushtracker.wal.changes import TableName
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.names import LOG_WRITER, is_usable_name

VERSION: Final = 1
MAX_BIGINT: Final = 2**63 - 1

_T = TypeVar("_T")


def dump_event(source: str, **fields: object) -> str:
    return dump_json({"v": VERSION, "source": source, **fields})


def dump_json(value: object) -> str:
    """``value`` as JSON without spaces."""
    import orjson  # noqa: PLC0415  Spark's executors import this module, only read events, and lack orjson.

    return orjson.dumps(value).decode()


def load_event(text: str | bytes, what: str) -> dict[str, Any]:
    """Parse one event and check its version; ``what`` names the kind of event in a ``DecodeError``.

    A greater version is a ``NewerEventError``.
    """
    try:
        fields = _parse(text if isinstance(text, str) else text.decode())
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"{what} is not JSON: {_describe(error)}") from error
    except DecodeError as error:
        raise DecodeError(f"{what} {error}") from error
    if not isinstance(fields, dict):
        raise DecodeError(f"{what} is a JSON {type(fields).__name__}, expected an object")
    version = get_field(fields, "v")
    if type(version) is not int or version != VERSION:
        fact = f"{what} has v {version!r:.40}, this program reads v {VERSION}"
        if type(version) is int and version > VERSION:
            raise NewerEventError(
                f"{fact}; upgrade this program, then start it again; if a version before 0.1.0 wrote it, {START_ANEW}"
            )
        raise DecodeError(fact)
    return fields


def _parse(text: str) -> Any:
    value = _DECODER.decode(text)
    if "\\u" in text:
        # Only an escape can bring half a surrogate pair into text, and UTF-8 cannot hold one.
        json.dumps(value, ensure_ascii=False).encode()
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object. A duplicate key is an error, because one reader would take its first value and another its last."""
    fields = dict(pairs)
    if len(fields) != len(pairs):
        names = [name for name, _ in pairs]
        raise DecodeError(f"has the key {next(name for name in names if names.count(name) > 1)!r:.40} twice")
    return fields


def _refuse_constant(name: str) -> NoReturn:
    raise DecodeError(f"has {name}, which is not JSON")


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse_constant)


def _describe(error: Exception) -> str:
    """Describe the error and its position without quoting the text."""
    match error:
        case json.JSONDecodeError():
            return f"{error.msg} at character {error.pos}"
        case UnicodeDecodeError():
            return f"byte {error.start} is not UTF-8"
        case UnicodeEncodeError():
            return "half a surrogate pair in a string"
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


def name_field(fields: Mapping[str, Any], name: str) -> str:
    """The name of a source, a shape or a writer."""
    value = text_field(fields, name)
    if not is_usable_name(value):
        raise DecodeError(f"{name} is {value!r:.80}, which has a control character, such as a line break")
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


def integers_field(fields: Mapping[str, Any], name: str, least: int) -> tuple[int, ...]:
    values = typed_field(fields, name, list)
    return tuple(integer_field({name: value}, name, least) for value in values)


def optional_text(fields: Mapping[str, Any], name: str) -> str | None:
    """As ``text_field``; null is ``None``, and so it is below."""
    return None if get_field(fields, name) is None else text_field(fields, name)


def optional_texts(fields: Mapping[str, Any], name: str) -> tuple[str, ...] | None:
    return None if get_field(fields, name) is None else strings_field(fields, name)


def optional_integer(fields: Mapping[str, Any], name: str, least: int) -> int | None:
    return None if get_field(fields, name) is None else integer_field(fields, name, least)


def absent_or_integer(fields: Mapping[str, Any], name: str, least: int = 0) -> int | None:
    """As ``optional_integer``, of a key that only some events have."""
    return optional_integer({name: None, **fields}, name, least)


def writer_field(fields: Mapping[str, Any]) -> str:
    """The writer of a shape; an event without the key is of a shape whose writer is :data:`LOG_WRITER`."""
    return name_field({"writer": LOG_WRITER, **fields}, "writer")


def writer_json(writer: str) -> dict[str, object]:
    """The key ``writer`` of events of shapes that another program than ``flushtracker write`` writes."""
    return {} if writer == LOG_WRITER else {"writer": writer}


def incarnation_field(fields: Mapping[str, Any]) -> int:
    """Which incarnation of its shape an event is of; only those after the first have the key."""
    return integer_field({"incarnation": 1, **fields}, "incarnation", 1)


def incarnation_json(incarnation: int) -> dict[str, object]:
    """The inverse of :func:`incarnation_field`."""
    return {} if incarnation == 1 else {"incarnation": incarnation}


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
