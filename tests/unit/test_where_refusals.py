"""What a shape's ``where`` refuses, always by name: on definition, when its table becomes known, and in a row."""

import logging

import pytest

from flushtracker.errors import DecodeError, ShapeError
from flushtracker.shapes.where import parse_where
from flushtracker.shapes.where.column_types import type_of_column
from tests.support.where_table import NULLS, relation


@pytest.mark.parametrize(
    ("where", "construct"),
    [
        ("", "empty"),
        (" -- nothing\n", "empty"),
        ("i4 = 1; i4 = 2", "several statements"),
        ("i4 = 1;;", "several statements"),
        ("i4!=-1", "the operator !=-"),
        ("i4%+3 = 1", "the operator %+"),
        ("i4 = 1and i8 = 1", '"1and"'),
        ("i4 IN (1,)", "a comma without a value after it"),
        ("t = 'a'::\"TEXT\"", 'a cast to "TEXT"'),
        ("i4 = '1'::\"integer\"", 'a cast to "integer"'),
        ("i4 =", "not one SQL condition"),
        ("i4 = 1 i8", "not one SQL condition"),
        ("i4 = 1 GROUP BY i4", "not one SQL condition"),
        ("t = 'open", "not one SQL condition"),
        ("initcap(t) = 'a'", "initcap(...)"),
        ("lower('É') = t", "lower(...) of a literal with a non-ASCII letter"),
        ("upper('ß') = t", "upper(...) of this literal"),
        ("lower(5) = t", "lower(...) of this literal"),
        ("upper(t) ILIKE 'k'", "ILIKE of upper(...)"),
        ("lower(t) LIKE 'é%'", "LIKE with a non-ASCII letter"),
        ("mod(i4, 2) = 1", "mod(...)"),
        ("like('a', t)", "like(...)"),
        ("\"lower\"(t) = 'a'", "lower(...)"),
        ("count(*) = 1", "count(...)"),
        ("coalesce(i4, 1) = 1", "coalesce(...)"),
        ("i4 <> ANY(i4s)", "<> ANY(...)"),
        ("i4 = ALL(i4s)", "= ALL(...)"),
        ("ALL(i4s) <> i4", "a function"),
        ("i4 = ANY(i4s || i4s)", "= ANY(...)"),
        ("i4 = ALL(i4s)", "ALL(...)"),
        ("ANY(i4s) = i4", "ANY(...)"),
        ("i4s[1] = 1", "operator ["),
        ("i4s @> [1]", "operator ["),
        ('"array"[1] = 1', "operator ["),
        ("i4s @> ARRAY[]", "ARRAY"),
        ("i4s @> ARRAY[i4]", "ARRAY[...] with something other than plain literals"),
        ("i4s @> ARRAY[1.5]", "ARRAY[...] of this type"),
        ("i4s @> ARRAY[1, '2']", "ARRAY[...] of this type"),
        ("i4s @> ARRAY[TRUE]", "ARRAY[...] of this type"),
        ("ts_ @> ARRAY[1]::text[]", "a cast of a literal of another type"),
        ("feels @> ARRAY['ok'::mood]", "ARRAY[...] with something other than plain literals"),
        ("i4s[] = 1", "not one SQL condition"),
        ("i4s] = 1", "not one SQL condition"),
        ("i4s @> '{1}'::int[][]", "a cast to INT[][]"),
        ("i4s @> '{1}'::int[3]", "operator ["),
        ("i4s @> '{1}'::varchar(3)[]", "varchar(...)"),
        ("i4s @> '{1}'::numeric[]", "a cast to DECIMAL[]"),
        ("i4s @> int[] '{1}'", "an array type before its literal"),
        ("i4s @> ARRAY<int> '{1}'", "ARRAY without [...]"),
        ("i4s @> '{1}'::int ARRAY", "ARRAY without [...]"),
        ("i4s @> CAST('{1}' AS int ARRAY)", "ARRAY without [...]"),
        ("i4 = int 1", "INT before a number"),
        ("i4 BETWEEN 0 AND bigint 2", "BIGINT before a number"),
        ("f8 = double precision 1", "DOUBLE PRECISION before a number"),
        ("f8 = '1'::double", "a cast to DOUBLE"),
        ("t = 'a'::string", "a cast to STRING"),
        ("t = string 'a'", "a cast to STRING"),
        ("i8 = CAST('1' AS long)", "a cast to LONG"),
        ("i4 = ANY('{1}'::int32[])", "a cast to INT32"),
        ("i4s = '1'::int::int[]", "a cast of a literal of another type"),
        ("EXISTS (SELECT 1)", "EXISTS(...)"),
        ("i4 IN (SELECT 1)", "a subquery"),
        ("i4 = (SELECT 1)", "a subquery"),
        ("CASE WHEN b THEN b2 END", "CASE"),
        ("t ~ 'a'", "operator ~"),
        ("t ~~ 'a'", "operator ~~"),
        ("t SIMILAR TO 'a'", "SIMILAR TO"),
        ("t -> 'a' = 'b'", "operator ->"),
        ("i4 ^ 2 = 1", "operator ^"),
        ("i4 & 1 = 1", "operator &"),
        ("i4 == 1", "operator =="),
        ("i4 <=> 1", "operator <=>"),
        ("doc -> 'a' IS NULL", "operator ->"),
        ("i4 = $1", "operator $"),
        ("i4 = :value", "operator :"),
        ("i4 = ?", "operator ?"),
        ("i4 = %s", "a parameter"),
        ("i4[1] = 1", "operator ["),
        ("(i4, i8) = (1, 2)", "a row of several values"),
        ("t COLLATE \"C\" = 'a'", "COLLATE"),
        ("tz AT TIME ZONE 'UTC' = ts", "AT TIME ZONE"),
        ("tz > INTERVAL '1 day'", "INTERVAL"),
        ("i4::bigint = 1", "a cast of something that is not a literal"),
        ("f = t::mood", "a cast of something that is not a literal"),
        ("n = 'x'::numeric(3, 1)", "numeric(...)"),
        ("t = 'x'::char", "a cast to CHAR"),
        ("t = 'x'::db.myschema.mytype", "a cast to db.myschema.mytype"),
        ("t = 'x'::mytype(3)", "mytype(...)"),
        ("feels = '{}'::mood[][]", "a cast to mood[][]"),
        ("feel = 1::mood", "a cast of a literal of another type"),
        ("feel = 'ok'::mood::text", "a cast of a literal of another type"),
        ("t LIKE 'a'::mood", "LIKE with a pattern that is not a string literal"),
        ("lower('a'::mood) = t", "lower(...) of this literal"),
        ("t = '1'::int::text", "a cast of a literal of another type"),
        ("t = 1::text", "a cast of a literal of another type"),
        ("t LIKE v", "LIKE with a pattern that is not a string literal"),
        ("t LIKE 'a' ESCAPE '!!'", "ESCAPE with anything but one character"),
        ("t LIKE 'a' ESCAPE NULL", "ESCAPE with anything but one character"),
        ("t LIKE 'a' ESCAPE v", "not one SQL condition"),
        ("t LIKE 'a!' ESCAPE '!'", "LIKE with a pattern that ends in its escape character"),
        ("(t LIKE 'a') ESCAPE '!'", "not one SQL condition"),
        ("t LIKE 'a\\'", "LIKE with a pattern that ends in its escape character"),
        ("t ILIKE 'É'", "ILIKE with a non-ASCII letter"),
        ("t = E'a'", "a byte string"),
        ("t = $$a$$", "a heredoc string"),
        ("t = U&'a'", "a unicode string"),
        ("t = B'1'", "a bit string"),
        ("t = 'a' 'b'", "string literals side by side"),
        ("i4 IN ()", "IN without a list"),
        ("i4 IN i8", "IN without a list"),
        ("i4 IN (1, i8)", "IN with an item that is not a literal"),
        ("i4 BETWEEN SYMMETRIC 2 AND 1", "SYMMETRIC"),
        ("i4 % 0 = 1", "% by zero"),
        ("i4 % 0.0 = 1", "% by zero"),
        ("i4 / 0 = 1", "/ by zero"),
        ("n / '0' = 1", "/ by zero"),
        ("i4 IS 5", "IS with a literal"),
        ("doc IS JSON", "IS with JSON"),
        ("t.i4 = 1", "a column qualified by a table"),
        ("t.* IS NULL", "a column qualified by a table"),
        ("user = 'me'", "user, a session value"),
        ("current_date = d", "CURRENT DATE"),
        ("i4 = 1 = b", "= as an operand without parentheses"),
        ("i4 < 1 < 2", "< as an operand without parentheses"),
        ("b NOT IN (TRUE) = b2", "NOT as an operand without parentheses"),
        ("i4 = 5e", 'the number "5e"'),
        ("i4 = 1e999999", 'the number "1e999999"'),
    ],
)
def test_an_unsupported_construct_is_refused_by_name(where: str, construct: str) -> None:
    """When the shape is defined, before any table is known, in one line."""
    with pytest.raises(ShapeError) as raised:
        parse_where(where)
    assert construct in str(raised.value)
    assert str(raised.value).startswith("where ")
    assert "\n" not in str(raised.value)


def test_a_statement_instead_of_a_condition_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    """Even if the parser accepts it as a command of another dialect."""
    with caplog.at_level(logging.CRITICAL, logger="sqlglot"), pytest.raises(ShapeError, match="a statement"):
        parse_where("if = 1")


@pytest.mark.parametrize(
    ("where", "facts"),
    [
        ("nosuch = 1", ['column "nosuch"', "does not have"]),
        ("Mixed = 1", ['column "mixed"', "does not have"]),
        ("nosuch IS NULL", ['column "nosuch"']),
        ("doc = '{}'", ['column "doc"', "OID 114"]),
        ("raw IS DISTINCT FROM NULL", ['column "raw"', "OID 17"]),
        ("t < 'a'", ['column "t" (text) < ', "collation"]),
        ("c >= 'a'", ['column "c" (character) >= ', "collation"]),
        ("v BETWEEN 'a' AND 'b'", ['column "v" (character varying) BETWEEN ', "collation"]),
        ("t = 1", ['column "t" (text) = the literal "1" (integer)', "whose types are incompatible"]),
        ("t = c", ['column "t" (text) = column "c" (character)']),
        ("b = i4", ['column "b" (boolean) = column "i4" (integer)']),
        ("i4 IN (1, TRUE)", ["IN", "boolean"]),
        ("tz = d", ['column "tz" (timestamp with time zone) = column "d" (date)']),
        ("tz > '2026-11-21'", ["timestamp with time zone", "offset"]),
        ("ts > '2026-11-21 00:00+00'", ["timestamp", "offset"]),
        ("d = '21.11.2026'", ['the literal "21.11.2026"', "date"]),
        ("d = 'today'", ['the literal "today"', "date"]),
        ("d = '2026-02-30'", ["date"]),
        ("ts < '294277-01-01'", ["timestamp", "out of range"]),
        ("d = '4714-11-23 BC'", ["date", "out of range"]),
        ("d = '5874898-01-01'", ["date", "out of range"]),
        ("ts = '2026-01-01 24:00'", ["timestamp", "time of day"]),
        ("i4 = 'five'", ['the literal "five"', "integer"]),
        ("i4 = '5.5'", ["integer"]),
        ("i2 = '32768'", ["smallint", "out of range"]),
        ("i4 = 1.5::int", ["integer"]),
        ("f8 = '1e400'", ["double precision", "out of range"]),
        ("f4 = '1e-60'", ["real", "out of range"]),
        ("f4 = 0.1", ['column "f4" (real) = the literal "0.1" (numeric)']),
        ("f4 IN (0.5, 1e40)", ['column "f4" (real) IN']),
        ("u = 'x'", ["uuid"]),
        ("b = 'maybe'", ["boolean"]),
        ("i4", ['column "i4" (integer)', "the whole condition"]),
        ("b AND i4", ['column "i4" (integer)', "an operand of AND"]),
        ("b OR 1", ['the literal "1" (integer)', "an operand of OR"]),
        ("NOT t", ['column "t" (text)', "NOT"]),
        ("t IS TRUE", ['column "t" (text)', "IS TRUE"]),
        ("'maybe'", ["boolean"]),
        ("i4 LIKE '1'", ['column "i4" (integer)', "LIKE"]),
        ("d + 1 = '2026-01-01'", ['column "d" (date)', "+"]),
        ("f8 * 2 = 1", ['column "f8" (double precision)', "*"]),
        ("'1' + '2' = 3", ["+", "quoted literals"]),
        ("-t = 'a'", ['- before column "t" (text)']),
        ("-'5' = 1", ["- before the literal"]),
        ("f8 / 2 = 1", ['column "f8" (double precision)', "/"]),
        ("t || i4 = 'a1'", ['concatenates column "i4" (integer)']),
        ("lower(i4) = '1'", ["lower(...)", 'column "i4" (integer)']),
        ("lower(t) = v", ["lower(...) = something other than a literal"]),
        ("lower(t) = 'é'", ["lower(...) = something other than a literal", "collation"]),
        ("upper(t) IN ('A', 'É')", ["upper(...) IN something other than a literal"]),
        ("lower(t) || 'x' = 'ax'", ["lower(...) other than in a comparison with literals"]),
        ("lower(upper(t)) = 'a'", ["upper(...) other than in a comparison with literals"]),
        ("lower(t) < 'a'", ["collation"]),
        ("lower(t) = 1", ["types are incompatible"]),
        ("mood = 'happy'", ['column "mood"', "OID 16400", "enum"]),
        ("feel = 'glad'", ['the literal "glad"', "public.mood", "its labels are sad, ok, happy"]),
        ("feel IN ('sad', ' ok')", ['the literal "ok"', "public.mood"]),
        ("feel < 'OK'", ["public.mood"]),
        ("feel = t", ["types are incompatible"]),
        ("feel = 'ok'::text", ["types are incompatible"]),
        ("feel = 'ok'::weather", ["casts to weather, but no column is of an enum of that name"]),
        ("feel = 'ok'::elsewhere.mood", ["casts to elsewhere.mood, but no column"]),
        ("t = 'ok'::mood", ["types are incompatible"]),
        ("feel LIKE 'o%'", ['column "feel" (public.mood) LIKE']),
        ("lower(feel) = 'ok'", ["lower(...)", "public.mood"]),
        ("feel || 'x' = 'okx'", ['concatenates column "feel"']),
        ("feels < '{ok}'", ["compare arrays with =, @> or &&"]),
        ("feels @> '{glad}'", ["public.mood[]", "its labels are"]),
        ("feel = ANY(ts_)", ["incompatible"]),
        ("feel = ANY(ARRAY['ok'])", ["incompatible"]),
        ("feel = ANY('{glad}')", ["public.mood[]", "its labels are"]),
        ("i8s @> ARRAY[1]", ["incompatible"]),
        ("'{1}' = ANY('{1}')", ["ANY(...) of the literal"]),
        ("i4::text = '1'", ['casts column "i4" (integer) to text']),
        ("mail = 5", ['column "mail" (text)', "incompatible"]),
        ("pair = '(1,2)'", ['column "pair" of type public.pair, a composite type']),
        ("pair IS NULL", ['column "pair" of a composite type is NULL, which depends on its fields']),
        ("felt = 'ok'", ['column "felt" of type public.best_mood, a domain over an enum']),
        ("span = '[1,2)'", ['column "span" of type public.span, a range']),
        ("addresses = '{a}'", ['column "addresses" of type public.email[], an array of neither']),
        ("tm = '25:00'", ['the literal "25:00"', "time"]),
        ("iv = '1 fortnight'", ['the literal "1 fortnight"', "interval"]),
        ("iv = ''", ["interval"]),
        ("iv = '1 day '::text", ["types are incompatible"]),
        ("i4s @> i8s", ['column "i4s" (integer[]) @> column "i8s" (bigint[])', "incompatible"]),
        ("i4s @> 5", ['the literal "5" (integer) as an operand of @>']),
        ("'{1}' @> '{1}'", ["@> with literals only"]),
        ("ts_ && '{x}'::varchar[]", ["incompatible"]),
        ("i4s && '{x}'", ["integer[]"]),
        ("i4s = '{{1},{2,3}}'", ["integer[]", "unequal rows"]),
        ("i4s < '{1}'", ["compare arrays with =, @> or &&"]),
        ("t = ANY(i4s)", ['column "t" (text) = ANY of column "i4s" (integer[])']),
        ("f8 = ANY(i4s)", ["incompatible"]),
        ("i4 = ANY(i8)", ['ANY(...) of column "i8" (bigint)']),
    ],
)
def test_a_where_that_does_not_fit_the_table_is_refused(where: str, facts: list[str]) -> None:
    """When the table becomes known: the message has the table, the column and the construct, in one line."""
    parsed = parse_where(where)
    with pytest.raises(ShapeError) as raised:
        parsed.bind(relation())
    assert str(raised.value).startswith("public.t: where ")
    assert "\n" not in str(raised.value)
    for fact in facts:
        assert fact in str(raised.value)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("i4", "secret"),
        ("i4", "1_000"),
        ("i4", "٣"),
        ("i2", "40000"),
        ("n", "1e"),
        ("n", "sNaN"),
        ("f8", "0x1p3"),
        ("b", "perhaps"),
        ("u", "secret"),
        ("d", "21/11/2026"),
        ("d", "0000-01-01"),
        ("ts", "2026-11-21 00:00:00+00"),
        ("tz", "2026-11-21 00:00:00"),
        ("tz", "2026-11-21 00:00:00+99"),
        ("tm", "24:00:01"),
        ("iv", "P1D"),
        ("iv", "@ 1 day"),
        ("i4s", "{1,x}"),
        ("i4s", "{1,2"),
        ("i4s", "{1}}"),
        ("i4s", "{1,}"),
        ("i4s", "{{1},2}"),
        ("i4s", "[0:2]={1,2}"),
        ("ts_", '{"a}'),
        ("ts_", "{a b}"),
        ("feel", "glad"),
        ("feels", "{ok,glad}"),
    ],
)
def test_a_malformed_value_is_an_error_with_its_column(column: str, value: str) -> None:
    """The error has table, column and type; neither it nor its cause ever shows the value."""
    predicate = parse_where(f"{column} = {column}").bind(relation())
    with pytest.raises(DecodeError) as raised:
        predicate({**NULLS, column: value})
    message = str(raised.value)
    assert message.startswith(f'public.t: column "{column}"')
    assert type_of_column(relation(), column).name in message
    assert value not in message
    assert raised.value.__suppress_context__


def test_a_row_without_a_required_column_is_an_error() -> None:
    """An absent column is unknown, not NULL, so no outcome would be right."""
    predicate = parse_where("t IS NULL").bind(relation())
    with pytest.raises(DecodeError, match=r'public\.t: column "t" is absent'):
        predicate({"i4": "1"})


@pytest.mark.parametrize(
    "where",
    [
        "(" * 21 + "b" + ")" * 21,
        "(" * 5_000 + "b" + ")" * 5_000,
        "NOT " * 5_000 + "b",
        "- " * 5_000 + "i4 = 1",
        "i4" + " + 1" * 5_000 + " = 1",
        " AND NOT (".join(["b"] * 500) + ")" * 499,
    ],
    ids=["parentheses", "many parentheses", "NOT", "minus", "sum", "mixed"],
)
def test_deep_nesting_is_refused(where: str) -> None:
    """The error is a ShapeError, never a RecursionError."""
    with pytest.raises(ShapeError, match="nested too deeply"):
        parse_where(where)
