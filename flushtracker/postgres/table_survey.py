"""Lists what a database has that a shape could be on, with sizes, and what this role lacks to read it.

Nothing here waits for a lock on a table: the size of one that is locked exclusively is unknown.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

from flushtracker.postgres.catalog import REPLICA_IDENTITIES
from flushtracker.postgres.connection import Connection, rows
from flushtracker.postgres.inheritance import BELOW
from flushtracker.postgres.missing_tables import NO_TABLES
from flushtracker.postgres.raw_names import RAW, raw_name
from flushtracker.shapes.item_key import quoted, sql_table
from flushtracker.wal.changes import TableName

# Neither temporary tables, nor the server's own, nor those that an extension has brought.
_LISTED: Final = f"""
SELECT c.oid::bigint, {RAW.format("n.nspname")}, {RAW.format("c.relname")}, c.relkind::text, c.relreplident::text
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND NOT c.relispartition AND c.relpersistence <> 't'
  AND n.nspname <> 'information_schema' AND NOT starts_with(n.nspname::text, 'pg_')
  AND NOT EXISTS (
    SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e'
  )
ORDER BY n.nspname, c.relname
"""  # noqa: S608  a constant
# As the planner does, from the rows per page when the table was last analyzed.
_PARTS: Final = f"""
WITH RECURSIVE {BELOW}, sizes AS (
  SELECT b.root, b.relid, c.relnamespace, c.reltuples, c.relpages, c.relkind, m.is_open,
    CASE WHEN m.is_open THEN pg_total_relation_size(b.relid::regclass) END AS bytes,
    CASE WHEN m.is_open THEN pg_relation_size(b.relid::regclass) / current_setting('block_size')::bigint END AS pages
  FROM below b JOIN pg_class r ON r.oid = b.root JOIN pg_class c ON c.oid = b.relid
  CROSS JOIN LATERAL (
    SELECT c.relkind IN ('r', 'p', 'm') AND NOT EXISTS (
      SELECT FROM pg_locks l JOIN pg_database d ON d.oid = l.database
      WHERE l.relation = c.oid AND d.datname = current_database() AND l.mode = 'AccessExclusiveLock'
    ) AS is_open
  ) m
  WHERE r.relkind = 'p' OR b.relid = b.root
)
SELECT s.root::bigint, {RAW.format("n.nspname")}, {RAW.format("c.relname")}, s.relkind IN ('r', 'f'), s.bytes,
  CASE WHEN s.reltuples >= 0 AND s.relpages > 0 THEN (s.reltuples / s.relpages * s.pages)::bigint
    WHEN s.pages = 0 THEN 0 END,
  has_schema_privilege(n.oid, 'USAGE'), has_table_privilege(c.oid, 'SELECT'), row_security_active(c.oid)
FROM sizes s JOIN pg_class c ON c.oid = s.relid JOIN pg_namespace n ON n.oid = s.relnamespace
ORDER BY s.root, n.nspname, c.relname
"""  # noqa: S608  a constant


@dataclass(frozen=True, slots=True)
class SurveyedTable:
    """A table, or another relation, whose kind ``no_table`` says.

    ``bytes`` include indexes and TOAST; they and ``rows``, an estimate, are ``None`` if unknown. Both are those of all
    ``partitions``, which are counted at any depth. ``grants`` are statements that let this role read all of it.
    """

    oid: int
    table: TableName
    no_table: str | None
    identity: str
    rows: int | None = None
    bytes: int | None = None
    partitions: int = 0
    is_partitioned: bool = False
    grants: tuple[str, ...] = ()


def survey_tables(connection: Connection) -> list[SurveyedTable]:
    """The tables of the database, by name, without those whose name has no equivalent in UTF-8."""
    found = []
    for oid, *raw, kind, identity in rows(connection, _LISTED):
        schema, name = (raw_name(connection, each) for each in raw)
        if schema is not None and name is not None:
            table = SurveyedTable(oid, (schema, name), NO_TABLES.get(kind), REPLICA_IDENTITIES[identity])
            found.append(replace(table, is_partitioned=kind == "p"))
    oids = [each.oid for each in found if each.no_table is None]
    parts = defaultdict[int, list[tuple[Any, ...]]](list)
    for root, *part in rows(connection, _PARTS, {"oids": oids}) if oids else ():
        parts[root].append(tuple(part))
    ((role,),) = rows(connection, "SELECT current_user")
    return [_measured(connection, each, parts[each.oid], role) for each in found]


def _measured(
    connection: Connection, table: SurveyedTable, parts: Collection[tuple[Any, ...]], role: str
) -> SurveyedTable:
    stored = [part for part in parts if part[2]]
    grants = dict.fromkeys(grant for part in parts for grant in _grants(connection, part, quoted(role)))
    return replace(
        table,
        rows=_sum(part[4] for part in stored),
        bytes=_sum(part[3] for part in parts if part[2]),
        partitions=len(stored) if table.is_partitioned else 0,
        grants=tuple(sorted(grants, key=lambda grant: not grant.startswith("GRANT USAGE"))),
    )


def _grants(connection: Connection, part: tuple[Any, ...], role: str) -> Iterable[str]:
    raw_schema, raw_table, *_, may_use, may_read, hides_rows = part
    schema, name = raw_name(connection, raw_schema), raw_name(connection, raw_table)
    if schema is None or name is None:
        return
    if not may_use:
        yield f"GRANT USAGE ON SCHEMA {quoted(schema)} TO {role}"
    if not may_read:
        yield f"GRANT SELECT ON {sql_table((schema, name))} TO {role}"
    if hides_rows:
        yield f"ALTER ROLE {role} BYPASSRLS"


def _sum(figures: Iterable[int | None]) -> int | None:
    found = list(figures)
    known = [each for each in found if each is not None]
    return sum(known) if len(known) == len(found) else None
