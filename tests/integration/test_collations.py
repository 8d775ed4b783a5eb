"""``lower``, ``upper`` and ILIKE mean what they mean on the server under the collation of a column, or are refused."""

import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import product
from pathlib import Path
from typing import Final

import pytest

from flushtracker.errors import ShapeError
from flushtracker.local.postgres import LocalPostgres
from flushtracker.postgres.connection import rows
from flushtracker.postgres.shape_resolution import resolve_shapes
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.where import parse_where
from flushtracker.wal.changes import Column, Relation
from tests.support.new_server import new_server
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
    with tempfile.TemporaryDirectory(prefix="flushtracker-", ignore_cleanup_errors=True) as name:
        Path(name).chmod(0o755)
        with new_server(Path(name) / "server", binaries_of(18)) as server:
            server.execute("CREATE DATABASE turkish LOCALE_PROVIDER icu ICU_LOCALE 'tr' TEMPLATE template0")
            yield server


@pytest.mark.parametrize("collation", ["tr-x-icu", "el-x-icu", "und-x-icu", "pg_unicode_fast"])
def test_random_conditions_have_the_same_outcomes_in_each_collation(server: LocalPostgres, collation: str) -> None:
    """Or are refused because of it, in those of some languages alone."""
    comparison = WhereComparison(server, time.time_ns() % 2**32, row_count=60, collation=collation)
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
    """Of the column that has it; another column may be mapped, and what is refused is accepted after the remedy."""
    _create(server, collation)
    where = f"{case}(v) = '{'title' if case == 'lower' else 'TITLE'}'"
    _resolve(server, where.replace("(v)", "(w)"))
    _resolve(server, "v LIKE 'i%' AND v = 'I'")
    if case not in _REFUSED.get(collation, ()):
        _resolve(server, where)
        return
    with pytest.raises(ShapeError, match=f"where uses {case}.* of column v of table public.t, and in its collation"):
        _resolve(server, where)
    server.execute('ALTER TABLE public.t ALTER v TYPE text COLLATE "C"')
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
