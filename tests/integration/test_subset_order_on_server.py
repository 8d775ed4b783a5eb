"""The order of a subset's rows is PostgreSQL's: the same orders of the same values, on a real server, or a refusal."""

from collections.abc import Collection, Iterable, Iterator
from contextlib import closing
from itertools import product
from random import Random
from typing import Final

import pytest

from flushtracker.local.postgres import LocalPostgres
from flushtracker.postgres.connection import Connection, connect, rows
from flushtracker.postgres.table_bindings import read_bindings
from flushtracker.serve.refusals import BadRequestError
from flushtracker.serve.subset.row_order import RowOrder
from flushtracker.shapes.bound_relation import relation_of
from flushtracker.shapes.where import parse_where
from flushtracker.wal.changes import Relation
from tests.support.new_server import running_server
from tests.support.seeds import in_turn
from tests.support.server_versions import binaries_of, runs_here

_TEXTS: Final = (
    "",
    " ",
    "a",
    "A",
    "a ",
    "aa",
    "Ab",
    "z",
    "Z",
    "é",
    "É",
    "ÿ",
    "\uffff",
    "\U00010000",
    "ß",
    "10",
    "9",
    "-1",
)
_ORDERED: Final[dict[str, tuple[str, ...]]] = {
    "smallint": ("-32768", "-1", "0", "9", "10", "32767"),
    "integer": ("-2147483648", "-10", "-9", "0", "9", "10", "2147483647"),
    "bigint": ("-9223372036854775808", "-1", "0", "9007199254740993", "9007199254740992", "9223372036854775807"),
    "numeric": (
        "NaN",
        "Infinity",
        "-Infinity",
        "0",
        "-0.0",
        "1.0",
        "1.00",
        "0.1",
        "1e100",
        "-1e100",
        "1e-100",
        "10",
        "9",
    ),
    "real": ("NaN", "Infinity", "-Infinity", "0", "-0", "0.1", "1e-45", "3.4e38", "-3.4e38", "10", "9"),
    "double precision": ("NaN", "Infinity", "-Infinity", "0", "-0", "0.1", "5e-324", "1.7e308", "-1.7e308", "10", "9"),
    "boolean": ("true", "false"),
    "uuid": (
        "00000000-0000-0000-0000-000000000000",
        "ffffffff-ffff-ffff-ffff-ffffffffffff",
        "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11",
        "9fffffff-9c0b-4ef8-bb6d-6bb9bd380a11",
    ),
    "date": ("infinity", "-infinity", "2024-02-29", "10000-01-01", "0044-03-15 BC", "4713-01-01 BC", "0001-01-01"),
    "timestamp": (
        *("infinity", "-infinity", "2024-02-29 00:00", "2024-02-29 00:00:00.000001", "294276-12-31 23:59:59"),
        *("0044-03-15 10:00 BC", "0044-03-15 09:00 BC", "10000-01-01 00:00"),
    ),
    "timestamptz": (
        *("infinity", "-infinity", "2024-02-29 00:00+00", "2024-02-29 00:00+05", "2024-02-28 23:00-02"),
        *("0044-03-15 10:00+00 BC", "1883-11-18 12:03:57+00", "1800-01-01 00:00+00"),
    ),
    "time": ("00:00", "24:00", "23:59:59.999999", "09:00", "10:00"),
    "interval": (
        *("1 mon", "30 days", "720:00:00", "29 days 24:00:00", "-1 mon", "1 year", "360 days", "0"),
        *("1 mon -1 day", "-00:00:00.000001", "178000000 years", "1 day", "24:00:00", "00:00:01"),
    ),
    "mood": ("sad", "worse", "fine", "zest", "Able"),
    "positive": ("1", "9", "10", "100"),
    'text COLLATE "C"': _TEXTS,
    'varchar(9) COLLATE "C"': _TEXTS,
    'char(3) COLLATE "C"': ("", "a", "a  ", "ab", "A", "é", "z\t", "z"),
    "text": _TEXTS,
    "varchar": _TEXTS,
}
_REFUSED: Final = (
    *("bytea", "jsonb", "json", "xml", "int[]", "text[]", "uuid[]", "mood[]", "int4range", "inet", "cidr", "macaddr"),
    *("timetz", "money", "bit(3)", "name", '"char"', "oid", "point", "pair", "tsvector", "pg_lsn"),
)
_TYPES: Final = (
    "CREATE TYPE mood AS ENUM ('sad', 'fine', 'Able')",
    "ALTER TYPE mood ADD VALUE 'worse' BEFORE 'sad'",
    "ALTER TYPE mood ADD VALUE 'zest' AFTER 'sad'",
    "CREATE DOMAIN positive AS int CHECK (VALUE > 0)",
    "CREATE TYPE pair AS (a int, b int)",
)
_WAYS: Final = [f"{way}{nulls}" for way in ("", " ASC", " DESC") for nulls in ("", " NULLS FIRST", " NULLS LAST")]


@pytest.fixture(params=in_turn([None, 14, 18]) if runs_here() else [None])
def server(request: pytest.FixtureRequest, postgres: LocalPostgres) -> Iterator[LocalPostgres]:
    if request.param is None:
        yield postgres
        return
    with running_server(binaries_of(request.param)) as found:
        yield found


def test_rows_are_in_the_servers_order_of_each_type(server: LocalPostgres) -> None:
    """Ascending and descending, with NULL at either end, and by two columns; text by its bytes, as it asks for."""
    rng = Random(1)  # noqa: S311  reproducible
    with closing(connect(server.options)) as connection:
        rows(connection, "SET search_path = public, pg_catalog")
        for statement in _TYPES:
            rows(connection, statement)
        relation, names = _table(connection, rng)
        for (name, sql), way in product(names.items(), _WAYS):
            collate = ' COLLATE "C"' if sql.startswith(("text", "varchar", "char")) else ""
            _compare(connection, relation, f'"{name}"{collate}{way}')
        plain = [name for name, sql in names.items() if not sql.startswith(("text", "varchar", "char"))]
        for _ in range(50):
            terms = [f"{name}{rng.choice(_WAYS)}" for name in rng.sample(plain, 2)]
            _compare(connection, relation, ", ".join(terms))


def _table(connection: Connection, rng: Random) -> tuple[Relation, dict[str, str]]:
    """A table of all values, each beside random ones of the others; its columns' types by name."""
    names = {f"c{number}": sql for number, sql in enumerate(_ORDERED)}
    columns = ", ".join(f"{name} {sql}" for name, sql in names.items())
    rows(connection, f"CREATE TABLE ordered (id text PRIMARY KEY, {columns})")
    for number in range(120):
        values = [rng.choice((*_ORDERED[sql], None)) for sql in names.values()]
        places = ", ".join(["%s"] * (len(values) + 1))
        rows(connection, f"INSERT INTO ordered VALUES ({places})", (f"{number:03}", *values))  # noqa: S608  our own names
    return _relation(connection), names


def _relation(connection: Connection) -> Relation:
    ((oid,),) = rows(connection, "SELECT 'ordered'::regclass::oid::bigint")
    return relation_of(read_bindings(connection, None, [oid])[oid])


def _compare(connection: Connection, relation: Relation, order: str, by_bytes: Collection[str] = ()) -> None:
    found = RowOrder.of(order, relation, by_bytes=by_bytes)
    columns = [column.name for column in relation.columns]
    texts = ", ".join(f"{name}::text" for name in columns)
    given = rows(connection, f"SELECT {texts} FROM ordered")  # noqa: S608  our own names
    ordered = found.sort([found.row(str(row[0]), "", dict(zip(columns, row, strict=True))) for row in given])
    expected = rows(connection, f'SELECT id FROM ordered ORDER BY {order}, id COLLATE "C"')  # noqa: S608
    assert [row.key for row in ordered] == [key for (key,) in expected], order


def test_a_type_whose_order_is_not_known_is_refused_by_name(server: LocalPostgres) -> None:
    """As is text without COLLATE, unless its collation is known to order by bytes."""
    with closing(connect(server.options)) as connection:
        rows(connection, "SET search_path = public, pg_catalog")
        for statement in _TYPES:
            rows(connection, statement)
        refused = {f"r{number}": sql for number, sql in enumerate((*_REFUSED, "text", "char(3)"))}
        columns = ", ".join(f"{name} {sql}" for name, sql in refused.items())
        rows(connection, f"CREATE TABLE ordered (id int PRIMARY KEY, {columns})")
        relation = _relation(connection)
    for name, sql in refused.items():
        with pytest.raises(BadRequestError, match=f'names column "{name}"'):
            RowOrder.of(f"id, {name} DESC", relation, by_bytes=())
        if sql in _REFUSED:
            with pytest.raises(BadRequestError, match=f'column "{name}"'):
                RowOrder.of(f'{name} COLLATE "C"', relation, by_bytes=())


_COLLATIONS: Final = {"C": True, "POSIX": True, "ucs_basic": True, "C.utf8": True, "pg_c_utf8": True, "en-x-icu": False}
"""Whether columns of these are ordered by bytes; a server lacks some."""
_DATABASES: Final = (
    ("", "ENCODING 'UTF8' LC_COLLATE 'C' LC_CTYPE 'C'", True),
    ("", "ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'", False),
    ("pg_c_utf8", "ENCODING 'UTF8' LOCALE_PROVIDER builtin BUILTIN_LOCALE 'C.UTF-8' LOCALE 'C'", True),
    ("en-x-icu", "ENCODING 'UTF8' LOCALE_PROVIDER icu ICU_LOCALE 'en-US' LOCALE 'C'", False),
)
"""What a server must have for a database, its options, and whether its own collation orders by bytes."""


def test_text_is_in_the_servers_order_where_its_collation_is_of_bytes(server: LocalPostgres) -> None:
    """By each collation, by that of a domain, and by the default of a database; others are not taken for such."""
    rng, seen = Random(1), set[bool]()  # noqa: S311  reproducible
    with closing(connect(server.options)) as connection:
        there = {name for (name,) in rows(connection, "SELECT collname FROM pg_collation")}
    databases = [(options, is_so) for needed, options, is_so in _DATABASES if not needed or needed in there]
    provided = _version(server) >= _PROVIDERS_SINCE
    for number, (options, is_so) in enumerate(databases):
        if "PROVIDER" in options and not provided:
            continue
        server.execute(f"CREATE DATABASE texts_{number} TEMPLATE template0 {options}")
        with closing(connect({**server.options, "dbname": f"texts_{number}"})) as connection:
            is_utf8 = "UTF8" in options
            wanted = {"text": is_so, "char(3)": is_so, "letter": is_utf8}
            own = {name: is_of for name, is_of in _COLLATIONS.items() if is_utf8 and name in there}
            wanted |= {f'text COLLATE "{name}"': is_of for name, is_of in own.items()}
            rows(connection, "SET search_path = public, pg_catalog")
            rows(connection, 'CREATE DOMAIN letter AS text COLLATE "C"')
            found = _bytewise(connection, rng, wanted, [each for each in _TEXTS if is_utf8 or each.isascii()])
            assert found == wanted, options
            seen |= {*found.values()}
    assert seen == {True, False}


@pytest.mark.skipif(not runs_here(), reason="only its servers have collations of ICU")
def test_column_that_is_given_a_collation_of_bytes_as_advised_can_be_ordered_by() -> None:
    with running_server(binaries_of(18)) as server, closing(connect(server.options)) as connection:
        rows(connection, "SET search_path = public, pg_catalog")
        rows(connection, 'CREATE TABLE ordered (id int PRIMARY KEY, name text COLLATE "en-x-icu")')
        relation = _relation(connection)
        with pytest.raises(BadRequestError, match="give the column that collation by ALTER TABLE"):
            RowOrder.of("name", relation, by_bytes=_by_bytes(connection))
        rows(connection, 'ALTER TABLE ordered ALTER name TYPE text COLLATE "C"')
        RowOrder.of("name", relation, by_bytes=_by_bytes(connection))


def _compare_where(connection: Connection, relation: Relation, where: str, by_bytes: Collection[str]) -> None:
    matches = parse_where(where).bind(relation, by_bytes)
    columns = [column.name for column in relation.columns]
    texts = ", ".join(f"{name}::text" for name in columns)
    judged = rows(connection, f"SELECT {where}, {texts} FROM ordered")  # noqa: S608  our own names
    assert [matches(dict(zip(columns, row, strict=True))) for _, *row in judged] == [row[0] for row in judged], where


def _by_bytes(connection: Connection) -> set[str]:
    ((oid,),) = rows(connection, "SELECT 'ordered'::regclass::oid::bigint")
    return {column.name for column in read_bindings(connection, None, [oid])[oid].columns if column.is_bytewise}


def _version(server: LocalPostgres) -> int:
    with closing(connect(server.options)) as connection:
        return connection.server_version


_PROVIDERS_SINCE: Final = 150_000


def _bytewise(connection: Connection, rng: Random, types: Iterable[str], texts: list[str]) -> dict[str, bool]:
    """Whether columns of these types are taken for ordered by bytes; those that are have the server's order."""
    names = {sql: f"c{number}" for number, sql in enumerate(types)}
    rows(
        connection, f"CREATE TABLE ordered (id text PRIMARY KEY, {', '.join(f'{n} {sql}' for sql, n in names.items())})"
    )
    for number in range(60):
        values = [rng.choice(texts)[:3] for _ in names]
        places = ", ".join(["%s"] * (len(values) + 1))
        rows(connection, f"INSERT INTO ordered VALUES ({places})", (f"{number:03}", *values))  # noqa: S608  our own names
    relation, found = _relation(connection), _by_bytes(connection)
    for name in found - {"id"}:
        for way in _WAYS:
            _compare(connection, relation, f"{name}{way}", found)
        for symbol, text in product(("<", "<=", ">", ">="), texts):
            _compare_where(connection, relation, f"{name} {symbol} '{text[:3]}'", found)
    return {sql: name in found for sql, name in names.items()}
