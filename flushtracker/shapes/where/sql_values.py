"""The PostgreSQL values that a ``where`` can compare, parsed from the text that the server sends.

Every type maps its text to Python values that compare as in PostgreSQL: ``character(n)`` ignores trailing blanks,
and numbers, times and arrays have modules of their own.
Parsers raise ``ValueError``; the caller, which knows the table and the column, adds them to the error.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Literal, TypeAlias

from flushtracker.shapes.where.array_values import array_parser
from flushtracker.shapes.where.number_values import (
    exact_to_double,
    exact_to_single,
    integer_parser,
    parse_double,
    parse_numeric,
    parse_real,
    parse_short_numeric,
)
from flushtracker.shapes.where.time_values import parse_date, parse_interval, parse_time, timestamp_parser

# The Python type depends on the SQL type; `common_type` ensures that only values of one family are compared.
Value: TypeAlias = Any
Family: TypeAlias = Literal[
    "exact", "float", "text", "character", "boolean", "uuid", "datetime", "instant", "time", "interval", "enum", "array"
]
TEXTS: tuple[Family, ...] = ("text", "character")

BLANKS = " \t\n\v\f\r"
"""The blanks that PostgreSQL ignores around most values. Python also treats others as blanks, such as U+00A0."""
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_BOOLEANS = {
    word: value
    for value, words in ((True, "t tr tru true y ye yes on 1"), (False, "f fa fal fals false n no of off 0"))
    for word in words.split()
}


@dataclass(frozen=True, slots=True)
class SqlType:
    """A type by its OID. ``parse`` parses a value's text; within a family, ``rank`` grows with the range.

    Only arrays of the same ``item`` can be compared, and only values of the same enum, which are indexes into its
    ``labels``.
    """

    oid: int
    name: str
    family: Family
    rank: int
    parse: Callable[[str], Value]
    item: "SqlType | None" = None
    labels: tuple[str, ...] = ()

    @property
    def comparable_with(self) -> tuple[Family, int]:
        """Equal for two types whose values can be compared directly."""
        if self.family == "enum":
            return "enum", self.oid
        return self.family, 0 if self.item is None else self.item.oid


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


INT4, INT8, NUMERIC, FLOAT4, FLOAT8, BOOLEAN, TEXT = 23, 20, 1700, 700, 701, 16, 25
INT2, VARCHAR, BPCHAR, UUID, DATE, TIMESTAMP, TIMESTAMPTZ = 21, 1043, 1042, 2950, 1082, 1114, 1184
TIME, INTERVAL = 1083, 1186

TYPES = {
    sql_type.oid: sql_type
    for sql_type in (
        SqlType(INT2, "smallint", "exact", 0, integer_parser(16)),
        SqlType(INT4, "integer", "exact", 1, integer_parser(32)),
        SqlType(INT8, "bigint", "exact", 2, integer_parser(64)),
        SqlType(NUMERIC, "numeric", "exact", 3, parse_numeric),
        SqlType(FLOAT4, "real", "float", 4, parse_real),
        SqlType(FLOAT8, "double precision", "float", 5, parse_double),
        SqlType(VARCHAR, "character varying", "text", 0, _parse_text),
        SqlType(TEXT, "text", "text", 1, _parse_text),
        SqlType(BPCHAR, "character", "character", 0, _parse_character),
        SqlType(BOOLEAN, "boolean", "boolean", 0, _parse_boolean),
        SqlType(UUID, "uuid", "uuid", 0, _parse_uuid),
        SqlType(DATE, "date", "datetime", 0, parse_date),
        SqlType(TIMESTAMP, "timestamp", "datetime", 1, timestamp_parser(with_time_zone=False)),
        SqlType(TIMESTAMPTZ, "timestamp with time zone", "instant", 0, timestamp_parser(with_time_zone=True)),
        SqlType(TIME, "time", "time", 0, parse_time),
        SqlType(INTERVAL, "interval", "interval", 0, parse_interval),
    )
}
ARRAYS = {1005: INT2, 1007: INT4, 1016: INT8, 1009: TEXT, 1015: VARCHAR, 2951: UUID}


def array_type(oid: int, item: SqlType) -> SqlType:
    return SqlType(oid, f"{item.name}[]", "array", 0, array_parser(item.parse), item)


TYPES |= {oid: array_type(oid, TYPES[item]) for oid, item in ARRAYS.items()}


def common_type(left: SqlType, right: SqlType) -> SqlType | None:
    """The type in which two values are compared, or ``None`` if they cannot be compared.

    If it is a float and one side is exact, that side must be :func:`converted`; no other value needs it.
    ``character`` with ``text``, and dates or timestamps with ``timestamptz`` (which depends on the session's time zone)
    are among the pairs refused.

    >>> common_type(TYPES[INT4], TYPES[NUMERIC]).name
    'numeric'
    """
    if left.comparable_with == right.comparable_with:
        return max(left, right, key=lambda sql_type: sql_type.rank)
    return TYPES[FLOAT8] if {left.family, right.family} == {"exact", "float"} else None


@dataclass(frozen=True, slots=True)
class ListTypes:
    """The types of an IN list: the items are converted to ``of_items``, and then everything to ``compared``."""

    of_items: SqlType
    compared: SqlType


def list_types(operand: SqlType | None, items: Sequence[SqlType | None]) -> ListTypes:
    """The types of an IN list as PostgreSQL chooses them; ``None`` is a literal without a type of its own.

    The operand takes part in the choice of the items' type: ``real IN (1.0, '0.1')`` compares reals, although
    ``real = 1.0`` compares doubles. A list of one item is the same as ``=``. All types must be comparable.

    >>> list_types(TYPES[FLOAT4], [TYPES[NUMERIC], None]).compared.name
    'real'
    """
    known = [sql_type for sql_type in (operand, *items) if sql_type is not None] or [TYPES[TEXT]]
    widest = max(known, key=lambda sql_type: sql_type.rank)
    compared = common_type(operand or widest, widest) or widest
    if len(items) == 1:
        compared = reduce(lambda left, right: common_type(left, right) or left, known)
        return ListTypes(compared, compared)
    return ListTypes(widest, compared)


def converted(value: Value, source: SqlType, target: SqlType) -> Value:
    """A value of ``source`` as ``target`` compares it; raises ``OverflowError`` if a number is out of range."""
    if value is None or (source.family, target.family) != ("exact", "float"):
        return value
    return exact_to_single(value) if target.oid == FLOAT4 else exact_to_double(value)


def number_type(text: str) -> SqlType:
    """The type that PostgreSQL gives a number literal: the smallest that fits, starting with integer."""
    for oid in (INT4, INT8):
        try:
            TYPES[oid].parse(text)
        except ValueError:
            continue
        return TYPES[oid]
    parse_short_numeric(text)
    return TYPES[NUMERIC]
