"""A shape's ``where``: which rows match it."""

import math
import operator
import pickle
import sys
import time
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flushtracker.errors import DecodeError
from flushtracker.shapes.where import parse_where
from flushtracker.shapes.where.letter_case import has_other_letters
from flushtracker.shapes.where.like_pattern import LikePattern, with_runs
from flushtracker.shapes.where.number_values import NAN
from flushtracker.wal.changes import Row
from tests.support.where_table import NULLS, UUID, outcome, relation

T, F, UNKNOWN = "t", "f", None


@pytest.mark.parametrize(
    "where",
    ["us @> ARRAY['{}']::uuid[]", "us @> ARRAY['{}'::uuid]", "us && '{{{}}}'", "'{}' = ANY(us)", "u = ANY('{{{}}}')"],
)
def test_arrays_of_uuids_are_compared_by_value(where: str) -> None:
    """However a literal is written."""
    row = {"us": f"{{00000000-0000-0000-0000-000000000000,{UUID}}}", "u": UUID}
    assert outcome(where.format(UUID.upper()), **row) is True
    assert outcome(where.format(UUID.replace("a0", "b0")), **row) is False


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        # AND, OR and NOT of unknown
        ("b AND NULL", {T: None, F: False, UNKNOWN: None}),
        ("b OR NULL", {T: True, F: None, UNKNOWN: None}),
        ("NOT b", {T: False, F: True, UNKNOWN: None}),
        ("NOT NOT b", {T: True, F: False, UNKNOWN: None}),
        ("b", {T: True, F: False, UNKNOWN: None}),
        ("b = TRUE", {T: True, F: False, UNKNOWN: None}),
        ("b <> 'yes'", {T: False, F: True, UNKNOWN: None}),
        ("b > FALSE", {T: True, F: False, UNKNOWN: None}),
        # tests whose outcome is never unknown
        ("b IS NULL", {T: False, F: False, UNKNOWN: True}),
        ("b IS NOT NULL", {T: True, F: True, UNKNOWN: False}),
        ("b ISNULL", {T: False, F: False, UNKNOWN: True}),
        ("b NOTNULL", {T: True, F: True, UNKNOWN: False}),
        ("b IS UNKNOWN", {T: False, F: False, UNKNOWN: True}),
        ("b IS NOT UNKNOWN", {T: True, F: True, UNKNOWN: False}),
        ("b IS TRUE", {T: True, F: False, UNKNOWN: False}),
        ("b IS NOT TRUE", {T: False, F: True, UNKNOWN: True}),
        ("b IS FALSE", {T: False, F: True, UNKNOWN: False}),
        ("b IS NOT FALSE", {T: True, F: False, UNKNOWN: True}),
        ("b IS DISTINCT FROM TRUE", {T: False, F: True, UNKNOWN: True}),
        ("b IS NOT DISTINCT FROM NULL", {T: False, F: False, UNKNOWN: True}),
        # IS binds looser than =, and NOT looser than both
        ("b = TRUE IS NULL", {T: False, F: False, UNKNOWN: True}),
        ("NOT b = TRUE IS NULL", {T: True, F: True, UNKNOWN: False}),
        # NULL in and beside a list
        ("b IN (TRUE, NULL)", {T: True, F: None, UNKNOWN: None}),
        ("b NOT IN (TRUE) IS NULL", {T: False, F: False, UNKNOWN: True}),
        ("b NOT IN (TRUE, NULL)", {T: False, F: None, UNKNOWN: None}),
        ("b IN (NULL)", {T: None, F: None, UNKNOWN: None}),
        # BETWEEN is two comparisons and an AND
        ("b BETWEEN FALSE AND NULL", {T: None, F: None, UNKNOWN: None}),
        ("b BETWEEN NULL AND FALSE", {T: False, F: None, UNKNOWN: None}),
        ("b NOT BETWEEN NULL AND FALSE", {T: True, F: None, UNKNOWN: None}),
        # no column at all
        ("TRUE", {T: True, F: True, UNKNOWN: True}),
        ("1 = 2", {T: False, F: False, UNKNOWN: False}),
        ("NULL", {T: None, F: None, UNKNOWN: None}),
    ],
)
def test_conditions_have_three_outcomes(where: str, expected: dict[str | None, bool | None]) -> None:
    """True, false and unknown combine as in SQL."""
    assert {value: outcome(where, b=value) for value in (T, F, UNKNOWN)} == expected


def to_sql(tree: object) -> str:
    match tree:
        case ("NOT", inner):
            return f"NOT ({to_sql(inner)})"
        case (connective, left, right):
            return f"({to_sql(left)}) {connective} ({to_sql(right)})"
    return str(tree)


def naive(tree: object, row: Row) -> bool | None:
    """Unknown ranks between false and true: AND is the minimum, OR the maximum, NOT the mirror image."""
    rank = {False: 0, None: 1, True: 2}
    match tree:
        case ("NOT", inner):
            value = naive(inner, row)
            return None if value is None else not value
        case (connective, left, right):
            choose = min if connective == "AND" else max
            return choose(naive(left, row), naive(right, row), key=lambda value: rank[value])
        case "TRUE" | "FALSE" | "NULL":
            return {"TRUE": True, "FALSE": False, "NULL": None}[tree]
    text = row[str(tree)]
    return None if text is None else text == "t"


TREES = st.recursive(
    st.sampled_from(["b", "b2", "b3", "TRUE", "FALSE", "NULL"]),
    lambda inner: st.tuples(st.just("NOT"), inner) | st.tuples(st.sampled_from(["AND", "OR"]), inner, inner),
    max_leaves=12,
)


@given(TREES, st.tuples(*[st.sampled_from([T, F, UNKNOWN])] * 3))
def test_any_tree_of_conditions_agrees_with_the_naive_reading(
    tree: object, values: tuple[str | None, str | None, str | None]
) -> None:
    """However AND, OR and NOT are nested, the outcome is the minimum, the maximum or the mirror image."""
    row = {**NULLS, **dict(zip(("b", "b2", "b3"), values, strict=True))}
    assert parse_where(to_sql(tree)).bind(relation())(row) is naive(tree, row)


@pytest.mark.parametrize(
    ("where", "values", "expected"),
    [
        # exact numbers, across their types
        ("i4 = 5", {"i4": "5"}, True),
        ("i4 = '5'", {"i4": "5"}, True),
        ("i4 <> -5", {"i4": "-5"}, False),
        ("i4 < 5.5", {"i4": "5"}, True),
        ("i4 = 5.0", {"i4": "5"}, True),
        ("n = 1", {"n": "1.000"}, True),
        ("i8 = n", {"i8": "9007199254740993", "n": "9007199254740993"}, True),
        ("i8 = 9007199254740992", {"i8": "9007199254740993"}, False),
        ("i8 = 9007199254740992::float8", {"i8": "9007199254740993"}, True),
        ("i4 = 3000000000", {"i4": "5"}, False),
        ("n = .5", {"n": "0.5"}, True),
        ("n = 5e-1", {"n": "0.5"}, True),
        ("i4 IN (1, 2.5, '3')", {"i4": "3"}, True),
        ("n IN (1, 2.50)", {"n": "2.5"}, True),
        ("i4 NOT IN (1, 2)", {"i4": "3"}, True),
        ("i4 BETWEEN 1 AND 3", {"i4": "3"}, True),
        ("i4 NOT BETWEEN 1 AND 2", {"i4": "3"}, True),
        ("i4 BETWEEN 1 AND 3 AND b", {"i4": "3", "b": "f"}, False),
        # NaN and the infinities
        ("n = 'NaN'", {"n": "NaN"}, True),
        ("n > 'Infinity'", {"n": "NaN"}, True),
        ("n < 'NaN'", {"n": "Infinity"}, True),
        ("n < 0", {"n": "-Infinity"}, True),
        ("n IN (1, 'NaN')", {"n": "NaN"}, True),
        ("f8 = 'NaN'::float8", {"f8": "NaN"}, True),
        ("f8 >= n", {"f8": "NaN", "n": "NaN"}, True),
        ("f8 < n", {"f8": "Infinity", "n": "NaN"}, True),
        ("n - n = 'NaN'", {"n": "Infinity"}, True),
        # floats
        ("f8 = 0.1", {"f8": "0.1"}, True),
        ("f4 = '0.1'", {"f4": "0.1"}, True),
        ("f4 > 0.1", {"f4": "0.1"}, True),
        ("f4 = f8", {"f4": "0.1", "f8": "0.1"}, False),
        ("f4 IN (0.5, 1)", {"f4": "0.5"}, True),
        ("f4 IN (1.0, '0.1')", {"f4": "0.1"}, True),
        ("f8 IN (1.0, '0.1')", {"f8": "0.1"}, True),
        ("n IN (0.1::real, '0.1')", {"n": "0.1"}, False),
        ("n IN (0.5::real, '0.1')", {"n": "0.5"}, True),
        ("i8 IN (0.5::real, 1)", {"i8": "1"}, True),
        ("f4 = '1.00000005960464477539063'", {"f4": "1.0000001"}, True),
        ("f4 = '1.00000005960464477539062'", {"f4": "1"}, True),
        ("f8 = 0", {"f8": "-0"}, True),
        ("- f8 = 1.5", {"f8": "-1.5"}, True),
        # arithmetic
        ("i4 + 2 * 3 = 7", {"i4": "1"}, True),
        ("(i4 + 2) * 3 = 9", {"i4": "1"}, True),
        ("10 - 3 - i4 = 6", {"i4": "1"}, True),
        ("-i4 * 2 = -2", {"i4": "1"}, True),
        ("i4 % 3 = -1", {"i4": "-7"}, True),
        ("i4 % -3 = 1", {"i4": "7"}, True),
        ("n % 2 = -1.5", {"n": "-7.5"}, True),
        ("i4 % i8 = -1", {"i4": "-7", "i8": "3"}, True),
        ("i4 % NULL = 1", {"i4": "1"}, None),
        ("i4 / 2 = -3", {"i4": "-7"}, True),
        ("i4 / i8 = 2", {"i4": "-7", "i8": "-3"}, True),
        ("i8 / -2147483648 = -4", {"i8": "9223372036"}, True),
        ("i4 / -9223372036854775808 = 0", {"i4": "9999"}, True),
        ("(i4 + 1) / 2 * 2 = 4", {"i4": "4"}, True),
        ("i4 / 2.0 = 3.5", {"i4": "7"}, True),
        ("n / 3 = 0.33333333333333333333", {"n": "1"}, True),
        ("n / 3 = 3333.3333333333333333", {"n": "10000"}, True),
        ("n / 3 = 33333333.333333333333", {"n": "100000000"}, True),
        ("2 / n = 0.66666666666666666667", {"n": "3"}, True),
        ("n / 1.7 = 0.58823529411764705882", {"n": "1.0"}, True),
        ("n / 7 = -0.00142857142857142857", {"n": "-0.01"}, True),
        ("1e5 * n / 3 = 33333.333333333333", {"n": "1"}, True),
        ("n / 'Infinity' = 0", {"n": "5"}, True),
        ("n / -2 = '-Infinity'", {"n": "Infinity"}, True),
        ("n / n = 'NaN'", {"n": "Infinity"}, True),
        ("n / 2 = 'NaN'", {"n": "NaN"}, True),
        ("i4 + NULL = 1", {"i4": "1"}, None),
        ("i4 + '2' = 3", {"i4": "1"}, True),
        ("i4 + 1 > 2147483647", {"i4": "2147483647"}, True),
        (f"n * n = {'9' * 29}8{'0' * 29}1", {"n": "9" * 30}, True),
        (f"n + 1e-40 > {'7' * 40}", {"n": "7" * 40}, True),
        # text
        ("t = 'it''s'", {"t": "it's"}, True),
        (r"t = 'a\nb'", {"t": r"a\nb"}, True),
        ("t = 'a'", {"t": "a "}, False),
        ("t <> v", {"t": "a", "v": "b"}, True),
        ("c = 'a'", {"c": "a   "}, True),
        ("c IN ('b', 'a ')", {"c": "a   "}, True),
        ("c LIKE 'a'", {"c": "a   "}, False),
        ("t IN ('a', 'b'::text)", {"t": "b"}, True),
        ("t || v = 'ab'", {"t": "a", "v": "b"}, True),
        ("t || '-' || v = 'a-'", {"t": "a", "v": ""}, True),
        ("c || 'x' = 'ax'", {"c": "a   "}, True),
        ("t || NULL = 'a'", {"t": "a"}, None),
        ("t || 'b' LIKE 'a_'", {"t": "a"}, True),
        ("lower(t) = 'ab日'", {"t": "AB日"}, True),
        ("lower(t) = 'ab'", {"t": "ABÉ"}, False),
        ("lower(t) <> 'ab'", {"t": "É"}, True),
        ("lower(t) = lower('AB')", {"t": "aB"}, True),
        ("upper(t) IN ('AB', NULL)", {"t": "c"}, None),
        ("upper(t || v) LIKE 'A_'", {"t": "a", "v": "b"}, True),
        ("'ab' = lower(c)", {"c": "AB   "}, True),
        ("lower(t) IS NOT DISTINCT FROM NULL", {"t": "a"}, False),
        # arrays
        ("2 = ANY(i4s)", {"i4s": "{1,2}"}, True),
        ("3 = ANY(i4s)", {"i4s": "{1,NULL}"}, None),
        ("i4 = ANY(i8s)", {"i4": "2", "i8s": "{{1,2},{3,4}}"}, True),
        ("NULL = ANY(i4s)", {"i4s": "{}"}, False),
        ("2.5 = ANY(i4s)", {"i4s": "{2}"}, False),
        ("'NULL' = ANY(ts_)", {"ts_": '{"NULL"}'}, True),
        ("t = ANY(ts_)", {"t": 'a"b,', "ts_": '{"a\\"b,"}'}, True),
        ("i4s @> '{1, 2}'", {"i4s": "{2,1,3}"}, True),
        ("i4s @> '{1}'::int[]", {"i4s": "{2,1,3}"}, True),
        ("CAST('{b}' AS text[]) && ts_", {"ts_": "{b}"}, True),
        ("i4s @> '{}'", {"i4s": "{NULL}"}, True),
        ("i4s @> '{NULL}'", {"i4s": "{NULL}"}, False),
        ("i4s <@ '{1,2}'", {"i4s": "{1}"}, True),
        ("ts_ && '{a,NULL}'", {"ts_": "{NULL,b}"}, False),
        ("ts_ && '{a,b}'", {"ts_": "{b}"}, True),
        ("i4s && '{1}'", {}, None),
        ("i4s = '{1,2}'", {"i4s": "[0:1]={1,2}"}, False),
        ("i4s = '{1,NULL}'", {"i4s": "{1,NULL}"}, True),
        # uuid
        (f"u = '{UUID.upper()}'", {"u": UUID}, True),
        (f"u = '{{{UUID}}}'", {"u": UUID}, True),
        (f"u < UUID '{UUID}'", {"u": "00000000-0000-0000-0000-000000000001"}, True),
        # dates and times
        ("d = '2026-11-21'", {"d": "2026-11-21"}, True),
        ("d < DATE '2026-11-21'", {"d": "2026-11-20"}, True),
        ("d > '2026-11-21'", {"d": "infinity"}, True),
        ("d < '2026-11-21'", {"d": "0044-03-15 BC"}, True),
        ("d > '9999-12-31'", {"d": "10000-01-01"}, True),
        ("d > '0001-12-31 BC'", {"d": "0001-01-01"}, True),
        ("d = ts", {"d": "2026-11-21", "ts": "2026-11-21 00:00:00"}, True),
        ("ts > '2026-11-21'", {"ts": "2026-11-21 00:00:00.000001"}, True),
        ("ts < TIMESTAMP '2026-11-21 01:02:03.4'", {"ts": "2026-11-21 01:02:03.399999"}, True),
        ("ts > '-infinity'", {"ts": "0044-03-15 12:00:00 BC"}, True),
        ("tz = '2026-11-21T01:02:03.456Z'", {"tz": "2026-11-21 06:32:03.456+05:30"}, True),
        ("tz < TIMESTAMP WITH TIME ZONE '2026-11-21 00:00-01'", {"tz": "2026-11-21 00:59:59+00"}, True),
        ("tz = '1850-01-01+00'", {"tz": "1850-01-01 00:19:32+00:19:32"}, True),
        ("tz < 'infinity'::timestamptz", {"tz": "2026-11-21 00:00:00+00"}, True),
        ("ts > '294276-12-31 23:59:59.999998'", {"ts": "294276-12-31 23:59:59.999999"}, True),
        ("d > ts", {"d": "5874897-12-31", "ts": "294276-12-31 00:00:00"}, True),
        ("tm < '24:00:00'", {"tm": "23:59:59.999999"}, True),
        ("tm = TIME '12:30'", {"tm": "12:30:00"}, True),
        ("iv = '30 days'", {"iv": "1 mon"}, True),
        ("iv > '1 year -1 mons'", {"iv": "359 days"}, True),
        ("iv < '00:00:00'", {"iv": "-1 days +02:03:00"}, True),
        ("iv >= '24:00:00'::interval", {"iv": "1 day"}, True),
        ("iv < 'infinity'", {"iv": "178000000 years"}, True),
        ("iv = '1 year 2 mons 3 days 04:05:06.789'", {"iv": "14 mons 76:05:06.789"}, True),
        # NULL tests of other types
        ("doc IS NULL", {"doc": "{}"}, False),
        ("raw IS NOT NULL", {"raw": r"\x00"}, True),
        # a condition as a value
        ("b = (i4 > 1)", {"b": "t", "i4": "2"}, True),
        ("i4 IN (1) = b", {"b": "t", "i4": "1"}, True),
        ("b NOT IN (TRUE) = b2", {"b": "t", "b2": "f"}, True),
        ("b IS NULL = b2", {"b2": "t"}, True),
        # a sign before a number
        ("i4 = +5", {"i4": "5"}, True),
        ("i4 IN (+5, - 7)", {"i4": "-7"}, True),
        ("i4 = - - 5", {"i4": "5"}, True),
        ("i4 = -(5)", {"i4": "-5"}, True),
        ("-9223372036854775808 / 3 = -3074457345618258602", {}, True),
        ("-(+9223372036854775808) / 3 = -3074457345618258602", {}, False),
        ("feel = mood 'ok'", {"feel": "ok"}, True),
        # names, comments, layout
        ('"line/no" = 1', {"line/no": "1"}, True),
        ('"Mixed" = 1', {"Mixed": "1"}, True),
        ("I4 = 1 -- the first", {"i4": "1"}, True),
        ("\n i4 /* one /* inside */ another */ =\t1\n", {"i4": "1"}, True),
    ],
)
def test_values_compare_as_in_postgresql(
    where: str,
    values: dict[str, str],
    expected: bool | None,  # noqa: FBT001 - a column of the table above
) -> None:
    """Each type has its own order and equality, and nothing is rounded; unknown where NULL takes part."""
    assert outcome(where, **values) is expected


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("abc", "abc", True),
        ("abc", "xabcx", False),
        ("a%", "a\nb", True),
        ("a_c", "a\nc", True),
        ("%", "", True),
        ("_", "", False),
        ("a%b%c", "a-b-c", True),
        ("a%b%c", "acb", False),
        ("ab%ba", "aba", False),
        (r"50\%", "50%", True),
        (r"50\%", "500", False),
        (r"a\_b", "axb", False),
        (r"a\\b", r"a\b", True),
        (r"\a", "a", True),
        ("a.c", "abc", False),
        ("%a_a%", "xaba", True),
        ("_日_", "一日本", True),
        ("A%", "a", False),
    ],
)
def test_like_covers_the_whole_text(pattern: str, text: str, expected: bool) -> None:  # noqa: FBT001 - a column of the table above
    """``%`` and ``_`` match newlines too, a backslash escapes them, and a match is anchored at both ends."""
    assert outcome(f"t LIKE '{pattern}'", t=text) is expected
    assert outcome(f"t NOT LIKE '{pattern}'", t=text) is not expected


def test_ilike_ignores_only_the_case_of_ascii_letters() -> None:
    """Other letters match only wildcards; characters without case match themselves."""
    assert outcome("t ILIKE 'aB%日'", t="Abé日") is True
    assert outcome("t NOT ILIKE 'ab'", t="AB") is False


@pytest.mark.parametrize("where", ["t ILIKE 'k'", "t ILIKE '_i_'", "lower(t) = 'k'", "lower(t) IN ('a', 'xix')"])
def test_a_letter_whose_case_depends_on_the_collation_ends_the_shape(where: str) -> None:
    """İ and the Kelvin sign become i and k in some collations. Where that makes no difference, the outcome is known."""
    text = "\u212a" if "k" in where else "x\u0130x"
    assert outcome(where, t=f"{text} and more") is False
    with pytest.raises(DecodeError, match=r"public\.t: where cannot be evaluated.*collation, such as İ or ß"):
        outcome(where, t=text)


def test_letters_that_may_become_several_do_not_decide_by_guessing() -> None:
    """ß stays, or becomes SS: both differ from X, but only one of them is SS."""
    assert outcome("upper(t) = 'X'", t="ß") is False
    with pytest.raises(DecodeError, match="collation"):
        outcome("upper(t) = 'SS'", t="ß")
    with pytest.raises(DecodeError, match="collation"):
        outcome("upper(t) LIKE '__'", t="ß")


def test_a_long_text_outside_ascii_is_searched_in_one_pass() -> None:
    """Four times the letters cost about four times as much: a condition is tested for each change."""
    short, long = (min(_seconds("Длинный текст " * words) for _ in range(5)) for words in (25_000, 100_000))
    assert long / short < 10


def _seconds(text: str) -> float:
    started = time.process_time()
    assert outcome("t ILIKE '%x%'", t=text) is False
    return time.process_time() - started


def test_no_letter_that_the_collation_decides_can_become_a_character_of_a_literal() -> None:
    """Other letters map to letters with two cases, which literals beside lower and upper must not have."""
    for character in map(chr, range(128, sys.maxunicode + 1)):
        for mapped in (character.lower(), character.upper()):
            if mapped != character and len(mapped) == 1 and not mapped.isascii():
                assert has_other_letters(mapped)


def test_only_a_division_by_a_number_cannot_fail_on_a_server() -> None:
    """A calculation with columns may overflow there, or divide by zero."""
    assert not any(
        parse_where(where).may_overflow
        for where in ("i4 = -1", "i4 % 8 = 1 OR i4 IN (1, 2)", "i4 / 10 % 4 = 2", "t IN (SELECT a FROM public.u)")
    )
    assert all(
        parse_where(where).may_overflow
        for where in ("-i4 = 1", "t = 'a' AND i4 + 1 = 2", "i4 / -1 = 1", "i4 % i8 = 1", "i4 * 2 % 8 = 1")
    )


@pytest.mark.parametrize(
    "where", ["10 / i4 = 1", "10 % i4 = 1", "n / i4 = 1", "n % (i4 + 0) > 1", "i4 / (i4 - i4) = 1"]
)
def test_a_division_by_zero_ends_the_shape(where: str) -> None:
    """As in PostgreSQL it is an error, unless a condition before it has decided, or an operand is NULL."""
    with pytest.raises(
        DecodeError, match=r"public\.t: where cannot be evaluated for a row because of a division by zero"
    ):
        outcome(where, i4="0", n="5")
    assert outcome(f"i4 <> 0 AND {where}", i4="0", n="5") is False
    assert outcome(where, n="5") is None


def test_a_numeric_out_of_the_range_of_double_ends_the_shape() -> None:
    """PostgreSQL raises an error when it converts such a number; here it would look like infinity."""
    assert outcome("n = f8", n="1e300", f8="1e300") is True
    for number in ("1e400", "1e-400"):
        with pytest.raises(DecodeError, match="out of the range of its floating-point type"):
            outcome("n < f8", n=number, f8="1")


@pytest.mark.parametrize(
    ("pattern", "escape", "text", "expected"),
    [
        ("50!%", "!", "50%", True),
        ("50!%", "!", "500", False),
        ("a!!_", "!", "a!b", True),
        (r"a\%", "!", r"a\b", True),
        (r"a\_", "", r"a\b", True),
        ("a%%", "%", "a%", True),
        ("a__b", "_", "a_b", True),
        (r"a\_", "\\", "a_", True),
    ],
)
def test_like_has_the_escape_that_it_is_given(pattern: str, escape: str, text: str, expected: bool) -> None:  # noqa: FBT001 - a column of the table above
    """A backslash is then an ordinary character, and an empty escape means that there is none."""
    assert outcome(f"t LIKE '{pattern}' ESCAPE '{escape}'", t=text) is expected
    assert outcome(f"t NOT LIKE '{pattern}' ESCAPE '{escape}'", t=text) is not expected


def test_like_of_null_is_unknown() -> None:
    """Both for a text and for a pattern that is NULL."""
    assert outcome("t LIKE 'a'") is None
    assert outcome("t NOT LIKE NULL", t="a") is None


def test_like_is_not_slowed_by_many_wildcards() -> None:
    """A pattern that makes a backtracking matcher run for years is decided at once."""
    pattern = LikePattern.parse("%a" * 30 + "%b")
    assert not pattern.matches("a" * 10_000)


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("feel = 'ok'", {"sad": False, "ok": True, "happy": False, None: None}),
        ("feel > 'sad'", {"sad": False, "ok": True, "happy": True, None: None}),
        ("'happy' >= feel", {"sad": True, "ok": True, "happy": True, None: None}),
        ("feel BETWEEN 'ok' AND 'happy'", {"sad": False, "ok": True, "happy": True}),
        ("feel BETWEEN 'happy' AND 'ok'", {"sad": False, "ok": False, "happy": False}),
        ("feel IN ('sad', NULL)", {"sad": True, "ok": None, None: None}),
        ("feel IS NULL", {"sad": False, None: True}),
        ("feel IS DISTINCT FROM 'ok'", {"sad": True, "ok": False, None: True}),
        ("feel IS NOT DISTINCT FROM NULL", {"sad": False, None: True}),
        ("feel = 'ok'::mood", {"sad": False, "ok": True}),
        ("feel = CAST('ok' AS public.Mood)", {"sad": False, "ok": True}),
        ("feel = NULL::mood", {"ok": None}),
        ("feel::text = 'ok'", {"sad": False, "ok": True, None: None}),
        ("feel::text LIKE '%a%'", {"sad": True, "ok": False, "happy": True}),
        ("upper(feel::varchar) IN ('OK', 'BAD')", {"sad": False, "ok": True, None: None}),
        ("(feel::text || '!') = 'ok!'", {"sad": False, "ok": True}),
        ("feel = best", {"ok": True, "sad": False}),
        ("feel = ANY(feels)", {"ok": True, "sad": None}),
        ("feel = ANY('{ok,NULL}')", {"ok": True, "sad": None, None: None}),
        ("feel <> ALL(ARRAY['ok', 'sad']::mood[])", {"ok": False, "happy": True, None: None}),
        ("feel = ANY(ARRAY[]::mood[])", {"ok": False, None: False}),
        ("feel = ANY(NULL)", {"ok": None, None: None}),
        ("best::text = ANY(ARRAY['ok', 'a\"b\\c'])", {"ok": True}),
        ("feels @> '{ok}'::mood[] AND feels && '{sad,ok}'", {"ok": True}),
        ("mail = 'a@b' AND mail LIKE 'a%'", {"ok": True}),
    ],
)
def test_enums_compare_by_the_order_of_their_labels(where: str, expected: dict[str | None, bool | None]) -> None:
    """A domain is compared as what it is over, and ``::text`` makes a text of a label."""
    others = {"best": "ok", "feels": "{ok,NULL}", "mail": "a@b"}
    assert {label: outcome(where, feel=label, **others) for label in expected} == expected


def test_columns_are_named_as_in_the_catalog() -> None:
    """Unquoted names are folded, of which PostgreSQL folds only the ASCII letters; quoted names are kept."""
    where = parse_where('Region = \'x\' AND "Line/No" > 1 AND Ärger IS NULL AND "a""b" IN (1) AND NOT REGION = \'y\'')
    assert where.columns == {"region", "Line/No", "Ärger", 'a"b'}
    assert parse_where("1 = 1").columns == frozenset()


def test_a_name_that_is_a_keyword_elsewhere_is_a_column() -> None:
    """These are common column names, but types or commands to the parser."""
    for name in (
        *("date", "timestamp", "text", "name", "type", "status", "key", "value", "level", "comment", "format"),
        *("if", "double"),
    ):
        assert parse_where(f"{name} = 'x'").columns == {name}


def test_an_unchanged_where_is_equal_and_can_be_pickled() -> None:
    """A condition can be sent to another process, and two with the same text are equal."""
    where = parse_where("i4 IN (1, 2) AND t LIKE 'a%'")
    copy = pickle.loads(pickle.dumps(where))  # noqa: S301 - our own bytes
    assert copy == where
    assert hash(copy) == hash(where)
    assert copy.bind(relation())({**NULLS, "i4": "2", "t": "ab"}) is True


def test_long_chains_and_lists_are_accepted() -> None:
    """Thousands of alternatives, as programs write them, need no deep recursion."""
    for count in (1_000, 5_000):
        predicate = parse_where(" OR ".join(f"i4 = {number}" for number in range(count))).bind(relation())
        assert predicate({**NULLS, "i4": str(count - 1)}) is True
        assert predicate({**NULLS, "i4": str(count)}) is False
    predicate = parse_where(f"i4 IN ({', '.join(map(str, range(10_000)))})").bind(relation())
    assert predicate({**NULLS, "i4": "9999"}) is True
    assert predicate({**NULLS, "i4": "10000"}) is False


def test_twenty_levels_of_parentheses_are_accepted() -> None:
    """That is the limit in the error's message."""
    assert outcome("NOT (" * 20 + "b" + ")" * 20, b="t") is True


@pytest.mark.parametrize("number", [0, Decimal(1), Decimal("Infinity"), 1.5, math.inf])
def test_nan_is_above_every_number(number: object) -> None:
    """On either side of each comparison, and against each kind of number."""
    for compare, expected in (("lt", True), ("le", True), ("eq", False), ("ne", True), ("ge", False), ("gt", False)):
        assert getattr(operator, compare)(number, NAN) is expected
        mirrored = {"lt": "gt", "le": "ge", "ge": "le", "gt": "lt"}.get(compare, compare)
        assert getattr(operator, mirrored)(NAN, number) is expected


def test_nan_equals_itself() -> None:
    """PostgreSQL's NaN does, unlike a float's."""
    for compare, expected in (("lt", False), ("le", True), ("eq", True), ("ne", False), ("ge", True), ("gt", False)):
        assert getattr(operator, compare)(NAN, NAN) is expected


def test_a_run_of_wildcards_is_skipped_in_one_step() -> None:
    """Each place of a text is tried, and no other thread runs meanwhile. The digest of a handle stays as it was."""
    pattern = LikePattern.parse("%" + "_" * 3_900 + r"x\.._%")
    assert pattern.pieces == ("", "." * 3_900 + r"x\.\..", "")
    assert with_runs(pattern.pieces[1]) == r".{3900}x\.\.."
    assert pattern.matches("a" * 4_000 + "x..b")
    assert not pattern.matches("a" * 3_899 + "x..b")
