"""The rows of a shape's query on a real server, as ``flushtracker demo`` compares them with the shape's log."""

import pytest

from flushtracker.errors import PostgresError
from flushtracker.local.postgres import LocalPostgres
from flushtracker.postgres.shape_rows import shape_rows
from flushtracker.shapes.definition import ShapeDefinition


def test_rows_are_what_the_replication_stream_sends(postgres: LocalPostgres) -> None:
    """Quoted names, a chosen condition, NULL, and types whose cast to text is not what they are sent as."""
    postgres.execute(
        'CREATE SCHEMA "Odd s"',
        'CREATE TABLE "Odd s"."T%t" (id int PRIMARY KEY, "a ""b%c" text, f boolean, c char(4), n numeric, b bytea, '
        "l boolean[], t timestamptz)",
        """INSERT INTO "Odd s"."T%t" VALUES (1, 'it''s 100%', true, 'ab', 1.50, '\\xff', '{t,f}', 'epoch'),
        (2, NULL, false, NULL, NULL, NULL, NULL, NULL), (3, '100 of', NULL, '', NULL, '', '{}', 'infinity')""",
    )
    connection = postgres.connect()
    table = ("Odd s", "T%t")
    try:
        where = '"a ""b%c" LIKE \'%100\\%\' OR id = 2'
        first, second = sorted(shape_rows(connection, ShapeDefinition("s", table, where=where)), key=repr)
        assert {**first, "t": None} == {
            "id": "1",
            'a "b%c': "it's 100%",
            "f": "t",
            "c": "ab  ",
            "n": "1.50",
            "b": "\\xff",
            "l": "{t,f}",
            "t": None,
        }
        assert (first["t"] or "")[:10] in {"1970-01-01", "1969-12-31"}
        assert second == {**dict.fromkeys(first), "id": "2", "f": "f"}
        chosen = shape_rows(connection, ShapeDefinition("s", table, ("f", "id"), "id >= 2"))
        assert sorted(chosen, key=repr) == [{"f": "f", "id": "2"}, {"f": None, "id": "3"}]
        with pytest.raises(PostgresError, match="nowhere"):
            shape_rows(connection, ShapeDefinition("s", ("public", "nowhere")))
        assert len(shape_rows(connection, ShapeDefinition("s", table))) == 3
    finally:
        connection.close()
