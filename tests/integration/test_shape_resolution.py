"""Shapes are completed from the catalog many at a time, as each would be alone, and refused with the same message."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any, Final

import psycopg
import pytest

from flushtracker.errors import FlushtrackerError, PostgresError, ShapeError
from flushtracker.local.postgres import LocalPostgres
from flushtracker.postgres.connection import rows
from flushtracker.postgres.prepared_where import refused_conditions, type_names
from flushtracker.postgres.server_tables import ServerTables
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.shape import Shape
from flushtracker.wal.changes import Column, Relation, UserType

_TABLES: Final = (
    "CREATE TABLE plain (id int PRIMARY KEY, n int NOT NULL, s text)",
    "CREATE TABLE whole (b text NOT NULL UNIQUE, a int, PRIMARY KEY (a, b))",
    "ALTER TABLE whole REPLICA IDENTITY FULL",
    "CREATE TABLE root (id int, part int, s text, PRIMARY KEY (part, id)) PARTITION BY LIST (part)",
    "CREATE TABLE root_1 PARTITION OF root FOR VALUES IN (1)",
    "CREATE TABLE root_2 (s text, part int NOT NULL, id int NOT NULL, PRIMARY KEY (part, id))",
    "ALTER TABLE root ATTACH PARTITION root_2 FOR VALUES IN (2)",
    "CREATE TABLE unpublished (id int PRIMARY KEY)",
    "CREATE TABLE filtered (id int PRIMARY KEY, n int)",
    "CREATE PUBLICATION listed FOR TABLE plain, whole, root, filtered (id)",
)
PLAIN: Final = ("public", "plain")
WHOLE: Final = ("public", "whole")
ROOT: Final = ("public", "root")
_GOOD: Final = (
    ShapeDefinition("all", PLAIN),
    ShapeDefinition("some", PLAIN, where="id = 1"),
    ShapeDefinition("others", PLAIN, where="id = 2"),
    ShapeDefinition("quoted", PLAIN, where="id = '4'"),
    ShapeDefinition("range", PLAIN, where="id BETWEEN '1' AND '9'"),
    ShapeDefinition("two columns", PLAIN, columns=("s", "id"), where="id = 3"),
    ShapeDefinition("whole", WHOLE, where="b = 'x'"),
    ShapeDefinition("whole by b", WHOLE, where="b = 'y'", primary_key=("b",)),
    ShapeDefinition("root", ROOT),
    ShapeDefinition("root 1", ROOT, where="part = 1"),
    ShapeDefinition("root 2", ROOT, where="part = 2"),
    ShapeDefinition("one partition", ROOT, where="part = 1", partitions=(("public", "root_1"),)),
    ShapeDefinition("a leaf", ("public", "root_1"), where="part = 1"),
    ShapeDefinition("not published", ("public", "unpublished")),
)
_REFUSED: Final = (
    ShapeDefinition("other literal", PLAIN, where="id = 'x'"),
    ShapeDefinition("other range", PLAIN, where="id BETWEEN '1' AND 'z'"),
    ShapeDefinition("no unique key", WHOLE, where="b = 'x'", primary_key=("a",)),
    ShapeDefinition("no key column", PLAIN, where="n = 1"),
    ShapeDefinition("no column", PLAIN, columns=("id", "z")),
    ShapeDefinition("no table", ("public", "none")),
    ShapeDefinition("long name", ("public", "plain" + "x" * 60)),
    ShapeDefinition("some columns", ("public", "filtered")),
    ShapeDefinition("no sql", WHOLE, where="a ="),
)


class CountedCursor(psycopg.ClientCursor[Any]):
    """Counts the statements of all connections."""

    count = 0

    def execute(self, *arguments: Any, **keywords: Any) -> Any:
        type(self).count += 1
        return super().execute(*arguments, **keywords)


@pytest.fixture
def tables(postgres: LocalPostgres) -> Iterator[ServerTables]:
    postgres.execute(*_TABLES)
    with closing(postgres.connect()) as connection:
        connection.cursor_factory = CountedCursor
        yield ServerTables(connection, "listed")


def outcome(tables: ServerTables, *definitions: ShapeDefinition) -> Any:
    try:
        return tables.resolve(definitions)
    except FlushtrackerError as error:
        return type(error), str(error)


def test_shapes_are_completed_together_as_each_alone(tables: ServerTables) -> None:
    """Also where several have the same form, so that only the first of them is bound to the table."""
    alone = [outcome(tables, definition) for definition in _GOOD]
    assert [[each] for each in tables.resolve(_GOOD)] == alone
    assert [[each] for each in tables.resolve(_GOOD[::-1])] == alone[::-1]
    keys = {definition.id: definition.primary_key for definition, _ in tables.resolve(_GOOD)}
    assert (keys["all"], keys["whole"]) == (("id",), ("a", "b"))
    assert keys["root"] == ("id", "part")


def test_a_shape_among_many_is_refused_as_it_would_be_alone(tables: ServerTables) -> None:
    """With its own id, whatever shapes of its form were accepted before; the first one that is wrong is named."""
    for definition in _REFUSED:
        kind, message = outcome(tables, definition)
        assert issubclass(kind, ShapeError | PostgresError)
        assert f"shape '{definition.id}'" in message
        good = [replace(each, id=f"good {each.id}") for each in _GOOD]
        assert outcome(tables, *good, definition, *_REFUSED) == (kind, message)


def test_a_partition_that_is_being_detached_does_not_count(tables: ServerTables, postgres: LocalPostgres) -> None:
    """A DETACH CONCURRENTLY that was interrupted stays pending, and no query of the table has the partition's rows.

    So it does not matter that the server sends too little of the partition's changes for the shape.
    """
    shape = ShapeDefinition("some", ROOT, where="s = 'x'")
    postgres.execute("ALTER TABLE root REPLICA IDENTITY FULL", "ALTER TABLE root_1 REPLICA IDENTITY FULL")
    kind, message = outcome(tables, shape)
    assert issubclass(kind, ShapeError)
    assert "root_2" in message
    with closing(postgres.connect()) as blocker, closing(postgres.connect()) as session:
        rows(blocker, "BEGIN")
        rows(blocker, "SELECT FROM root")
        rows(session, "SET statement_timeout = '1s'")
        with pytest.raises(PostgresError, match="timeout"):
            rows(session, "ALTER TABLE root DETACH PARTITION root_2 CONCURRENTLY")
    ((_, table),) = tables.resolve([shape])
    assert [partition.table for partition in table.partitions] == [("public", "root_1")]


def test_the_catalog_is_read_once_for_all_shapes(tables: ServerTables) -> None:
    """Five hundred shapes took over five thousand statements."""
    CountedCursor.count = 0
    tables.resolve([replace(shape, id=f"{shape.id} {number}") for shape in _GOOD for number in range(100)])
    # One of them is about the collations, once in a connection.
    assert 0 < CountedCursor.count < 22


def test_a_condition_that_only_the_server_refuses_is_refused_before_it_is_taken(
    tables: ServerTables, postgres: LocalPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its message is the server's. Neither a lock nor a lacking privilege on the table matters, and nothing is left."""
    monkeypatch.setattr(Shape, "faults", lambda *_: [])
    right = ShapeDefinition("right", PLAIN, where="id IN (1, 2) -- comment")
    wrong = ShapeDefinition("wrong", PLAIN, where="id IN (1, 'x')")
    with closing(postgres.connect()) as blocker:
        rows(blocker, "BEGIN")
        rows(blocker, "LOCK TABLE plain")
        kind, message = outcome(tables, right, wrong)
        assert kind is ShapeError
        assert "shape 'wrong': PostgreSQL does not prepare it" in message.replace(" on public.plain", "")
        assert 'invalid input syntax for type integer: "x"' in message
        assert [definition.id for definition, _ in tables.resolve([right])] == ["right"]


def test_conditions_are_prepared_by_a_role_that_may_read_no_table(postgres: LocalPostgres) -> None:
    """A type whose schema it may not use is another matter: then nobody asks the server, and nothing is refused."""
    postgres.execute(
        "CREATE SCHEMA closed", "CREATE TYPE closed.mood AS ENUM ('ok')", "CREATE ROLE stranger",
        "CREATE TABLE closed.t (id int PRIMARY KEY, feel closed.mood)",
    )  # fmt: skip
    plain = Relation(1, "closed", "t", "full", (Column("id", 23), Column("Name", 25)))
    with closing(postgres.connect()) as connection:
        rows(connection, "SET search_path = pg_catalog, pg_temp")
        rows(connection, "SET ROLE stranger")
        wheres = ["id = 1", "id = 'x'", "\"Name\" LIKE 'a' -- b", "id = 99999999999999999999999"]
        refused = refused_conditions(connection, plain, wheres, type_names(connection, [plain]))
        assert list(refused) == ["id = 'x'"]
        assert "SQLSTATE 22P02" in refused["id = 'x'"]
        ((oid,),) = rows(connection, "SELECT oid::bigint FROM pg_type WHERE typname = 'mood'")
        mood = UserType(oid, "closed", "mood", "enum", ("ok",))
        typed = Relation(1, "closed", "t", "full", (Column("id", 23), Column("feel", oid, user_type=mood)))
        names = type_names(connection, [typed])
        assert refused_conditions(connection, typed, ["feel = 'ok'::mood", "id = 'x'"], names) in ({}, {"id = 'x'": ""})
        assert rows(connection, "SELECT count(*) FROM pg_prepared_statements") == [(0,)]
