"""A schema in which another role has shadowed everything of PostgreSQL that a statement may name without a schema.

Casts are in no schema: one can be defined only by the owner of one of its two types.
"""

from contextlib import closing
from typing import Final

from flushtracker.local.postgres import LocalPostgres
from flushtracker.postgres.connection import rows

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
