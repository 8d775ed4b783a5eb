"""What a condition requires of a row: never more than the condition itself, or an index would lose rows."""

from collections.abc import Mapping

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flushtracker.errors import ShapeError
from flushtracker.shapes.where import parse_where
from flushtracker.shapes.where.chains import read_chain
from flushtracker.shapes.where.required_values import value_parser
from flushtracker.shapes.where.syntax import read_condition
from tests.support.where_table import NULLS, UUID, relation

TEXTS: Mapping[str, list[str]] = {
    "i2": ["1", "01", "2", "0"],
    "i4": ["1", "01", "2", "-1"],
    "i8": ["1", "3000000000", "2"],
    "n": ["1", "1.0", "1.50", "1e0", "0.1", "NaN", "Infinity", "0", "-0", "2"],
    "f4": ["1", "1.0", "0.1", "0.5", "NaN", "-0", "0", "Infinity", "16777216"],
    "f8": ["1", "1e0", "0.1", "0.5", "NaN", "-0", "0", "-Infinity", "9007199254740992"],
    "b": ["t", "f", "true", "off"],
    "t": ["a", "A", "a ", "", "1", "é", "é"],
    "v": ["a", "A", "a ", "", "1"],
    "c": ["a", "a  ", "A", "", "1"],
    "u": [UUID, UUID.upper(), UUID.replace("a", "b")],
    "d": ["2026-01-01", "2026-01-02", "infinity"],
    "ts": ["2026-01-01 00:00:00", "2026-01-01 00:00:00.0", "2026-01-01", "infinity"],
    "tz": ["2026-01-01 00:00:00+00", "2026-01-01 02:00:00+02", "2026-01-01 00:00:00.5+00"],
}
"""For each column of the table, texts of its values; some are different texts of one value."""

NUMBERS = ["1", "2", "1.0", "1.5", "0.5", "16777217", "9007199254740993", "1::float8", "0.5::float4", "NULL::int"]


def literals(column: str) -> list[str]:
    numbers = NUMBERS if column in {"i2", "i4", "i8", "n", "f4", "f8"} else []
    return [f"'{text}'" for text in TEXTS[column]] + numbers + ["NULL"]


@st.composite
def comparisons(draw: st.DrawFn) -> str:
    """A comparison of a column with literals, in forms that the index can use and forms that it cannot."""
    column = draw(st.sampled_from(sorted(TEXTS)))
    literal = st.sampled_from(literals(column))
    kind = draw(
        st.sampled_from(["{c} = {l}", "{l} = {c}", "{c} IN ({l}, {l2})", "{c} <> {l}", "{c} = {c}", "{c} IS NULL"])
    )
    return kind.format(c=column, l=draw(literal), l2=draw(literal))


CONDITIONS = st.recursive(
    comparisons(),
    lambda inner: (
        st.builds("({}) {} ({})".format, inner, st.sampled_from(["AND", "AND", "OR"]), inner)
        | st.builds("NOT ({})".format, inner)
        | st.builds("({}) IS TRUE".format, inner)
    ),
    max_leaves=5,
)
ROWS = st.fixed_dictionaries({name: st.none() | st.sampled_from(texts) for name, texts in TEXTS.items()})


@given(CONDITIONS, ROWS)
def test_a_row_that_matches_has_the_required_values(text: str, row: dict[str, str | None]) -> None:
    """They are compared as the index compares them. NULL is never among them."""
    where = parse_where(text)
    try:
        matches = where.bind(relation())
    except ShapeError:
        return
    required = where.required_values(relation())
    if matches({**NULLS, **row}):
        for name, values in required.items():
            found = row[name]
            assert found is not None
            assert value_parser(relation(), name)(found) in values


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("i4 = 1", {"i4": {1}}),
        ("'01' = i4", {"i4": {1}}),
        ("i4 = 1 AND t = 'a' AND f8 > 0", {"i4": {1}, "t": {"a"}}),
        ("i4 IN (1, 2, NULL) AND i4 IN (2, 3)", {"i4": {2}}),
        ("i4 = 1 OR i4 = 2", {"i4": {1, 2}}),
        ("(i4 = 1 AND t = 'a') OR (i4 = 2 AND v = 'a')", {"i4": {1, 2}}),
        ("i4 = 1 OR t = 'a'", {}),
        ("i4 = 1 AND i4 = 2", {"i4": set()}),
        ("t = NULL", {"t": set()}),
        ("f4 IN (1, NULL::int)", {"f4": {1.0}}),
        ("c = 'a  '", {"c": {"a"}}),
        ("f4 IN (1.0, '0.1')", {"f4": {1.0, 0.10000000149011612}}),
        ("n IN (0.5::real, 1)", {}),
        ("i4 IN (1, 2.5)", {"i4": {1, 2.5}}),
        ("iv = '30 days'", {"iv": {30 * 86_400_000_000}}),
        ("lower(t) = 'a'", {}),
        ("i4 = ANY(i4s)", {}),
        ("i4 = ANY('{1,NULL,1}')", {"i4": {1}}),
        ("i8 = ANY(ARRAY[1, 2])", {"i8": {1, 2}}),
        ("i4 = ANY(NULL)", {"i4": set()}),
        ("f8 = ANY(ARRAY[1]::smallint[])", {}),
        ("i4 <> ALL('{1}')", {}),
        ("feel = 'happy'::mood", {"feel": {2}}),
        ("feel = ANY('{sad,ok}'::mood[])", {"feel": {0, 1}}),
        ("feel::text = 'ok'", {}),
        ("mail IN ('a', 'b')", {"mail": {"a", "b"}}),
        ("f4 = '0.1'", {"f4": {0.10000000149011612}}),
        ("b = 'yes'", {"b": {True}}),
        # The column is cast to double for the comparison, so different values of it may be equal.
        ("i8 = 1::float8", {}),
        ("i8 IN (1, 2::float8)", {}),
        ("NOT i4 = 1", {}),
        ("i4 <> 1", {}),
        ("i4 + 0 = 1", {}),
        ("TRUE", {}),
    ],
)
def test_equalities_with_constants_require_their_values(text: str, expected: dict[str, set[object]]) -> None:
    """AND requires what any of its parts does, OR what all of them do; everything else requires nothing."""
    assert parse_where(text).required_values(relation()) == expected


# Forms


WORDS = st.sampled_from(
    ["i4", "I4", "t", "_x", "user", "null", "true", "date", "interval", "case", "not", "5", "é", '"t"']
)
LITERALS = st.one_of(
    st.from_regex(r"[0-9]{1,20}", fullmatch=True),
    st.sampled_from(["-1", "1.5", "1e3", "TRUE", "NULL", "'it''s'", "'a\\b'", "E'x'", "' AND t = '", "''", "'é'"]),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=5).map(lambda text: f"'{text}'"),
)
CHAINS = st.lists(
    st.builds("{}{}{}".format, WORDS, st.sampled_from([" = ", " = ", "=", " > "]), LITERALS), min_size=1, max_size=3
)


@example(["i4 = 2147483648", "i4 = 999999999999999999"], " AND ")
@given(CHAINS, st.sampled_from([" AND ", " and ", "  AND ", " OR "]))
def test_a_chain_of_equalities_is_read_as_the_parser_reads_it(chain: list[str], connective: str) -> None:
    """What the fast path accepts, it reads as the full parser does; it accepts nothing that the parser refuses."""
    text = connective.join(chain)
    read = read_chain(text)
    if read is not None:
        assert read[:2] == read_condition(text)


def test_conditions_that_differ_only_in_literals_have_one_form() -> None:
    """A number and a string are two forms, as their types differ. Any other condition has no form."""
    forms = [parse_where(text).form for text in ("i4 = 1 AND t = 'a'", "i4 = 23 AND t = ''", "i4 = '1' AND t = 'a'")]
    assert forms[0] == forms[1] != forms[2]
    assert None not in forms
    ranges = [parse_where(text).form for text in ("i4 > 1", "i4 > 23", "i4 >= 1", "i4 BETWEEN 1 AND 2", "t LIKE 'a%'")]
    assert ranges[0] == ranges[1]
    assert len({*ranges, None}) == 5
    assert parse_where("NOT i4 > 1").form is None
    assert parse_where("i4 <> 1").form is None
    assert parse_where("t LIKE '%a'").form is None
    assert parse_where("i4 = 1 OR t = 'a'").form is None


@pytest.mark.parametrize("text", ["i4 = 'x'", "i4 = '99999999999'", "f4 = 16777217", "d = '2026-02-30'", "u = 'x'"])
def test_a_literal_that_binding_refuses_has_no_value(text: str) -> None:
    """That a form can be bound says nothing about the literals of the next condition."""
    where = parse_where(text)
    with pytest.raises(ShapeError):
        where.bind(relation())
    with pytest.raises(ValueError, match=r"not a|out of range"):
        where.required_values(relation())
