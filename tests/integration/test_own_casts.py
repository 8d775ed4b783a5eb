"""A cast of the database's own may turn values into texts before they are compared: such conditions are refused."""

from collections.abc import Iterator
from contextlib import closing
from typing import Final

import pytest

from flushtracker.errors import ShapeError
from flushtracker.postgres.connection import Connection, rows
from flushtracker.postgres.shape_resolution import resolve_shapes
from flushtracker.shapes.definition import ShapeDefinition
from tests.support.new_server import running_server

_SETUP: Final = (
    "CREATE TYPE mood AS ENUM ('sad', 'ok')",
    "CREATE DOMAIN words AS text[]",
    "CREATE TABLE t (id int PRIMARY KEY, m mood, d words, a mood[], w text[], v text)",
    "ALTER TABLE t REPLICA IDENTITY FULL",
    "INSERT INTO t VALUES (1, 'ok', '{x}', '{ok}', '{x}', 'ok')",
    "CREATE FUNCTION as_text(mood) RETURNS text IMMUTABLE LANGUAGE sql AS $$ SELECT 'cast'::text $$",
    "CREATE FUNCTION as_text(mood[]) RETURNS text IMMUTABLE LANGUAGE sql AS $$ SELECT 'cast'::text $$",
    "CREATE FUNCTION as_text(text[]) RETURNS text IMMUTABLE LANGUAGE sql AS $$ SELECT 'cast'::text $$",
)


@pytest.fixture(scope="module")
def session() -> Iterator[Connection]:
    with running_server() as server, closing(server.connect()) as opened:
        rows(opened, "CREATE SCHEMA casts")
        rows(opened, "SET search_path = casts, public")
        for statement in _SETUP:
            rows(opened, statement)
        yield opened


def _resolve(session: Connection, where: str) -> None:
    resolve_shapes(session, None, [ShapeDefinition("s", ("casts", "t"), where=where)])


@pytest.mark.parametrize(
    ("source", "how", "where", "column"),
    [
        ("mood", " AS IMPLICIT", "m = 'ok'", "m"),
        ("mood", " AS IMPLICIT", "m = ANY('{ok}')", "m"),
        ("mood", " AS ASSIGNMENT", "m::text || 'x' = 'okx'", "m"),
        ("mood", "", "m::text = 'ok'", "m"),
        ("text[]", " AS IMPLICIT", "d = '{x}'", "d"),
        ("mood[]", " AS IMPLICIT", "a = '{ok}'", "a"),
        ("text[]", " AS IMPLICIT", "w = '{x}'", "w"),
    ],
)
def test_a_condition_that_a_cast_changes_is_refused(
    session: Connection, source: str, how: str, where: str, column: str
) -> None:
    """It is true without the cast, and not with it. Other columns, and this one without the cast, may be read."""
    _resolve(session, where)
    assert rows(session, f"SELECT id FROM t WHERE {where}")  # noqa: S608  our own
    rows(session, f"CREATE CAST ({source} AS text) WITH FUNCTION as_text({source}){how}")
    try:
        assert rows(session, f"SELECT id FROM t WHERE {where}") == []  # noqa: S608  our own
        with pytest.raises(
            ShapeError, match=rf"where reads column {column} .* CAST \((casts\.)?{source[:4]}.* AS text"
        ):
            _resolve(session, where)
        with pytest.raises(ShapeError, match="CAST"):
            _resolve(session, f"id IN (SELECT id FROM casts.t WHERE {where})")  # noqa: S608  likewise
        _resolve(session, "v = 'ok' AND id = 1")
    finally:
        rows(session, f"DROP CAST ({source} AS text)")
    _resolve(session, where)


def test_casts_of_other_types_change_nothing(session: Connection) -> None:
    """As of numbers to text, which many databases have from old releases: their operators are of their own types."""
    wheres = ("id = '1'", "id = 1", "id < 2.5", "id IN (1, 2)", "v = 'ok'", "v || 'x' = 'okx'", "id + 1 = 2")
    before = [rows(session, f"SELECT id FROM t WHERE {where}") for where in wheres]  # noqa: S608  our own
    rows(session, "CREATE CAST (int AS text) WITH INOUT AS IMPLICIT")
    rows(session, "CREATE CAST (numeric AS text) WITH INOUT AS IMPLICIT")
    rows(session, "CREATE CAST (text AS mood) WITH INOUT AS IMPLICIT")
    try:
        for where in (*wheres, "m = 'ok'"):
            _resolve(session, where)
        assert [rows(session, f"SELECT id FROM t WHERE {where}") for where in wheres] == before  # noqa: S608  our own
        assert rows(session, "SELECT id FROM t WHERE m = 'ok' AND m < 'ok' IS FALSE") == [(1,)]
    finally:
        for cast in ("int AS text", "numeric AS text", "text AS mood"):
            rows(session, f"DROP CAST ({cast})")
