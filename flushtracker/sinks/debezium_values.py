"""PostgreSQL's texts as the JSON values that Debezium's PostgreSQL connector sends, by the type of a column.

Its defaults, but for ``decimal.handling.mode=string``: ``time.precision.mode=adaptive``, ``interval.handling.mode=
numeric``, ``binary.handling.mode=bytes``, ``hstore.handling.mode=json``. The texts are those of ``DateStyle`` ISO,
``IntervalStyle`` postgres and ``bytea_output`` hex in UTC, as capture's connections have them. A type that is none of
Debezium's stays PostgreSQL's text, where Debezium leaves the column out; ``docs/kafka_sinks.md`` has every difference.
"""

import json
import re
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from struct import pack
from typing import Any, Final, TypeAlias

from flushtracker.errors import DecodeError
from flushtracker.shapes.type_binding import TypeBinding

Converter: TypeAlias = Callable[[str], Any]
"""Makes the JSON value of a text that is not NULL; raises ``ValueError`` for a text of another type."""

UNAVAILABLE: Final = "__debezium_unavailable_value"
"""Stands for a large value that an update has not changed, and the server has not sent."""

_BYTEA: Final = 17
_INTEGERS: Final = frozenset({20, 21, 23, 26})
_TIMESTAMPTZ: Final = 1184
_ELEMENTS: Final = dict(
    [
        *[(1000, 16), (1001, 17), (1016, 20), (1005, 21), (1007, 23), (1028, 26), (1021, 700), (1022, 701)],
        *[(1231, 1700), (1182, 1082), (1183, 1083), (1115, 1114), (1185, 1184), (1270, 1266), (1187, 1186)],
        *[(1561, 1560), (1563, 1562), (1002, 18), (1003, 19), (1009, 25), (1014, 1042), (1015, 1043), (199, 114)],
        *[(3807, 3802), (143, 142), (2951, 2950), (1041, 869), (651, 650), (1040, 829), (775, 774), (3643, 3614)],
        *[(1017, 600), (791, 790), (3905, 3904), (3907, 3906), (3909, 3908), (3911, 3910), (3913, 3912), (3927, 3926)],
    ]
)
"""The element type of each array type, by OID."""
_SPECIAL_NUMBERS: Final = {"NaN": "NAN", "Infinity": "POSITIVE_INFINITY", "-Infinity": "NEGATIVE_INFINITY"}
_DATE: Final = re.compile(r"(\d{4,})-(\d\d)-(\d\d)( BC)?")
_TIME: Final = re.compile(r"(\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?")
_ZONE: Final = re.compile(r"([+-])(\d\d)(?::(\d\d))?(?::(\d\d))?")
_INTERVAL_PART: Final = re.compile(r"([+-]?\d+) (year|mon|day)s?")
_INTERVAL_TIME: Final = re.compile(r"([+-]?)(\d+):(\d\d):(\d\d(?:\.\d+)?)$")
_HSTORE: Final = re.compile(r'"((?:[^"\\]|\\.)*)"=>(?:"((?:[^"\\]|\\.)*)"|NULL)(?:, )?', re.DOTALL)
_ARRAY_TOKEN: Final = re.compile(r'[{},]|"(?:[^"\\]|\\.)*"|[^{},"]+', re.DOTALL)
_DIMENSIONS: Final = re.compile(r"(?:\[[+-]?\d+:[+-]?\d+\])+=")
_DAY_US: Final = 86_400_000_000
_DAYS_PER_MONTH: Final = 365.25 / 12
_INFINITE_US: Final = {"infinity": 9_223_372_036_825_200_000, "-infinity": -9_223_372_036_832_400_000}
_INFINITE_DAYS: Final = {"infinity": 2**31 - 1, "-infinity": -(2**31)}
_OPEN, _CLOSE, _COMMA, _NULL = "{", "}", ",", "NULL"


def converter(type_oid: int, type_modifier: int, types: Mapping[int, TypeBinding]) -> Converter:
    """The converter of a column's type; ``types`` are those of its table that are not built in, by OID.

    >>> converter(1082, -1, {})("1970-01-02")
    1
    >>> converter(1700, -1, {})("1.50")
    '1.50'
    >>> converter(1007, -1, {})("{1,NULL,3}")
    [1, None, 3]
    """
    binding = types.get(type_oid)
    if binding is None:
        return _builtin(type_oid, type_modifier)
    if binding.kind in ("domain", "array"):
        # The registry lacks the modifier of a domain's base type, so that counts as unrestricted.
        inner = converter(binding.parts[0], -1, types)
        return partial(_array, inner) if binding.kind == "array" else inner
    return _hstore if binding.name == "hstore" and binding.kind == "base" else str


def _builtin(type_oid: int, type_modifier: int) -> Converter:
    if (element := _ELEMENTS.get(type_oid)) is not None:
        return partial(_array, _builtin(element, type_modifier))
    if type_oid == _TIMESTAMPTZ:
        return partial(_timestamptz, type_modifier)
    return _BY_MODIFIER.get((type_oid, type_modifier)) or _BY_OID.get(type_oid, str)


def placeholder(type_oid: int, types: Mapping[int, TypeBinding]) -> Any:
    """What stands for a value of this type that the server has not sent."""
    binding = types.get(type_oid)
    if binding is not None and binding.kind in ("domain", "array"):
        inner = placeholder(binding.parts[0], types)
        return [inner] if binding.kind == "array" else inner
    if (element := _ELEMENTS.get(type_oid)) is not None:
        return list(UNAVAILABLE.encode()) if element in _INTEGERS else [placeholder(element, types)]
    return _base64(UNAVAILABLE.encode()) if type_oid == _BYTEA else UNAVAILABLE


def _base64(data: bytes) -> str:
    return b64encode(data).decode()


def _bytea(text: str) -> str:
    if not text.startswith("\\x"):
        raise ValueError("not in hex")
    return _base64(bytes.fromhex(text[2:]))


def _float(text: str) -> float | str:
    return text if text in _SPECIAL_NUMBERS else float(text)


def _numeric(text: str) -> str:
    return _SPECIAL_NUMBERS.get(text, text)


def _bit(text: str) -> bool:
    return text == "1"


def _bits(text: str) -> str:
    """Bytes, the last bits first, without the leading zeros."""
    number = int(text, 2) if text else 0
    return _base64(number.to_bytes((number.bit_length() + 7) // 8, "little"))


def _days(text: str) -> int:
    """Days since 1970-01-01 in the proleptic Gregorian calendar, of any year that PostgreSQL has."""
    if text in _INFINITE_DAYS:
        return _INFINITE_DAYS[text]
    found = _DATE.fullmatch(text)
    if found is None:
        raise ValueError("not a date")
    year, month, day = (int(part) for part in found.groups()[:3])
    year = 1 - year if found[4] else year
    # Years that begin in March, so that a leap day is the last of its year.
    year, month = (year, month - 3) if month > 2 else (year - 1, month + 9)
    return 365 * year + year // 4 - year // 100 + year // 400 + (153 * month + 2) // 5 + day - 1 - 719_468


def _time_us(text: str) -> int:
    found = _TIME.fullmatch(text)
    if found is None:
        raise ValueError("not a time")
    hour, minute, second = (int(part) for part in found.groups()[:3])
    return ((hour * 60 + minute) * 60 + second) * 1_000_000 + int((found[4] or "").ljust(6, "0"))


def _timestamp_us(text: str) -> int:
    if text in _INFINITE_US:
        return _INFINITE_US[text]
    date, _, time = text.partition(" ")
    time, _, era = time.partition(" ")
    return _days(f"{date} {era}".strip()) * _DAY_US + _time_us(time)


def _millis(convert: Callable[[str], int], text: str) -> int:
    return convert(text) // 1_000


def _zone_us(text: str) -> int:
    found = _ZONE.fullmatch(text)
    if found is None:
        raise ValueError("not a time zone")
    hours, minutes, seconds = (int(part or 0) for part in found.groups()[1:])
    return (-1 if found[1] == "-" else 1) * ((hours * 60 + minutes) * 60 + seconds) * 1_000_000


def _timestamptz(digits: int, text: str) -> str:
    """In UTC, with as many digits of a second as the column has."""
    if text in _INFINITE_US:
        return text
    found = re.search(r"[+-]\d\d(?::\d\d)*(?= BC$|$)", text)
    if found is None:
        raise ValueError("no time zone")
    us = _timestamp_us(text[: found.start()] + text[found.end() :]) - _zone_us(found[0])
    days, rest = divmod(us, _DAY_US)
    second, fraction = f"{rest % 60_000_000:08d}"[:2], f"{rest % 1_000_000:06d}"[: 6 if digits < 0 else digits]
    time = f"{rest // 3_600_000_000:02d}:{rest // 60_000_000 % 60:02d}:{second}"
    return f"{_iso_date(days)}T{time}{'.' if fraction else ''}{fraction}Z"


def _iso_date(days: int) -> str:
    """The inverse of :func:`_days`, with the years before 1 as ISO 8601 numbers them."""
    days += 719_468
    era, day = divmod(days, 146_097)
    year = (day - day // 1_460 + day // 36_524 - day // 146_096) // 365
    day -= 365 * year + year // 4 - year // 100
    month = (5 * day + 2) // 153
    day, year = day - (153 * month + 2) // 5 + 1, year + 400 * era + (month > 9)
    sign, width = ("-", 4) if year < 0 else ("+", 0) if year > 9_999 else ("", 4)
    return f"{sign}{abs(year):0{width}d}-{month - 9 if month > 9 else month + 3:02d}-{day:02d}"


def _timetz(text: str) -> str:
    found = _ZONE.search(text)
    if found is None:
        raise ValueError("no time zone")
    us = (_time_us(text[: found.start()]) - _zone_us(found[0])) % _DAY_US
    fraction = f"{us % 1_000_000:06d}".rstrip("0")
    time = f"{us // 3_600_000_000:02d}:{us // 60_000_000 % 60:02d}:{us // 1_000_000 % 60:02d}"
    return f"{time}{'.' if fraction else ''}{fraction}Z"


def _interval(text: str) -> int:
    """Microseconds, with the average length of a month."""
    parts = {unit: int(number) for number, unit in _INTERVAL_PART.findall(text)}
    seconds = 0.0
    if (time := _INTERVAL_TIME.search(text)) is not None:
        sign = -1 if time[1] == "-" else 1
        seconds = sign * (int(time[2]) * 3600 + int(time[3]) * 60 + float(time[4]))
    if not parts and time is None:
        raise ValueError("not an interval")
    days = (parts.get("year", 0) * 12 + parts.get("mon", 0)) * _DAYS_PER_MONTH + parts.get("day", 0)
    return round((days * 86_400 + seconds) * 1_000_000)


def _point(text: str) -> dict[str, Any]:
    x, y = (float(part) for part in text.strip("()").split(","))
    return {"x": x, "y": y, "wkb": _base64(pack("<BIdd", 1, 1, x, y)), "srid": None}


def _hstore(text: str) -> str:
    """A JSON object as text."""
    found: dict[str, str | None] = {}
    place = 0
    while (pair := _HSTORE.match(text, place)) is not None:
        found[_unescaped(pair[1])] = None if pair[2] is None else _unescaped(pair[2])
        place = pair.end()
    if place < len(text):
        raise ValueError("not an hstore")
    return json.dumps(found, separators=(",", ":"), ensure_ascii=False)


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text, flags=re.DOTALL)


def _array(convert: Converter, text: str) -> list[Any]:
    tokens = iter(_ARRAY_TOKEN.findall(_DIMENSIONS.sub("", text, count=1)))
    if next(tokens, "") != _OPEN:
        raise ValueError("not an array")
    return _elements(convert, tokens)


def _elements(convert: Converter, tokens: Iterator[str]) -> list[Any]:
    found: list[Any] = []
    for token in tokens:
        if token == _CLOSE:
            return found
        if token == _OPEN:
            found.append(_elements(convert, tokens))
        elif token.startswith('"'):
            found.append(convert(_unescaped(token[1:-1])))
        elif token != _COMMA:
            found.append(None if token.upper() == _NULL else convert(_unescaped(token)))
    raise ValueError("not the whole array")


def json_value(convert: Converter, text: str | None, column: str) -> Any:
    """The JSON value of a column's text; raises ``DecodeError``, without the text, if it is not of the type."""
    if text is None:
        return None
    try:
        return convert(text)
    except ValueError as error:
        raise DecodeError(f"column {column!r} has a value that is not of its type") from error


_BY_OID: Final[Mapping[int, Converter]] = {
    **dict.fromkeys(_INTEGERS, int),
    16: lambda text: text == "t",
    _BYTEA: _bytea,
    600: _point,
    700: _float,
    701: _float,
    1082: _days,
    1083: _time_us,
    1114: _timestamp_us,
    1186: _interval,
    1266: _timetz,
    1560: _bits,
    1562: _bits,
    1700: _numeric,
}
_BY_MODIFIER: Final[Mapping[tuple[int, int], Converter]] = {
    (1560, 1): _bit,
    (1562, 1): _bit,
    **{(1083, digits): partial(_millis, _time_us) for digits in range(4)},
    **{(1114, digits): partial(_millis, _timestamp_us) for digits in range(4)},
}
"""Types that are sent otherwise with some modifiers."""
