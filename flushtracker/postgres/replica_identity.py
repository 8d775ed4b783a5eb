"""Finds published tables without a replica identity, on which PostgreSQL refuses UPDATE and DELETE.

A table's replica identity is its primary key, unless another one was chosen with ``REPLICA IDENTITY``. A DEFERRABLE key
does not count. Since PostgreSQL 18, neither does one with a generated column that the publication does not send. Only
tables that store rows matter, not partitioned ones. No query locks a table.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from flushtracker.errors import listed
from flushtracker.postgres.catalog import IS_SENT
from flushtracker.postgres.connection import SCHEMAS_SINCE, Connection, rows
from flushtracker.postgres.identity_remedies import GENERATED_SINCE, IdentityRemedies, Remedy
from flushtracker.postgres.inheritance import BELOW
from flushtracker.postgres.raw_names import RAW, raw_name
from flushtracker.shapes.table_binding import dotted
from flushtracker.wal.changes import TableName

_IS_UNSENT: Final = f"NOT {IS_SENT}"
_HAS_UNSENT: Final = """
EXISTS (
  SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND {unsent}
)"""
_KEY_HAS_UNSENT: Final = """
EXISTS (
  SELECT FROM unnest(i.indkey::int[]) WITH ORDINALITY AS k(attnum, ordinal)
  JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.attnum
  WHERE k.ordinal <= i.indnkeyatts AND {unsent}
)"""
_HAS_IDENTITY: Final = f"""
CASE c.relreplident WHEN 'f' THEN NOT {_HAS_UNSENT} WHEN 'n' THEN false ELSE EXISTS (
  SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisvalid AND i.indimmediate
  AND CASE c.relreplident WHEN 'd' THEN i.indisprimary ELSE i.indisreplident END AND NOT {_KEY_HAS_UNSENT}
) END
"""
_HAVE_ROWS: Final = "c.relkind = 'r' AND c.relpersistence = 'p'"
_BELOW_TABLES: Final = f"""
WITH RECURSIVE {BELOW}
SELECT b.root::bigint, c.oid::bigint, n.nspname, c.relname
FROM below b JOIN pg_class c ON c.oid = b.relid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE {_HAVE_ROWS} AND NOT {_HAS_IDENTITY}
ORDER BY b.root, n.nspname, c.relname
"""  # noqa: S608  a constant
_NAMES: Final = """
SELECT c.oid::bigint, n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = ANY(%s::oid[])
"""
# A partition is published through its ancestors, an inheritance child only by itself.
_PUBLISHED_TABLES: Final = f"""
WITH RECURSIVE publication AS (
  SELECT oid, puballtables FROM pg_publication WHERE pubname = %(publication)s
), published AS (
  SELECT t.oid AS relid FROM pg_class t JOIN publication p ON p.puballtables
  UNION SELECT r.prrelid FROM pg_publication_rel r JOIN publication p ON p.oid = r.prpubid
  {{schemas}}
  UNION
  SELECT i.inhrelid FROM published d JOIN pg_inherits i ON i.inhparent = d.relid
  JOIN pg_class t ON t.oid = i.inhrelid AND t.relispartition
)
SELECT {RAW.format("n.nspname")}, {RAW.format("c.relname")}
FROM published d JOIN pg_class c ON c.oid = d.relid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE {_HAVE_ROWS} AND c.oid >= 16384 AND n.nspname NOT IN ('pg_catalog', 'information_schema') AND NOT {_HAS_IDENTITY}
ORDER BY n.nspname, c.relname
"""  # noqa: S608  a constant
_SCHEMAS: Final = """
  UNION SELECT t.oid FROM pg_class t JOIN pg_publication_namespace s ON s.pnnspid = t.relnamespace
  JOIN publication p ON p.oid = s.pnpubid
"""


def tables_without_identity(connection: Connection, publication: str) -> list[TableName]:
    """The tables of a publication that have none; a name without equivalent in UTF-8 is left empty."""
    schemas = _SCHEMAS if connection.server_version >= SCHEMAS_SINCE else ""
    statement = _PUBLISHED_TABLES.format(schemas=schemas, unsent=_unsent(connection))
    found = rows(connection, statement, {"publication": publication})
    return [(raw_name(connection, schema) or "", raw_name(connection, name) or "") for schema, name in found]


def leaves_without_identity(
    connection: Connection, publication: str | None, oids: Collection[int]
) -> dict[int, dict[int, TableName]]:
    """By the OID of a table: itself, or its partitions, by OID, that store rows and have no replica identity."""
    found = defaultdict[int, dict[int, TableName]](dict)
    if oids:
        statement = _BELOW_TABLES.format(unsent=_unsent(connection))
        for root, oid, schema, name in rows(connection, statement, {"oids": list(oids), "publication": publication}):
            found[root][oid] = (schema, name)
    return found


def without_identity(
    connection: Connection, publication: str | None, oids: Mapping[int, Collection[str]]
) -> dict[int, tuple[list[TableName], Remedy]]:
    """The tables without a replica identity, or with such partitions, by OID: their names, and a remedy.

    ``oids`` maps to the columns that shapes must know of old rows.
    """
    found = leaves_without_identity(connection, publication, oids)
    if not found:
        return {}
    names = {oid: (schema, name) for oid, schema, name in rows(connection, _NAMES, (list(found),))}
    remedies = IdentityRemedies(connection, publication)
    remedies.read([oid for each in found.values() for oid in each])
    return {root: (list(each.values()), remedies.of(names[root], each, oids[root])) for root, each in found.items()}


def identity_reason(broken: Sequence[TableName]) -> str:
    names = listed([dotted(each) for each in broken])
    return f"no replica identity: {names}; PostgreSQL would refuse their updates and deletes"


def _unsent(connection: Connection) -> str:
    """Whether a column prevents an identity, as a condition on a row ``a`` of ``pg_attribute``."""
    return _IS_UNSENT if connection.server_version >= GENERATED_SINCE else "false"
