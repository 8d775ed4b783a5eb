"""What TanStack DB writes (``sql-compiler.ts`` of electric-db-collection 0.4.10): it is read, or refused by name."""

from typing import Final

import pytest

from flushtracker.errors import DecodeError, ShapeError
from flushtracker.serve.condition_text import condition_of, parsed_condition
from flushtracker.serve.refusals import BadRequestError
from flushtracker.wal.changes import Column, Relation, Row

_TYPES: Final = {"id": 23, "name": 25, "price": 1700, "paid": 16, "day": 1082, "at": 1114, "tz": 1184}
_RELATION: Final = Relation(1, "public", "t", "full", tuple(Column(name, oid) for name, oid in _TYPES.items()))
_ROW: Final[Row] = {
    "id": "7",
    "name": "Ada Lovelace",
    "price": "19.90",
    "paid": "t",
    "day": "2024-02-29",
    "at": "2024-02-29 12:00:00",
    "tz": "2024-02-29 12:00:00+00",
}
_NULLS: Final[Row] = {**dict.fromkeys(_TYPES), "id": "8"}


def _outcomes(where: str, *params: str) -> tuple[bool | None, bool | None]:
    """For a row of values, and for one of NULLs."""
    numbered = tuple(enumerate(params, 1))
    condition = parsed_condition(condition_of(where, numbered))
    assert condition is not None
    matches = condition.bind(_RELATION)
    return matches(_ROW), matches(_NULLS)


@pytest.mark.parametrize(
    ("where", "params", "expected"),
    [
        ("true = true", (), (True, True)),
        ("false", (), (False, False)),
        ('"id" = $1', ("7",), (True, False)),
        ('"name" = $1', ("Ada Lovelace",), (True, None)),
        ('"price" >= $1 AND "price" < $2', ("19.9", "1e+21"), (True, None)),
        ('("id" = $1 OR "id" = $2) AND NOT ("paid" = $3)', ("7", "8", "false"), (True, None)),
        ('"paid" = $1', ("true",), (True, None)),
        ('"paid"', (), (True, None)),
        ('"id" = ANY($1)', ("{7,9}",), (True, False)),
        ('"name" = ANY($1)', ('{"Ada Lovelace",NULL}',), (True, None)),
        ('"name" IS NULL', (), (False, True)),
        ('"name" IS NOT NULL', (), (True, False)),
        ('"name" LIKE $1', ("Ada%",), (True, None)),
        ('"name" ILIKE $1', ("%LOVE%",), (True, None)),
        ('LOWER("name") = $1', ("ada lovelace",), (True, None)),
        ('UPPER("name") LIKE $1', ("ADA%",), (True, None)),
        ('LOWER("name") ILIKE $1', ("%LoVe%",), (True, None)),
        ('UPPER("name") ILIKE $1', ("ada _OVE%",), (True, None)),
        ('NOT (LOWER("name") ILIKE $1)', ("x%",), (True, None)),
        ('"at" = $1', ("2024-02-29T12:00:00.000Z",), (True, None)),
        ('"tz" >= $1', ("2024-02-29T12:00:00.000Z",), (True, None)),
        ('"day" = $1', ("2024-02-29T23:00:00.000Z",), (True, None)),
    ],
)
def test_what_the_compiler_writes_has_its_outcome(
    where: str, params: tuple[str, ...], expected: tuple[bool | None, bool | None]
) -> None:
    assert _outcomes(where, *params) == expected


@pytest.mark.parametrize(
    ("where", "params", "problem"),
    [
        ('"name" > $1', ("Ada",), "the order of text depends on the collation"),
        ('LENGTH("name") > $1', ("3",), "LENGTH(...)"),
        ('CONCAT("name",$1) = $2', ("a", "b"), "CONCAT(...)"),
        ('COALESCE("name",$1) = $2', ("a", "b"), "COALESCE(...)"),
        ('+("id",$1) = $2', ("1", "2"), "not supported"),
        ('LOWER("name") ILIKE $1', ("é%",), "ILIKE with a non-ASCII letter"),
        ('LOWER("name") = UPPER("name")', (), "lower(...)"),
        ('LOWER("name") = $1', ("é",), "lower(...)"),
        ('"name" = ANY($1)', ('{"a\\\\b"}',), "a backslash"),
        ('"name" = $1', (), "lacks the value of $1"),
    ],
)
def test_what_the_compiler_writes_is_refused_by_name(where: str, params: tuple[str, ...], problem: str) -> None:
    with pytest.raises((BadRequestError, ShapeError)) as raised:
        _outcomes(where, *params)
    error = raised.value
    assert problem in (error.message if isinstance(error, BadRequestError) else str(error))


@pytest.mark.parametrize(
    ("where", "name"),
    [
        ("LOWER(name) ILIKE 'i'", "\u0130"),
        ("UPPER(name) ILIKE '%ss%'", "stra\u00dfe"),
        ("UPPER(name) ILIKE 'i'", "\u0131"),
        ("LOWER(name) ILIKE 'k'", "\u212a"),
    ],
)
def test_a_letter_that_collations_map_otherwise_gives_no_outcome(where: str, name: str) -> None:
    """A row is shown only if every collation shows it."""
    condition = parsed_condition(where)
    assert condition is not None
    with pytest.raises(DecodeError, match="depends on the database's collation"):
        condition.bind(_RELATION)({**_ROW, "name": name})
