"""The ranges that a condition requires of a row: never narrower than the condition, or an index would lose rows."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from random import Random

import pytest
from hypothesis import given

from flushtracker.errors import ShapeError
from flushtracker.shapes.where import Where, chains, parse_where
from flushtracker.shapes.where.chains import read_chain
from flushtracker.shapes.where.required_ranges import range_parser
from flushtracker.shapes.where.sql_values import TYPES
from flushtracker.shapes.where.syntax import read_condition
from flushtracker.shapes.where.value_range import HIGHEST, LOWEST, ValueRange, prefix_range
from tests.support.random_ranges import TEXTS, VALUES, random_condition, random_row
from tests.support.random_wal import RANDOMS
from tests.support.where_table import COLUMNS, NULLS, UUID, relation

TABLE = relation()


@given(RANDOMS)
def test_a_row_that_matches_lies_in_the_required_ranges(rng: Random) -> None:
    """For every type, with NULL, NaN, infinities and values that are compared in another type. NULL lies in none."""
    for _ in range(20):
        try:
            where = parse_where(random_condition(rng))
            matches = where.bind(TABLE)
        except ShapeError:
            continue
        required = where.required_ranges(TABLE)
        for row in (random_row(rng) for _ in range(10)):
            if matches(row):
                for name, values in required.items():
                    text = row[name]
                    assert text is not None, (where.text, name)
                    value = range_parser(TABLE, name)(text)
                    assert values.low <= value, (where.text, name, text)
                    assert values.high >= value, (where.text, name, text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("i8 BETWEEN 1 AND 9", {"i8": (1, 9)}),
        ("i4 >= 1 AND i4 < 9", {"i4": (1, 9)}),
        ("1 <= i2 AND '9' > i2", {"i2": (1, 9)}),
        ("n > 1.5", {"n": (1.5, HIGHEST)}),
        ("i4 < 1.5", {"i4": (LOWEST, 1.5)}),
        ("f4 <= 0.1", {"f4": (LOWEST, 0.1)}),
        ("f4 <= '0.1'", {"f4": (LOWEST, 0.10000000149011612)}),
        ("d >= '2026-01-01'", {"d": (parsed_day := TYPES[1082].parse("2026-01-01"), HIGHEST)}),
        ("ts >= '2026-01-01'", {"ts": (parsed_day, HIGHEST)}),
        ("d >= '2026-01-01'::timestamp", {"d": (parsed_day, HIGHEST)}),
        (f"u >= '{UUID}'", {"u": (UUID, HIGHEST)}),
        ("tm < '09:30'", {"tm": (LOWEST, 34_200_000_000)}),
        ("iv >= '1 mon'", {"iv": (30 * 86_400_000_000, HIGHEST)}),
        ("t LIKE 'ab%'", {"t": ("ab", "ac")}),
        # The escape that the condition names decides what is literal, and none is without a meaning of its own.
        ("t LIKE 'a!%b%' ESCAPE '!'", {"t": ("a%b", "a%c")}),
        (r"t LIKE 'a\%' ESCAPE '!'", {"t": ("a\\", "a]")}),
        (r"t LIKE 'a\%' ESCAPE ''", {"t": ("a\\", "a]")}),
        ("t LIKE 'a%%b' ESCAPE '%'", {"t": ("a%b", "a%c")}),
        ("t LIKE 'aab' ESCAPE 'a'", {"t": ("ab", "ac")}),
        (r"v LIKE 'a\_b_c%'", {"v": ("a_b", "a_c")}),
        ("c LIKE 'ab'", {"c": ("ab", "ac")}),
        ("t LIKE 'a%' AND t LIKE 'ab%'", {"t": ("ab", "ac")}),
        ("i4 > 1 AND t = 'a' AND n < 2", {"i4": (1, HIGHEST), "n": (LOWEST, 2)}),
        ("i4 BETWEEN 1 AND 2 OR i4 BETWEEN 8 AND 9", {"i4": (1, 9)}),
        ("(i4 > 1 AND n > 2) OR i4 > 3", {"i4": (1, HIGHEST)}),
        ("i4 BETWEEN 9 AND 1", {"i4": (9, 1)}),
        # Nothing to look up.
        ("i4 < 1 OR i4 > 9", {}),
        ("i4 > 1 OR n > 1", {}),
        ("i4 > NULL", {}),
        ("i4 > 1 OR t = 'a'", {}),
        ("NOT i4 > 1", {}),
        ("i4 NOT BETWEEN 1 AND 2", {}),
        ("i4 + 1 > 2", {}),
        ("i4 > i2", {}),
        ("1 < 2", {}),
        ("t LIKE '%a'", {}),
        ("t LIKE '_a%'", {}),
        ("t LIKE NULL", {}),
        ("t NOT LIKE 'a%'", {}),
        # Case is ignored, so no prefix is required.
        ("t ILIKE 'a%'", {}),
        ("t ILIKE 'a!%' ESCAPE '!'", {}),
        ("lower(t) LIKE 'a%'", {}),
        ("t || 'b' LIKE 'a%'", {}),
        ("i4 / 2 > 1", {}),
        # The column is rounded to double for the comparison, so a value just outside may match.
        ("i8 <= 9007199254740992::float8", {}),
        ("n > 0.1::float4", {}),
    ],
)
def test_comparisons_with_constants_require_a_range(text: str, expected: dict[str, tuple[object, object]]) -> None:
    """AND requires the intersection, OR the smallest range around all parts; everything else requires nothing."""
    required = parse_where(text).required_ranges(TABLE)
    assert {name: (values.low, values.high) for name, values in required.items()} == expected


def test_an_index_misses_no_row_because_a_double_is_rounded() -> None:
    """PostgreSQL compares bigint with double in double: 2⁵³ + 1 is not greater than 2⁵³."""
    where = parse_where("i8 <= 9007199254740992::float8")
    assert where.bind(TABLE)({**NULLS, "i8": "9007199254740993"}) is True


@pytest.mark.parametrize("name", ["t", "v", "c"])
def test_text_has_no_order_to_index(name: str) -> None:
    """It would be the collation's. Conditions on it are refused; the index must not be the one place that orders it."""
    where = parse_where(f"{name} > 'a'")
    with pytest.raises(ShapeError, match="collation"):
        where.bind(TABLE)
    assert where.required_ranges(TABLE) == {}


@pytest.mark.parametrize(
    "text",
    [
        *("i4 > 'x'", "i4 BETWEEN 1 AND '99999999999'", "d < '2026-02-30'", "u >= 'x'", "tm < '9 am'"),
        *("iv > 'x'", "f4 > '1e39'"),
    ],
)
def test_a_literal_that_binding_refuses_has_no_range(text: str) -> None:
    """As for required values: that a form can be bound says nothing about the literals of the next condition."""
    where = parse_where(text)
    with pytest.raises(ShapeError):
        where.bind(TABLE)
    with pytest.raises(ValueError, match=r"not a|out of range"):
        where.required_ranges(TABLE)


LINKS = ["{c} = {l}", "{c} < {l}", "{c} >= {l}", "{c} BETWEEN {l} AND {m}", "{c} LIKE '{p}'", "{c} LIKE '{p}%'"]
UNREADABLE = ["'it''s'", "-1", "1.5", "E'a'", "1 ", "' AND i4 = 1", "NULL", "0x1", "1234567890123456789", "'a' 'b'"]


def random_link(rng: Random) -> tuple[str, str, Sequence[str]]:
    """A link of a chain, a column, and literals of one kind for it, so that all are of one form."""
    column = rng.choice(list(VALUES))
    numbers, strings = ["0", "7", "16777217", "99999999999"], [f"'{text}'" for text in (*VALUES[column], "x")]
    return rng.choice(LINKS), column, rng.choice([numbers, strings])


def filled(rng: Random, links: Iterable[tuple[str, str, Sequence[str]]], more: Sequence[str] = ()) -> str:
    return " AND ".join(
        link.format(c=column, l=rng.choice([*texts, *more]), m=rng.choice(texts), p=rng.choice([*TEXTS, "\\", "a b"]))
        for link, column, texts in links
    )


@given(RANDOMS)
def test_a_chain_of_ranges_is_read_as_the_parser_reads_it(rng: Random) -> None:
    """The fast path reads most of a million conditions; what it is not sure about, it leaves to the parser."""
    text = filled(rng, [random_link(rng) for _ in range(rng.randint(1, 3))], rng.choice([(), UNREADABLE]))
    text = rng.choice([text, text, text + " AND ", text + "\n", text.replace(" AND ", " and ")])
    read = read_chain(text)
    if read is not None:
        assert read[:2] == read_condition(text)


@pytest.mark.parametrize(
    "text",
    ["i8 BETWEEN 10 AND 19", "t = 'a AND b' AND i4 < 5 AND i4 >= '3'", "t LIKE 'a b%' AND d BETWEEN 'x' AND 'y'"],
)
def test_common_ranges_are_read_without_the_parser(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the form is known: parsing a million of them would take minutes."""
    expected = read_condition(text)
    assert read_chain(text) is not None
    monkeypatch.setattr(chains, "read_condition", None)
    assert (read_chain(text) or ())[:2] == expected


@given(RANDOMS)
def test_conditions_of_one_form_can_all_be_bound_unless_a_literal_has_no_value(rng: Random) -> None:
    """So of a million shapes one is bound when the table becomes known; for the others, only literals are read."""
    links = [random_link(rng) for _ in range(rng.randint(1, 3))]
    wheres = []
    for _ in range(10):
        with suppress(ShapeError):
            wheres.append(parse_where(filled(rng, links)))
    bound = {where.form for where in wheres if can_be_bound(where)} - {None}
    for where in wheres:
        if where.form in bound:
            try:
                where.required_values(TABLE)
                where.required_ranges(TABLE)
            except ValueError:
                assert not can_be_bound(where), where.text
            else:
                assert can_be_bound(where), where.text


def can_be_bound(where: Where) -> bool:
    try:
        where.bind(TABLE)
    except ShapeError:
        return False
    return True


@pytest.mark.parametrize("prefix", [text for text in TEXTS if text])
def test_the_range_of_a_prefix_contains_every_text_that_starts_with_it(prefix: str) -> None:
    """Even at the end of Unicode, where a character has no successor; and few others."""
    values = prefix_range(prefix)
    for text in [*TEXTS, *(prefix + text for text in TEXTS), prefix + 3 * "\U0010ffff"]:
        if text.startswith(prefix):
            assert values.low <= text
            assert values.high >= text
    assert not values.low <= prefix[:-1]


ENDS = [LOWEST, HIGHEST, 0, -0.0, 1.5, 2, float("inf"), TYPES[1700].parse("NaN")]


@pytest.mark.parametrize("a", [end for end in ENDS if end is not HIGHEST])
@pytest.mark.parametrize("b", [end for end in ENDS if end is not LOWEST])
def test_ranges_combine_into_what_contains_the_same_values(a: object, b: object) -> None:
    """Intersection and hull, also with open ends and NaN, which is the greatest value."""
    values = [TYPES[1700].parse(text) for text in ("-Infinity", "-1", "0", "1.5", "2", "3", "Infinity", "NaN")]
    for left, right in [(ValueRange(a), ValueRange(high=b)), (ValueRange(a), ValueRange(b)), (ValueRange(a, b),) * 2]:
        for value in values:
            in_left, in_right = (each.low <= value and each.high >= value for each in (left, right))
            both, either = left & right, left | right
            assert (both.low <= value and both.high >= value) == (in_left and in_right)
            assert (either.low <= value and either.high >= value) or not (in_left or in_right)


LITERALS = {
    **dict.fromkeys(["b", "b2", "b3"], "'f'"),
    "u": f"'{UUID}'",
    "d": "'2026-01-01'",
    "ts": "'2026-01-01'",
    "tz": "'2026-01-01 00:00:00Z'",
    "tm": "'09:30'",
    "iv": "'1 day'",
    **dict.fromkeys(["i4s", "i8s", "ts_", "t", "v", "c"], "'{1}'"),
}


@pytest.mark.parametrize("name", [name for name, oid in COLUMNS.items() if oid in TYPES])
def test_every_type_is_ordered_or_refused(name: str) -> None:
    """A type that can be ordered has ranges, or its literals would not be checked; text and arrays have no order."""
    where = parse_where(f'"{name}" > {LITERALS.get(name, "1")}')
    if TYPES[COLUMNS[name]].family in ("text", "character", "array"):
        with pytest.raises(ShapeError):
            where.bind(TABLE)
        assert where.required_ranges(TABLE) == {}
    else:
        where.bind(TABLE)
        assert where.required_ranges(TABLE).keys() == {name}
