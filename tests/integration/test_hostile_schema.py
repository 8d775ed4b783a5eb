"""A role that may create objects in a schema cannot run code as the role of capture, status or the snapshots' job."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from threading import Event
from typing import Final

import pytest
from pyspark.sql import SparkSession

from flushtracker.cli import main
from flushtracker.errors import PostgresError
from flushtracker.local.free_ports import free_port
from flushtracker.local.postgres import LocalPostgres
from flushtracker.postgres.connection import connect, connect_for_replication, connect_for_snapshot, rows
from flushtracker.postgres.publication import Publication
from flushtracker.postgres.slot import create_slot, read_slot, read_slot_status
from flushtracker.postgres.table_bindings import read_bindings
from flushtracker.shape_log.snapshot.delta_snapshots import log_snapshots
from flushtracker.shapes.definition import ShapeDefinition
from tests.support.brokers import Broker
from tests.support.capture_rig import CaptureRig, shape
from tests.support.snapshot_rig import SnapshotRig

TARGET: Final = "target"
"""A superuser whose default search path has the schema before PostgreSQL's own."""
MARK: Final = "shadow used: "
"""In the server's log, before the name of what was used."""

_BODY: Final = f"LANGUAGE plpgsql AS $f$ BEGIN RAISE EXCEPTION ''{MARK}%%'', %L; END $f$"
# Immutable, so that it fails when a query is planned, even if there are no rows.
_SHADOW: Final = f"""
CREATE FUNCTION public.shadow(name text) RETURNS bool IMMUTABLE LANGUAGE plpgsql
AS $f$ BEGIN RAISE EXCEPTION '{MARK}%', name; END $f$
"""
# What has pseudo-types that plpgsql does not accept is left out.
_LOOP: Final = """
DO $do$
DECLARE found record;
BEGIN
  FOR found IN {query} LOOP
    BEGIN
      {statements}
    EXCEPTION WHEN OTHERS THEN
      NULL;
    END;
  END LOOP;
END $do$
"""
# The same arguments as those of PostgreSQL's own, which are so preferred only if the schema is before PostgreSQL's.
_FUNCTIONS: Final = _LOOP.format(
    query="""
    SELECT proname AS name, replace(pg_get_function_result(oid), 'void', 'text') AS result,
      array_to_string(ARRAY(SELECT format_type(type, NULL) FROM unnest(proargtypes::oid[]) AS type), ', ') AS arguments
    FROM pg_proc WHERE pronamespace = 'pg_catalog'::regnamespace AND prokind <> 'p'
    """,
    statements=f"""
    EXECUTE format('CREATE FUNCTION public.%I(%s) RETURNS %s {_BODY}', found.name, found.arguments, found.result,
      found.name);
    """,
)
_OPERATORS: Final = _LOOP.format(
    query="""
    SELECT oprname AS name, 'operator_' || oid AS function, format_type(oprleft, NULL) AS left_type,
      format_type(oprright, NULL) AS right_type, format_type(oprresult, NULL) AS result
    FROM pg_operator WHERE oprnamespace = 'pg_catalog'::regnamespace AND oprkind = 'b'
    """,
    statements=f"""
    EXECUTE format('CREATE FUNCTION public.%I(%s, %s) RETURNS %s {_BODY}', found.function, found.left_type,
      found.right_type, found.result, found.name);
    EXECUTE format('CREATE OPERATOR public.%s (FUNCTION = public.%I, LEFTARG = %s, RIGHTARG = %s)', found.name,
      found.function, found.left_type, found.right_type);
    """,
)
# These fit the statements better than PostgreSQL's own, which are polymorphic, wherever the schema is in the path.
_BETTER_FUNCTIONS: Final = (
    ("to_jsonb", "pg_replication_slots"),
    ("to_jsonb", "pg_publication_rel"),
    ("to_jsonb", "pg_range"),
    ("array_agg", "oid"),
    ("unnest", "oid[]"),
    ("unnest", "int[]"),
    ("concat", "text, pg_lsn"),
)
_BETTER_OPERATORS: Final = (("text", "oid"), ("text", "xid"), ("oid[]", "oid"), ("bigint", "text"))
_RELATIONS: Final = _LOOP.format(
    query="""
    SELECT relname AS name FROM pg_class WHERE relnamespace = 'pg_catalog'::regnamespace AND relkind IN ('r', 'v')
    """,
    statements="""
    EXECUTE format('CREATE VIEW public.%I AS SELECT * FROM pg_catalog.%I WHERE public.shadow(%L)', found.name,
      found.name, found.name);
    """,
)
_TYPES: Final = _LOOP.format(
    query="""
    SELECT typname AS name FROM pg_type
    WHERE typnamespace = 'pg_catalog'::regnamespace AND typtype = 'b' AND typcategory <> 'A'
    """,
    statements="""
    EXECUTE format('CREATE DOMAIN public.%I AS pg_catalog.%I CHECK (public.shadow(%L))', found.name, found.name,
      found.name);
    """,
)


def create_hostile_schema(server: LocalPostgres) -> None:
    """Shadow functions, aggregates, operators, tables, views and types in ``public``; each fails when it is used."""
    statements = [_SHADOW, _FUNCTIONS, _OPERATORS]
    for name, arguments in _BETTER_FUNCTIONS:
        statements.append(_failing(f"{name}({arguments})"))
    for left, right in _BETTER_OPERATORS:
        statements.append(_failing(f"joined({left}, {right})"))
        statements.append(f"CREATE OPERATOR public.|| (FUNCTION = public.joined, LEFTARG = {left}, RIGHTARG = {right})")
    statements += [_RELATIONS, _TYPES, f"CREATE ROLE {TARGET} LOGIN SUPERUSER"]
    statements.append(f"ALTER ROLE {TARGET} SET search_path = public, pg_catalog")
    with closing(server.connect()) as connection:
        for statement in statements:
            rows(connection, statement)


def _failing(signature: str) -> str:
    body = f"BEGIN RAISE EXCEPTION '{MARK}{signature}'; END"
    return f"CREATE OR REPLACE FUNCTION public.{signature} RETURNS text LANGUAGE plpgsql AS $f$ {body} $f$"


def shadows_used(server: LocalPostgres) -> list[str]:
    """The lines of the server's log about what was used of the schema."""
    return [line for line in server.log.read_text().splitlines() if f"ERROR:  {MARK}" in line]


TABLES: Final = (
    "CREATE TYPE public.mood AS ENUM ('ok', 'sad')",
    "CREATE TABLE public.users (id int PRIMARY KEY, region text, feel public.mood, ids int[])",
    "ALTER TABLE public.users REPLICA IDENTITY FULL",
    "CREATE TABLE public.parts (id int PRIMARY KEY) PARTITION BY RANGE (id)",
    "CREATE TABLE public.low PARTITION OF public.parts FOR VALUES FROM (0) TO (10)",
    "INSERT INTO public.users VALUES (1, 'eu', 'ok', '{1}'), (2, 'us', 'sad', '{2}')",
)
OIDS: Final = "SELECT unnest(ARRAY['public.users', 'public.parts']::regclass[])::oid::bigint"
WHERE: Final = "region || 'x' = 'eux' AND feel = 'ok'::mood AND ids @> '{1}'::int[] AND id + 1 = 2 AND region LIKE 'e%'"


@pytest.fixture
def hostile(postgres: LocalPostgres) -> LocalPostgres:
    """A server with tables, and with the schema."""
    postgres.execute(*TABLES)
    create_hostile_schema(postgres)
    ((count,),) = postgres.execute("SELECT count(*) FROM pg_proc WHERE pronamespace = 'public'::regnamespace")
    assert count > 3_000
    return postgres


def test_what_a_hostile_schema_shadows_is_used_with_the_search_path_of_a_role(hostile: LocalPostgres) -> None:
    """Functions, operators, views and types; a function whose arguments fit better also with the default path."""
    used = ["SELECT now()", "SELECT 1 + 1", "SELECT FROM pg_replication_slots", "SELECT '1'::oid"]
    for query, user in [*((query, TARGET) for query in used), ("SELECT to_jsonb(r) FROM pg_range r", "postgres")]:
        with closing(hostile.connect(user=user)) as connection, pytest.raises(PostgresError, match=MARK):
            rows(connection, query)
    assert len(shadows_used(hostile)) == 5


def test_capture_and_status_use_nothing_of_a_hostile_schema(
    hostile: LocalPostgres, broker: Broker, tmp_path: Path, topic_name: Callable[[str], str]
) -> None:
    """Neither while they create and check, nor for a stream with a new partition, a heartbeat and a new shape."""
    rig = CaptureRig(hostile, broker.bootstrap_servers, tmp_path, topic_name)
    rig.settings["postgres"] = {**hostile.options, "user": TARGET}
    rig.settings["capture"]["intervals"]["heartbeat"] = "100 ms"
    rig.settings["status"] = {"listen": f"127.0.0.1:{free_port()}"}
    rig.settings |= {"track": False, "write": False, "serve": False}
    rig.define(shape("users", where=WHERE), shape("parts", "public.parts"))
    try:
        rig.create_topics()
        with closing(connect(rig.settings["postgres"])) as connection:
            publication = Publication(connection, "shapes", "shapes")
            assert publication.create([])
            assert publication.publish({oid: () for (oid,) in rows(connection, OIDS)}) == {}
            publication.warn_of_refused_changes()
            assert create_slot(connection, "shapes")
        capture = rig.start()
        rig.execute_and_wait("UPDATE public.users SET region = 'eu'")
        rig.define(shape("users", where=WHERE), shape("parts", "public.parts"), shape("all"))
        rig.wait(lambda: "all" in rig.registry() and rig.registry()["all"].starts_visible, "a visible start")
        hostile.execute("CREATE TABLE public.high PARTITION OF public.parts FOR VALUES FROM (10) TO (20)")
        rig.execute_and_wait("INSERT INTO public.parts VALUES (11)", "DELETE FROM public.users WHERE id = 1")
        rig.acknowledge_all()
        assert (rig.operations("users"), rig.operations("parts")) == (["update", "delete"], ["insert"])
        assert main(["status", "--config", str(rig.config_file)]) == 0
        capture.stop()
    finally:
        rig.close()
    assert shadows_used(hostile) == []


def test_a_snapshot_uses_nothing_of_a_hostile_schema(
    postgres: LocalPostgres, tmp_path: Path, spark: SparkSession
) -> None:
    """On the driver and on the executors, with a condition that the server evaluates."""
    postgres.execute(*TABLES)
    rig = SnapshotRig(postgres, tmp_path)
    rig.define(ShapeDefinition("users", ("public", "users"), where=WHERE))
    create_hostile_schema(postgres)
    config = rig.config(postgres={"user": TARGET})
    log_snapshots(spark, config, Event(), ("users",)).run()
    assert [row["id"] for row in rig.items("users")] == ["1"]
    assert shadows_used(postgres) == []


def test_a_temporary_view_left_in_a_session_shadows_nothing(postgres: LocalPostgres) -> None:
    """As a pooler may hand over a session: the schema of temporary objects is searched last."""
    postgres.execute(*TABLES, "CREATE PUBLICATION shapes FOR ALL TABLES")
    postgres.execute("SELECT pg_create_logical_replication_slot('shapes', 'pgoutput')")
    ((oid,),) = postgres.execute("SELECT 'public.users'::regclass::oid::bigint")
    for open_connection in (connect, connect_for_snapshot, connect_for_replication):
        with closing(open_connection(postgres.options)) as connection:
            for name in ("pg_replication_slots", "pg_publication", "pg_class", "pg_attribute"):
                rows(connection, f"CREATE TEMPORARY VIEW {name} AS SELECT 1 / 0 AS oid")
            assert read_slot_status(connection, "shapes", 0) is not None
            assert read_slot(connection, "shapes").active_pid is None
            assert Publication(connection, "shapes", "shapes").check()
            assert read_bindings(connection, "shapes", [oid])[oid].table == ("public", "users")
