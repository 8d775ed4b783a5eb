"""The PostgreSQL values that a ``where`` can compare, parsed from the text that the server sends.

Every type maps its text to Python values that compare as in PostgreSQL: NaN equals itself and is greater than every
number, ``infinity`` lies outside all dates, ``character(n)`` ignores trailing blanks, and nothing is ever rounded.
Parsers raise ``ValueError``; the caller, which knows the table and the column, adds them to the error.
"""

import decimal
import math
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any, Literal, TypeAlias

# The Python type depends on the SQL type; `common_type` ensures that only values of one family are compared.
Value: TypeAlias = Any
Family: TypeAlias = Literal["exact", "float", "text", "character", "boolean", "uuid", "datetime", "instant"]

_INTEGER = re.compile(r"[+-]?[0-9]{1,30}")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,6})?")
_INFINITY = re.compile(r"([+-]?)inf(?:inity)?", re.IGNORECASE)
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_DATE = re.compile(r"([0-9]{4,7})-([0-9]{2})-([0-9]{2})( BC)?")
_TIMESTAMP = re.compile(
    r"(?P<day>[0-9]{4,7}-[0-9]{2}-[0-9]{2})"
    r"(?:[ T](?P<hour>[0-9]{2}):(?P<minute>[0-9]{2})(?::(?P<second>[0-9]{2})(?:\.(?P<fraction>[0-9]{1,6}))?)?)?"
    r"(?: ?(?P<offset>Z|[+-][0-9]{2}(?::?[0-9]{2}(?::[0-9]{2})?)?))?(?P<era> BC)?"
)
_BOOLEANS = {
    word: value
    for value, words in ((True, "t tr tru true y ye yes on 1"), (False, "f fa fal fals false n no of off 0"))
    for word in words.split()
}
_DAY_US = 86_400_000_000
# Enough digits for every result, so that nothing is rounded, and no traps, so that ∞ − ∞ is NaN and not an exception.
_EXACT = decimal.Context(prec=decimal.MAX_PREC, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN, traps=[])


class NotANumber:
    """NaN as PostgreSQL orders it: equal to itself and greater than every number. ``NAN`` is the only instance."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return other is self

    def __hash__(self) -> int:
        return 0

    def __lt__(self, other: object) -> bool:
        return False

    def __le__(self, other: object) -> bool:
        return other is self

    def __gt__(self, other: object) -> bool:
        return other is not self

    def __ge__(self, other: object) -> bool:
        return True

    def __repr__(self) -> str:
        return "NAN"


NAN = NotANumber()


@dataclass(frozen=True, slots=True)
class SqlType:
    """A type by its OID. ``parse`` parses a value's text; within a family, ``rank`` grows with the range."""

    oid: int
    name: str
    family: Family
    rank: int
    parse: Callable[[str], Value]


def _integer_parser(bits: int) -> Callable[[str], int]:
    limit = 1 << (bits - 1)

    def parse_integer(text: str) -> int:
        if not _INTEGER.fullmatch(text):
            raise ValueError("not an integer")
        value = int(text)
        if not -limit <= value < limit:
            raise ValueError("out of range")
        return value

    return parse_integer


def _non_finite(text: str) -> float | NotANumber:
    if text.lower() == "nan":
        return NAN
    if not (match := _INFINITY.fullmatch(text)):
        raise ValueError("not a number")
    return -math.inf if match[1] == "-" else math.inf


def parse_numeric(text: str) -> Decimal | NotANumber:
    """An exact number; the exponent is bounded, as it is in PostgreSQL."""
    if _NUMBER.fullmatch(text):
        value = Decimal(text)
        if value and not -16_384 < value.adjusted() < 131_072:
            raise ValueError("out of range")
        return value
    value_or_nan = _non_finite(text)
    return value_or_nan if isinstance(value_or_nan, NotANumber) else Decimal(value_or_nan)


def _parse_double(text: str) -> float | NotANumber:
    if not _NUMBER.fullmatch(text):
        return _non_finite(text)
    value = float(text)
    if math.isinf(value) or (value == 0 and Decimal(text) != 0):
        raise ValueError("out of range")
    return value


def _parse_real(text: str) -> float | NotANumber:
    value = _parse_double(text)
    if isinstance(value, NotANumber) or math.isinf(value):
        return value
    try:
        single = to_single(value)
    except OverflowError as error:
        raise ValueError("out of range") from error
    if single == 0 and value != 0:
        raise ValueError("out of range")
    return single


def to_single(value: float) -> float:
    """The single precision number nearest to ``value``; raises ``OverflowError`` if it is out of range."""
    single: float = struct.unpack("<f", struct.pack("<f", value))[0]
    return single


def is_single(value: Value) -> bool:
    """Whether an exact number is also a single precision number."""
    if isinstance(value, NotANumber) or value in (math.inf, -math.inf):
        return True
    try:
        return bool(to_single(float(Decimal(value))) == value)
    except OverflowError:
        return False


def to_double(value: Value) -> float | NotANumber:
    """An exact number in double precision. Out of range it is an infinity, where PostgreSQL raises an error."""
    return value if isinstance(value, NotANumber) else float(Decimal(value))


def _parse_text(text: str) -> str:
    return text


def _parse_character(text: str) -> str:
    return text.rstrip(" ")


def _parse_boolean(text: str) -> bool:
    if (value := _BOOLEANS.get(text.lower())) is None:
        raise ValueError("not a boolean")
    return value


def _parse_uuid(text: str) -> str:
    """The canonical text, which sorts as the bytes do."""
    value = text.lower()
    if value.startswith("{") and value.endswith("}"):
        value = value[1:-1]
    if not _UUID.fullmatch(value):
        raise ValueError("not a uuid")
    return value


def _days(text: str, *, before_christ: bool) -> int:
    """Days on the proleptic calendar. Years that ``datetime`` lacks are shifted by whole cycles of 400 years."""
    if not (match := _DATE.fullmatch(text)):
        raise ValueError("not a date")
    year = int(match[1])
    if year == 0:
        raise ValueError("there is no year 0")
    cycles, year_in_cycle = divmod(1 - year if before_christ else year, 400)
    return date(2000 + year_in_cycle, int(match[2]), int(match[3])).toordinal() + (cycles - 5) * 146_097


def _parse_date(text: str) -> int | float:
    """Microseconds at the start of the day, so that dates compare with timestamps."""
    if text.lower() in ("infinity", "-infinity"):
        return math.inf if text[0] != "-" else -math.inf
    return _days(text.removesuffix(" BC"), before_christ=text.endswith(" BC")) * _DAY_US


def _offset_us(text: str) -> int:
    if text == "Z":
        return 0
    digits = text[1:].replace(":", "").ljust(6, "0")
    hours, minutes, seconds = int(digits[:2]), int(digits[2:4]), int(digits[4:])
    if hours > 15 or minutes > 59 or seconds > 59:
        raise ValueError("no such offset")
    return (-1 if text[0] == "-" else 1) * (hours * 3600 + minutes * 60 + seconds) * 1_000_000


def _timestamp_parser(*, with_time_zone: bool) -> Callable[[str], int | float]:
    def parse_timestamp(text: str) -> int | float:
        if text.lower() in ("infinity", "-infinity"):
            return math.inf if text[0] != "-" else -math.inf
        if not (match := _TIMESTAMP.fullmatch(text)):
            raise ValueError("not a timestamp")
        if (match["offset"] is not None) != with_time_zone:
            raise ValueError("an offset such as +00 is required" if with_time_zone else "an offset is not allowed")
        hour, minute, second = int(match["hour"] or 0), int(match["minute"] or 0), int(match["second"] or 0)
        if hour > 23 or minute > 59 or second > 59:
            raise ValueError("no such time of day")
        value = _days(match["day"], before_christ=match["era"] is not None) * _DAY_US
        value += (hour * 3600 + minute * 60 + second) * 1_000_000 + int((match["fraction"] or "").ljust(6, "0"))
        return value - _offset_us(match["offset"]) if with_time_zone else value

    return parse_timestamp


INT4, INT8, NUMERIC, FLOAT4, FLOAT8, BOOLEAN, TEXT = 23, 20, 1700, 700, 701, 16, 25
INT2, VARCHAR, BPCHAR, UUID, DATE, TIMESTAMP, TIMESTAMPTZ = 21, 1043, 1042, 2950, 1082, 1114, 1184

TYPES = {
    sql_type.oid: sql_type
    for sql_type in (
        SqlType(INT2, "smallint", "exact", 0, _integer_parser(16)),
        SqlType(INT4, "integer", "exact", 1, _integer_parser(32)),
        SqlType(INT8, "bigint", "exact", 2, _integer_parser(64)),
        SqlType(NUMERIC, "numeric", "exact", 3, parse_numeric),
        SqlType(FLOAT4, "real", "float", 4, _parse_real),
        SqlType(FLOAT8, "double precision", "float", 5, _parse_double),
        SqlType(VARCHAR, "character varying", "text", 0, _parse_text),
        SqlType(TEXT, "text", "text", 1, _parse_text),
        SqlType(BPCHAR, "character", "character", 0, _parse_character),
        SqlType(BOOLEAN, "boolean", "boolean", 0, _parse_boolean),
        SqlType(UUID, "uuid", "uuid", 0, _parse_uuid),
        SqlType(DATE, "date", "datetime", 0, _parse_date),
        SqlType(TIMESTAMP, "timestamp", "datetime", 1, _timestamp_parser(with_time_zone=False)),
        SqlType(TIMESTAMPTZ, "timestamp with time zone", "instant", 0, _timestamp_parser(with_time_zone=True)),
    )
}


def common_type(left: SqlType, right: SqlType) -> SqlType | None:
    """The type in which two values are compared, or ``None`` if they cannot be compared.

    If it is a float and one side is exact, that side must be converted with ``to_double``; no other value needs it.
    ``character`` with ``text``, and dates or timestamps with ``timestamptz`` (which depends on the session's time zone)
    are among the pairs refused.

    >>> common_type(TYPES[INT4], TYPES[NUMERIC]).name
    'numeric'
    """
    if left.family == right.family:
        return max(left, right, key=lambda sql_type: sql_type.rank)
    return TYPES[FLOAT8] if {left.family, right.family} == {"exact", "float"} else None


def number_type(text: str) -> SqlType:
    """The type that PostgreSQL gives a number literal: the smallest that fits, starting with integer."""
    for oid in (INT4, INT8):
        try:
            TYPES[oid].parse(text)
        except ValueError:
            continue
        return TYPES[oid]
    parse_numeric(text)
    return TYPES[NUMERIC]


def exact_arithmetic(operator: str) -> Callable[[Value, Value], Value]:
    """``+``, ``-``, ``*`` or ``%`` over exact numbers, without rounding; ``%`` has the sign of the dividend."""
    of_decimals = {"+": _EXACT.add, "-": _EXACT.subtract, "*": _EXACT.multiply, "%": _EXACT.remainder}[operator]

    def calculate(left: Value, right: Value) -> Value:
        if left is NAN or right is NAN:
            return NAN
        result = of_decimals(left, right)
        return NAN if result.is_nan() else result

    return calculate


def negate(value: Value) -> Value:
    """``-value``; the unary minus would round a ``Decimal`` to the thread's context."""
    if value is NAN:
        return NAN
    return value.copy_negate() if isinstance(value, Decimal) else -value
