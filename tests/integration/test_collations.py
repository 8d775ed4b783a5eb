"""``lower``, ``upper`` and ILIKE mean what they mean on the server under the collation of a column, or are refused."""

from collections.abc import Iterator
from contextlib import closing
from itertools import product
from typing import Final

import pytest

from flushtracker.errors import PostgresError, ShapeError
from flushtracker.local.postgres import LocalPostgres
from flushtracker.postgres.connection import Connection, rows
from flushtracker.postgres.shape_resolution import resolve_shapes
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.where import parse_where
from flushtracker.wal.changes import Column, Relation
from tests.support.new_server import running_server
from tests.support.seeds import first_seed, in_turn
from tests.support.server_versions import binaries_of, runs_here
from tests.support.where_comparison import WhereComparison

_RELATION: Final = Relation(1, "public", "t", "full", (Column("id", 23), Column("v", 25), Column("w", 25)))
_TEXTS: Final = ("TITLE", "title", "I", "i", "\u0130", "\u0131", "\u00cc", "\u0389", "x")
# Random ones seldom have a letter that languages map otherwise.
_TESTS: Final = ("lower({}) = 'i'", "{} ILIKE '%i%'", "upper({} || 'i') LIKE '%I'", "lower({}) IN ('k', 'i')")
_REFUSED: Final = {
    "tr-x-icu": ("lower", "upper"),
    "az-x-icu": ("lower", "upper"),
    "lt-x-icu": ("lower", "upper"),
    "el-x-icu": ("upper",),
}


@pytest.fixture(scope="module")
def server() -> Iterator[LocalPostgres]:
    """One with ICU, and with a database whose own collation is Turkish."""
    if not runs_here():
        pytest.skip("the servers with ICU are for another machine")
    with running_server(binaries_of(18)) as server:
        server.execute("CREATE DATABASE turkish LOCALE_PROVIDER icu ICU_LOCALE 'tr' TEMPLATE template0")
        yield server


@pytest.mark.parametrize("collation", in_turn(["tr-x-icu", "und-x-icu", "el-x-icu", "pg_unicode_fast"], 2))
def test_random_conditions_have_the_same_outcomes_in_each_collation(server: LocalPostgres, collation: str) -> None:
    """Or are refused because of it, in those of some languages alone."""
    comparison = WhereComparison(server, first_seed(), row_count=60, collation=collation)
    with closing(comparison):
        done = comparison.run(60)
        for column, test in product(("t1", "v1", "dt1"), _TESTS):
            comparison.compare(test.format(column), done)
    assert done.differences == []
    is_refused = done.counts["refused because of the collation"] > 0
    assert collation in _REFUSED or not is_refused


def _resolve(server: LocalPostgres, where: str, dbname: str = "postgres") -> None:
    shape = ShapeDefinition("s", ("public", "t"), where=where)
    with closing(server.connect(dbname=dbname)) as connection:
        resolve_shapes(connection, None, [shape])


def _create(server: LocalPostgres, collation: str, dbname: str = "postgres") -> None:
    with closing(server.connect(dbname=dbname)) as connection:
        rows(connection, "DROP TABLE IF EXISTS t")
        rows(connection, f'CREATE TABLE t (id int PRIMARY KEY, v text COLLATE "{collation}", w text)')
        rows(connection, "ALTER TABLE t REPLICA IDENTITY FULL")
        for number, text in enumerate(_TEXTS):
            rows(connection, "INSERT INTO t VALUES (%s, %s, %s)", (number, text, text))


@pytest.mark.parametrize("collation", [*_REFUSED, "en-x-icu", "C"])
@pytest.mark.parametrize("case", ["lower", "upper"])
def test_a_function_is_refused_where_the_collation_maps_letters_otherwise(
    server: LocalPostgres, collation: str, case: str
) -> None:
    """Only for the column that has it; another one may be mapped, and the refused one is accepted after the remedy."""
    _create(server, collation)
    where = f"{case}(v) = '{'title' if case == 'lower' else 'TITLE'}'"
    _resolve(server, where.replace("(v)", "(w)"))
    _resolve(server, "v LIKE 'i%' AND v = 'I'")
    if case not in _REFUSED.get(collation, ()):
        _resolve(server, where)
        return
    with pytest.raises(
        ShapeError, match=f"where uses {case}.* of column v of table public.t, and in its collation"
    ) as caught:
        _resolve(server, where)
    server.execute(str(caught.value).partition("as by ")[2].partition(", with")[0])
    _resolve(server, where)


@pytest.mark.parametrize("where", ["lower(w) = 'title'", "w ILIKE 'title'", "upper(w) = 'TITLE'", "w = lower('TITLE')"])
def test_the_collation_of_the_database_counts_for_columns_without_their_own_and_for_literals(
    server: LocalPostgres, where: str
) -> None:
    """What is refused there has another answer: the refusal is not for nothing."""
    _create(server, "C", "turkish")
    with closing(server.connect(dbname="turkish")) as connection:
        found = {number for (number,) in rows(connection, f"SELECT id FROM t WHERE {where}")}  # noqa: S608  our own
    matches = parse_where(where).bind(_RELATION)
    ours = {number for number, text in enumerate(_TEXTS) if text.isascii() and matches({"w": text, "id": "1"})}
    assert found != ours
    with pytest.raises(ShapeError, match=r"and in the database's collation (lower\('I'\) is 'ı'|upper\('i'\) is 'İ')"):
        _resolve(server, where, "turkish")
    if "w = lower" not in where:
        _resolve(server, where.replace("w ILIKE", "v ILIKE").replace("(w)", "(v)"), "turkish")


def test_a_subquery_is_refused_likewise(server: LocalPostgres) -> None:
    """Also if the condition that maps the case lets all rows through without the subquery."""
    _create(server, "tr-x-icu")
    where = "lower(v) = 'title' OR id IN (SELECT id FROM public.t WHERE w = 'x')"
    with pytest.raises(ShapeError, match=r"where uses lower or ILIKE of column v of table public\.t"):
        _resolve(server, where)
    _resolve(server, where.replace("(v)", "(w)"))


_COLUMNS: Final = """
a text COLLATE "C", b text COLLATE "POSIX", v varchar COLLATE "POSIX", c char(3) COLLATE "POSIX", k char(3) COLLATE "C",
aa text[] COLLATE "C", ab text[] COLLATE "POSIX", l letter, i text COLLATE "en-x-icu", d text, e text COLLATE "default",
m mood, "Odd ""b" varchar(9) COLLATE "POSIX"
"""
_VALUES: Final = ", 'x'" * 5 + ", '{x}'" * 2 + ", 'x'" * 6
_CONFLICTS: Final = (
    *("a = b", "a <> b", "a IS DISTINCT FROM b", "a = v", "k = c", "l = b", "i = a", "aa = ab", "aa @> ab"),
    *("aa && ab", "a = ANY(ab)", "a <> ALL(ab)", "a || b = d", "a || d = b", "lower(a || b) = 'x'", "a || b IN ('x')"),
    *("upper(a || b) IS NULL", "a || b ILIKE 'x'", "a::text = b", "l::text = b", "m::text || a = b", 'a = "Odd ""b"'),
    *("NOT (a = 'y' OR a = b)", "a IN (SELECT b FROM public.u)"),
    "d || a NOT IN (SELECT b FROM public.u WHERE a = 'x')",
    *("a IN (SELECT a FROM public.u WHERE v = a)", "d IN (SELECT d FROM public.u WHERE a IN (SELECT b FROM public.t))"),
)  # fmt: skip
_AGREEING: Final = (
    *("a = d", "d = b", "a || d = d", "(a || b) IS NULL", "a = l", "a = ANY(aa)", "m::text = a", "a = 'x' AND b = 'x'"),
    *("(a = 'x') = (b = 'x')", "a = e", "b = v", "c = c", "e || '' = b", "aa = '{x}' AND ab = '{x}'", "d = e"),
    *("a IN (SELECT a FROM public.u)", "d IN (SELECT b FROM public.u WHERE a = 'x')", "d IN (SELECT d FROM public.u)"),
    "(a LIKE 'x%') = (b LIKE 'x%')",
)


def _create_collated(session: Connection) -> None:
    """Tables of columns with several collations, and a row without NULLs, so that everything is compared."""
    for table in ("t", "u"):
        rows(session, f"DROP TABLE IF EXISTS {table}")
        rows(session, f"CREATE TABLE {table} (id int PRIMARY KEY, {_COLUMNS})")
        rows(session, f"ALTER TABLE {table} REPLICA IDENTITY FULL")
        rows(session, f"INSERT INTO {table} VALUES (1{_VALUES})")  # noqa: S608  our own


@pytest.fixture(scope="module", params=[18, *in_turn([14, 15, 16, 17])])
def collated(request: pytest.FixtureRequest) -> Iterator[LocalPostgres]:
    with (
        running_server(binaries_of(request.param)) as server,
        closing(server.connect()) as session,
    ):
        rows(session, "CREATE TYPE mood AS ENUM ('x')")
        rows(session, 'CREATE DOMAIN letter AS text COLLATE "C"')
        _create_collated(session)
        yield server


@pytest.mark.skipif(not runs_here(), reason="the servers with ICU are for another machine")
def test_texts_of_two_collations_are_compared_only_where_the_server_can(collated: LocalPostgres) -> None:
    """It prepares all of these, and has an error for each row of some. The remedy ends it, there and here."""
    with closing(collated.connect()) as session:
        for where in _AGREEING:
            resolve_shapes(session, None, [ShapeDefinition("s", ("public", "t"), where=where)])
            rows(session, f"SELECT FROM t WHERE {where}")
        for where in _CONFLICTS:
            shape = ShapeDefinition("s", ("public", "t"), where=where)
            with pytest.raises(PostgresError, match="could not determine which collation to use"):
                rows(session, f"SELECT FROM t WHERE {where}")
            with pytest.raises(ShapeError, match=r"where compares .*; compare each with literals, or give") as caught:
                resolve_shapes(session, None, [shape])
            statements = str(caught.value).partition("altered column: ")[2].split("; ")
            for statement in statements:
                rows(session, statement)
            rows(session, f"SELECT FROM t WHERE {where}")
            resolve_shapes(session, None, [shape])
            _create_collated(session)
