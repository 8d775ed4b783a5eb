"""Which keys are accepted when a shape is added, by a real catalog."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

import pytest

from flushtracker.errors import PostgresError, ShapeError
from flushtracker.local.postgres import LocalPostgres
from flushtracker.postgres.connection import rows
from flushtracker.postgres.server_tables import ServerTables
from flushtracker.shapes.definition import ShapeDefinition
from tests.support.new_server import running_server

_FULL: Final = "ALTER TABLE t REPLICA IDENTITY FULL"
_TABLE: Final = "CREATE TABLE t (id int NOT NULL, region text NOT NULL, v text)"
_NO_KEY: Final = "table public.t has no key: it needs a primary key, or a valid unique index over NOT NULL columns"


@pytest.fixture(scope="module")
def server() -> Iterator[LocalPostgres]:
    with running_server() as server:
        server.execute("CREATE PUBLICATION shapes FOR ALL TABLES")
        yield server


@pytest.fixture
def tables(server: LocalPostgres) -> Iterator[ServerTables]:
    connection = server.connect()
    yield ServerTables(connection, "shapes")
    connection.close()


def run(server: LocalPostgres, *statements: str) -> None:
    """Run the statements, of which one may fail on purpose, in a database without the table."""
    server.execute("DROP TABLE IF EXISTS t")
    connection = server.connect()
    for statement in statements:
        with suppress(PostgresError):
            rows(connection, statement)
    connection.close()


@pytest.mark.parametrize(
    "statements",
    [
        (_TABLE, _FULL),
        (_TABLE, "ALTER TABLE t ADD PRIMARY KEY (id) DEFERRABLE INITIALLY DEFERRED", _FULL),
        (_TABLE, "ALTER TABLE t ADD UNIQUE (id) DEFERRABLE", _FULL),
        (_TABLE, "CREATE UNIQUE INDEX ON t (id) WHERE id > 5", _FULL),
        (_TABLE, "CREATE UNIQUE INDEX ON t (abs(id))", _FULL),
        (_TABLE, "CREATE UNIQUE INDEX ON t (id, abs(id))", _FULL),
        (_TABLE, "CREATE INDEX ON t (id)", _FULL),
        (_TABLE, "CREATE UNIQUE INDEX ON t (v)", _FULL),
        (_TABLE, "CREATE UNIQUE INDEX ON t (v) NULLS NOT DISTINCT", _FULL),
        (_TABLE, "INSERT INTO t VALUES (1, 'eu'), (1, 'eu')", "CREATE UNIQUE INDEX CONCURRENTLY u ON t (id)", _FULL),
        (
            _TABLE,
            "CREATE UNIQUE INDEX u ON t (id)",
            "ALTER TABLE t REPLICA IDENTITY USING INDEX u",
            "DROP INDEX u",
        ),
        (
            "CREATE TABLE t (id int, region text) PARTITION BY LIST (region)",
            "CREATE TABLE t_a PARTITION OF t FOR VALUES IN ('eu')",
            "CREATE TABLE t_b PARTITION OF t FOR VALUES IN ('us')",
            "ALTER TABLE t_a ADD PRIMARY KEY (id)",
            "ALTER TABLE t_b ADD PRIMARY KEY (id)",
        ),
        (
            "CREATE TABLE t (id int NOT NULL) PARTITION BY RANGE (id)",
            "CREATE TABLE t_a PARTITION OF t FOR VALUES FROM (0) TO (9)",
            "CREATE UNIQUE INDEX u ON ONLY t (id)",
            "ALTER TABLE t_a REPLICA IDENTITY FULL",
        ),
        (
            "CREATE TABLE t (id int, v text)",
            "INSERT INTO t VALUES (NULL, 'a'), (NULL, 'b')",
            "CREATE UNIQUE INDEX ON t (id)",
            # Since PostgreSQL 18; an error before.
            "ALTER TABLE t ADD CONSTRAINT n NOT NULL id NOT VALID",
            _FULL,
        ),
    ],
    ids=[
        *("no index", "deferrable primary key", "deferrable unique", "partial index"),
        *("index over an expression", "column and expression", "index that is not unique", "nullable column"),
        *("nulls not distinct", "index that failed to build", "identity index dropped"),
        *("only the partitions have keys", "only the root's own index, not complete", "not null not valid"),
    ],
)
def test_a_table_without_a_key_is_refused(
    tables: ServerTables, server: LocalPostgres, statements: tuple[str, ...]
) -> None:
    """Rows with the same key, or with equal values, would be one row of the shape."""
    run(server, *statements)
    with pytest.raises(ShapeError, match=_NO_KEY):
        tables.resolve([ShapeDefinition("s", ("public", "t"))])


@pytest.mark.parametrize("key", [("region",), ("v", "region")])
def test_a_named_key_that_several_rows_may_have_is_refused(
    tables: ServerTables, server: LocalPostgres, key: tuple[str, ...]
) -> None:
    """The message says what the table needs."""
    run(server, _TABLE, "ALTER TABLE t ADD PRIMARY KEY (id)", _FULL)
    with pytest.raises(ShapeError, match=rf"^shape 's': the key of table public.t \({', '.join(key)}\) may be that of"):
        tables.resolve([ShapeDefinition("s", ("public", "t"), primary_key=key)])


@pytest.mark.parametrize(
    ("statements", "named", "expected"),
    [
        (("ALTER TABLE t ADD PRIMARY KEY (region, id)",), None, ("id", "region")),
        (("ALTER TABLE t ADD PRIMARY KEY (region, id)", _FULL), None, ("region", "id")),
        (("ALTER TABLE t ADD PRIMARY KEY (id)", _FULL), ("region", "id"), ("region", "id")),
        (("CREATE UNIQUE INDEX ON t (id)", _FULL), None, ("id",)),
        (("CREATE UNIQUE INDEX ON t (id) INCLUDE (v)", "ALTER TABLE t REPLICA IDENTITY NOTHING"), None, ("id",)),
        (
            (
                "ALTER TABLE t ADD PRIMARY KEY (id)",
                "CREATE UNIQUE INDEX u ON t (region)",
                "ALTER TABLE t REPLICA IDENTITY USING INDEX u",
            ),
            None,
            ("region",),
        ),
        (
            (
                "ALTER TABLE t ADD PRIMARY KEY (region) DEFERRABLE",
                "CREATE UNIQUE INDEX u ON t (id)",
                "ALTER TABLE t REPLICA IDENTITY USING INDEX u",
            ),
            None,
            ("id",),
        ),
    ],
    ids=[
        *("in the table's order", "in the index's order under FULL", "more columns than needed"),
        *("unique index", "included columns are no key", "the replica identity's"),
        "deferrable primary key beside it",
    ],
)
def test_the_key_is_one_that_is_unique_and_sent(
    tables: ServerTables,
    server: LocalPostgres,
    statements: tuple[str, ...],
    named: tuple[str, ...] | None,
    expected: tuple[str, ...],
) -> None:
    """The primary key first, unless old rows lack it."""
    run(server, _TABLE, *statements)
    ((definition, binding),) = tables.resolve([ShapeDefinition("s", ("public", "t"), primary_key=named)])
    assert definition.primary_key == expected
    assert binding.key == binding.keys[0].columns


@pytest.mark.parametrize(
    ("columns", "fields", "message"),
    [
        ("v text COLLATE ci", {"where": "v = 'a'"}, "where reads column v of table public.t, which has a nondetermini"),
        ("v email", {"where": "v LIKE 'a%'"}, "where reads column v of table public.t, which has a nondeterministic"),
        ("v text[] COLLATE ci", {"where": "v @> '{a}'"}, "where reads column v of table public.t, which has a nondet"),
        ("v email[]", {"where": "v IS NULL"}, "where reads column v of table public.t, which has a nondeterministic"),
        ("v regclass", {}, "column v of table public.t has values of type regclass, whose texts change"),
        ("v regrole[]", {}, "column v of table public.t has values of type regrole\\[\\]"),
        ("v place", {}, "column v of table public.t has values of type regclass"),
        ("v places", {}, "column v of table public.t has values of type regclass"),
        ("v int, r regproc", {"columns": ("id", "v"), "where": "r IS NULL"}, "column r of table public.t has values"),
        ("v int, g int GENERATED ALWAYS AS (1) STORED", {"where": "g = 1"}, "column g of table public.t is generated"),
        ("v int, g int GENERATED ALWAYS AS (1) STORED", {"columns": ("id", "g")}, "column g of table public.t is gen"),
        ("v int, g int GENERATED ALWAYS AS (1) VIRTUAL", {"columns": ("id", "g")}, "column g of table public.t is gen"),
        ("v text COLLATE ci", {}, None),
        ("v text COLLATE ci", {"columns": ("id", "v"), "where": "id = 1"}, None),
        ("v regclass", {"columns": ("id",)}, None),
        ("v int, g int GENERATED ALWAYS AS (1) STORED", {}, None),
    ],
)
def test_columns_whose_values_do_not_say_what_a_query_finds_are_refused(
    tables: ServerTables, server: LocalPostgres, columns: str, fields: dict[str, Any], message: str | None
) -> None:
    """Their texts do not decide what is equal, or depend on the catalog, or are not sent."""
    run(
        server,
        "CREATE COLLATION ci (provider = libc, locale = 'C')",
        # The server is built without ICU, which alone has such collations.
        "UPDATE pg_collation SET collisdeterministic = false WHERE collname = 'ci'",
        "CREATE DOMAIN email AS text COLLATE ci",
        "CREATE DOMAIN place AS regclass",
        "CREATE TYPE places AS (a int, b place[])",
        f"CREATE TABLE t (id int PRIMARY KEY, {columns})",
        _FULL,
    )
    definition = ShapeDefinition("s", ("public", "t"), **fields)
    if message is None:
        tables.resolve([definition])
        return
    with pytest.raises(ShapeError, match=f"^shape 's': {message}"):
        tables.resolve([definition])
