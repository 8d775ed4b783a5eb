"""Canonical forms of conditions: equal forms mean the same for every row, and common spellings have equal forms."""

from collections import defaultdict
from random import Random
from typing import Final

import pytest

from flushtracker.errors import ShapeError
from flushtracker.shapes.where import parse_where
from tests.support.where_table import NULLS, relation

RELATION: Final = relation()
_LITERALS: Final = {
    "i4": ["1", "2", "'1'", "'01'", "1.0", "NULL", "'2'::int"],
    "n": ["1", "1.50", "'1.5'", "1.5", "15e-1", "'NaN'", "-0.0", "0", "'5'::float8"],
    "i8": ["9007199254740993", "'9007199254740993'", "9007199254740992", "'1'::float8", "1.0"],
    "f4": ["'0.1'", "'0.1'::real", "'0.2'::float8", "0.5", "'0.1'::float8"],
    "f8": ["1", "'1'", "1.5", "'NaN'", "'0.1'::real"],
    "t": ["'a'", "'A'", "'a '", "'1'"],
    "c": ["'a'", "'a '"],
    "b": ["true", "'t'", "'yes'", "false", "NULL"],
    "d": ["'2026-01-01'", "date '2026-01-01'", "'2026-01-02'", "'2026-01-02'::timestamp"],
    "ts": ["'2026-01-01'", "date '2026-01-01'", "'2026-01-01 00:00'", "'2026-01-01 10:00'::timestamp"],
    "feel": ["'ok'", "'sad'"],
}
_VALUES: Final = {
    "i4": [None, "1", "2", "3"],
    "n": [None, "0", "1.5", "1", "NaN"],
    "i8": [None, "1", "9007199254740992", "9007199254740993"],
    "f4": [None, "0.1", "0.2", "0.5"],
    "f8": [None, "1", "1.5", "NaN", "0.1", "0.10000000149011612"],
    "t": [None, "a", "A", "1"],
    "c": [None, "a", "b"],
    "b": [None, "t", "f"],
    "d": [None, "2026-01-01", "2026-01-02"],
    "ts": [None, "2026-01-01 00:00:00", "2026-01-01 10:00:00"],
    "feel": [None, "ok", "sad"],
}


class _Conditions:
    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)  # noqa: S311  reproducible

    def condition(self, depth: int = 2) -> str:
        draw = self.rng.random()
        if depth and draw < 0.35:
            parts = [self.condition(depth - 1) for _ in range(2)]
            operator = self.rng.choice(["AND", "OR", "and"])
            return f"({parts[0]} {operator} {parts[1]})"
        if depth and draw < 0.5:
            return f"NOT ({self.condition(depth - 1)})"
        return self.atom()

    def atom(self) -> str:
        column = self.rng.choice(list(_LITERALS))
        one, other = (self.rng.choice(_LITERALS[column]) for _ in range(2))
        kinds = [
            f"{column} = {one}",
            f"{one} = {column}",
            f"{column} <> {one}",
            *[f"{column} IN ({one}, {other})", f"({column} = {other} OR {column} = {one})"] * 2,
            f"{column} IN ({other}, {one}, {one})",
            f"{column} IS NULL",
            f"({column} IS DISTINCT FROM {one})",
        ]
        if column in {"i4", "i8", "n", "f4", "f8", "d", "ts", "feel"}:
            kinds += [
                f"{column} < {one}",
                f"{one} > {column}",
                f"{column} BETWEEN {one} AND {other}",
                f"{column} >= {one}",
            ]
        if column == "b":
            kinds += [column, f"{column} IS TRUE"]
        return self.rng.choice(kinds)

    def row(self) -> dict[str, str | None]:
        return {**NULLS, **{name: self.rng.choice(values) for name, values in _VALUES.items()}}


@pytest.mark.parametrize("seed", range(3))
def test_conditions_of_one_form_agree_on_every_row(seed: int) -> None:
    """For thousands of random conditions, however each is spelled; the rows have NULLs and NaNs."""
    made = _Conditions(seed)
    groups: dict[object, dict[str, object]] = defaultdict(dict)
    for _ in range(3_000):
        text = made.condition(made.rng.choice([0, 0, 1, 2]))
        try:
            where = parse_where(text)
            groups[where.canonical(RELATION)][text] = where.bind(RELATION)
        except ShapeError:
            continue
    rows = [made.row() for _ in range(60)]
    several = {form: texts for form, texts in groups.items() if len(texts) > 1}
    for texts in several.values():
        outcomes = {text: [matches(row) for row in rows] for text, matches in texts.items()}  # type: ignore[operator]
        first = next(iter(outcomes))
        for text, found in outcomes.items():
            assert found == outcomes[first], f"{text!r} and {first!r}"
    assert len(several) > 50
    assert len(groups) > 500


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("i4 = 5", "'05' = i4"),
        ("i4 IN (1, 2)", "i4 = 2 OR (i4 = 1)"),
        ("NOT (i4 = 5)", "i4 != 5"),
        ("NOT NOT b", "b"),
        ("i4 > 5 AND t = 'x'", "t = 'x' and 5 < i4"),
        ("n = 1.50", "n = '1.5'"),
        ("i4 BETWEEN 1 AND 2", "i4 <= 2 AND i4 >= 1"),
        ("(i4 = 1)", "I4 = 1"),
        ("i4 = 1 OR (t = 'a' OR t = 'b')", "t IN ('b', 'a') OR i4 = 1"),
    ],
)
def test_common_spellings_have_one_form(one: str, other: str) -> None:
    """Those that a client's program and the operator's file are likely to differ in."""
    assert parse_where(one).canonical(RELATION) == parse_where(other).canonical(RELATION)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("i4 = 5", "i4 = 50"),
        ("t = '1'", "t = '01'"),
        ("i4 < 5", "i4 <= 5"),
        ("i4 = 1 AND b", "i4 = 1 OR b"),
        ("b", "NOT b"),
        ("f4 IN ('0.1', '0.2'::float8)", "f4 = '0.1' OR f4 = '0.2'::float8"),
        ("i8 IN (9007199254740993, '1'::float8)", "i8 = 9007199254740993 OR i8 = '1'::float8"),
        ("d IN ('2026-01-01 10:00', '2026-01-02'::timestamp)", "d = '2026-01-01 10:00' OR d = '2026-01-02'::timestamp"),
    ],
)
def test_other_conditions_have_other_forms(one: str, other: str) -> None:
    """With the types of a table, and without."""
    for known in (RELATION, None):
        assert parse_where(one).canonical(known) != parse_where(other).canonical(known)
