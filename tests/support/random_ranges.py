"""Random conditions with ranges and prefixes over the columns of :mod:`~tests.support.where_table`, and random rows.

Columns and literals draw from the same few values, so that a row often lies on the end of a range.
"""

from collections.abc import Mapping, Sequence
from random import Random

from flushtracker.wal.changes import Row
from tests.support.where_table import NULLS, UUID

TEXTS = ["", "a", "a ", "ab", "abc", "ac", "b", "A", "é", "1", "%", "a_", "a\U0010ffff", "\U0010ffff", "\U0010ffffz"]
FLOATS = ["NaN", "Infinity", "-Infinity", "-0", "0", "0.1", "0.5", "1", "1e0", "-2.5", "16777216", "1e30"]
VALUES: Mapping[str, Sequence[str]] = {
    "i2": ["-32768", "-1", "0", "1", "01", "2", "32767"],
    "i4": ["-2147483648", "-1", "0", "1", "2", "3", "16777217"],
    "i8": ["-1", "0", "1", "2", "3000000000", "9007199254740993", "9223372036854775807"],
    "n": ["NaN", "Infinity", "-Infinity", "-0", "0.1", "1", "1.0", "1.50", "2", "9007199254740993", "1e200", "-1e-200"],
    "f4": FLOATS,
    "f8": [*FLOATS, "9007199254740992", "9007199254740994", "1e300"],
    "b": ["t", "f"],
    "t": TEXTS,
    "v": TEXTS,
    "c": ["a", "a  ", "ab", "A", "", "b "],
    "u": [UUID, UUID.upper(), UUID.replace("a", "b"), UUID.replace("a", "0")],
    "d": ["2026-01-01", "2026-01-02", "infinity", "-infinity", "0044-03-15 BC", "12026-01-01"],
    "ts": ["2026-01-01 00:00:00", "2026-01-01 00:00:00.000001", "2026-01-02", "infinity", "-infinity"],
    "tz": ["2026-01-01 00:00:00+00", "2026-01-01 02:00:00+02", "2026-01-01 00:00:00.5+00", "0001-01-01 00:00:00+00 BC"],
    "tm": ["00:00:00", "09:30:00", "09:30", "09:30:00.000001", "24:00:00"],
    "feel": ["sad", "ok", "happy"],
    "iv": ["1 mon", "30 days", "29 days 24:00:00", "-1 days", "-00:00:01", "00:00:00", "infinity", "-infinity"],
}
"""For each column, texts of its values; some are different texts of one value."""

NUMBERS = [
    *("1", "2", "-1", "1.5", "0.1", "16777217", "9007199254740993", "9007199254740992::float8", "0.1::float4"),
    *("1e200", "'NaN'"),
]
PATTERNS = [
    *("a%", "a %", "a  ", "ab%", "%", "%b", "a_%", "ab", r"a\%%", r"\a%", "\U0010ffff%", "a\U0010ffff%", "é%"),
    "a%b%",
]
COMPARISONS = ["{c} {o} {l}", "{c} {o} {l}", "{l} {o} {c}", "{c} BETWEEN {l} AND {m}", "{c} BETWEEN {l} AND {m}"]
OTHERS = [
    *("{c} = {l}", "{c} IN ({l}, {m})", "{c} <> {l}", "{c} NOT BETWEEN {l} AND {m}", "{c} IS NULL"),
    *("({c} {o} {l}) IS NOT TRUE", "NOT {c} {o} {l}"),
]
LIKES = [
    *("{c} LIKE {p}", "{c} LIKE {p}", "{c} LIKE {p}", "{c} LIKE {p} ESCAPE {e}", "{c} NOT LIKE {p}"),
    *("{c} ILIKE 'a%'", "lower({c}) LIKE 'a%'", "{c} || 'b' LIKE 'ab%'", "{c} = {l}"),
]


def random_condition(rng: Random, columns: Sequence[str] = tuple(VALUES)) -> str:
    """AND or OR of up to four tests of ``columns``; a few cannot be bound."""
    atoms = [_random_test(rng, rng.choice(columns)) for _ in range(rng.choice([1, 1, 2, 2, 3, 4]))]
    if len(atoms) > 2 and rng.random() < 0.5:
        atoms[:2] = [f"({atoms[0]} {rng.choice(['AND', 'OR'])} {atoms[1]})"]
    return f" {rng.choice(['AND', 'AND', 'OR'])} ".join(atoms)


def _random_test(rng: Random, column: str) -> str:
    kinds = LIKES if column in "tvc" else [*COMPARISONS, *OTHERS]
    return rng.choice(kinds).format(
        c=column,
        o=rng.choice(["<", "<=", ">", ">="]),
        l=_random_literal(rng, column),
        m=_random_literal(rng, column),
        p="'" + rng.choice(PATTERNS) + "'",
        e=rng.choice(["'!'", "'a'", "'%'", "'_'", "''"]),
    )


def _random_literal(rng: Random, column: str) -> str:
    if rng.random() < 0.02:
        return "NULL"
    if column in {"i2", "i4", "i8", "n", "f4", "f8"} and rng.random() < 0.5:
        return rng.choice(NUMBERS)
    return f"'{rng.choice(VALUES[column])}'"


def random_row(rng: Random, *, nulls: float = 0.1) -> Row:
    """A row with a value in every column that conditions read; ``nulls`` is the share of NULLs."""
    values = {name: None if rng.random() < nulls else rng.choice(texts) for name, texts in VALUES.items()}
    return {**NULLS, **values}
