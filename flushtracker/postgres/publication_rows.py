"""Reads the catalog rows that put tables into a publication, and the open transactions that have changed tables.

Like :mod:`flushtracker.postgres.table_bindings`, it locks no table.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any, Final

from flushtracker.postgres.connection import SCHEMAS_SINCE, Connection, rows
from flushtracker.postgres.inheritance import EVER_BELOW
from flushtracker.wal.mvcc_snapshot import CatalogRow

_ABOVE: Final = """
above AS (
  SELECT w.oid AS root, w.oid AS relid FROM unnest(%(oids)s::oid[]) AS w(oid)
  UNION SELECT a.root, i.inhparent FROM above a JOIN pg_inherits i ON i.inhrelid = a.relid
)"""
_PATH: Final = f"WITH RECURSIVE {_ABOVE}, related AS (SELECT root, relid FROM above)"  # noqa: S608  a constant
_RELATED: Final = f"""
WITH RECURSIVE {EVER_BELOW}, {_ABOVE}, related AS (
  SELECT root, relid FROM below UNION SELECT root, relid FROM above
)
"""  # noqa: S608  a constant
# A partition is published through its ancestors' publications. If all tables are published, only the publication's own
# row matters. A table moved into a published schema gets a new row in pg_depend.
_ROWS: Final = """
{related}, publication AS (
  SELECT oid, xmin, puballtables FROM pg_publication WHERE pubname = %(publication)s
), found AS (
  SELECT w.oid AS root, 'publication ' || p.oid AS name, p.xmin AS version
  FROM publication p CROSS JOIN unnest(%(oids)s::oid[]) AS w(oid)
  UNION ALL
  SELECT r.root, 'table ' || t.oid, t.xmin
  FROM related r JOIN pg_publication_rel t ON t.prrelid = r.relid JOIN publication p ON p.oid = t.prpubid
  UNION ALL
  SELECT r.root, concat('partition ', i.inhrelid, ' of ', i.inhparent), i.xmin
  FROM related r JOIN pg_inherits i ON i.inhrelid = r.relid JOIN publication p ON NOT p.puballtables
  {schemas}
)
SELECT root::bigint, name, version::text::bigint FROM found
"""
# Whole schemas can be published since PostgreSQL 15.
_SCHEMAS: Final = """
  UNION ALL
  SELECT r.root, concat('schema ', s.oid, ' of ', c.oid), s.xmin
  FROM related r JOIN pg_class c ON c.oid = r.relid JOIN pg_publication_namespace s ON s.pnnspid = c.relnamespace
  JOIN publication p ON p.oid = s.pnpubid
  UNION ALL
  SELECT r.root, concat(d.objid, ' in schema ', d.refobjid), d.xmin
  FROM related r JOIN pg_depend d ON d.classid = 'pg_class'::regclass AND d.objid = r.relid AND d.objsubid = 0
  AND d.refclassid = 'pg_namespace'::regclass
  JOIN pg_publication_namespace s ON s.pnnspid = d.refobjid JOIN publication p ON p.oid = s.pnpubid
"""
# A server session caches for each table whether it is published. It does not notice when one of these rows is written,
# except by the creation of the table: before PostgreSQL 15, a link to a published table; and if a partitioned table was
# moved into a published schema, for its partitions.
_UNNOTICED_LINKS: Final = f"""
{_RELATED}
SELECT r.root::bigint, i.xmin::text::bigint
FROM related r JOIN pg_inherits i ON i.inhrelid = r.relid
JOIN pg_attribute a ON a.attrelid = i.inhrelid AND a.attnum = -1
JOIN pg_publication p ON p.pubname = %(publication)s AND NOT p.puballtables
WHERE i.xmin::text <> a.xmin::text OR NOT EXISTS (
  SELECT FROM pg_attribute c
  WHERE c.attrelid = i.inhrelid AND c.attnum > 0 AND c.xmin::text = a.xmin::text AND c.cmin::text = a.cmin::text
)
"""  # noqa: S608  a constant
_UNNOTICED_MOVES: Final = f"""
{_RELATED}
SELECT r.root::bigint, d.xmin::text::bigint
FROM related r JOIN pg_class t ON t.oid = r.relid AND t.relkind = 'p'
JOIN pg_attribute a ON a.attrelid = t.oid AND a.attnum = -1
JOIN pg_depend d ON d.classid = 'pg_class'::regclass AND d.objid = t.oid AND d.objsubid = 0
  AND d.refclassid = 'pg_namespace'::regclass AND d.xmin::text <> a.xmin::text
JOIN pg_publication p ON p.pubname = %(publication)s
JOIN pg_publication_namespace s ON s.pnpubid = p.oid AND s.pnnspid = d.refobjid
"""  # noqa: S608  a constant
# A transaction that changes rows keeps its lock until it ends, even if prepared. Every transaction with an xid holds a
# lock on it and on those of its subtransactions. The view is read once, because a second read could differ.
_WRITERS: Final = """
WITH RECURSIVE {below}, locks AS MATERIALIZED (
  SELECT locktype, database, relation, transactionid, mode, virtualtransaction, pid FROM pg_locks WHERE granted
)
SELECT DISTINCT b.root::bigint, x.transactionid::text::bigint
FROM below b
JOIN locks r ON r.locktype = 'relation' AND r.relation = b.relid
  AND r.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND r.mode IN ('RowExclusiveLock', 'AccessExclusiveLock')
JOIN locks x ON x.locktype = 'transactionid' AND x.mode = 'ExclusiveLock'
  AND x.virtualtransaction = r.virtualtransaction AND x.pid IS NOT DISTINCT FROM r.pid
"""


def read_publication_rows(
    connection: Connection, publication: str, oids: Iterable[int], *, with_partitions: bool
) -> dict[int, frozenset[CatalogRow]]:
    """By OID, the rows through which these tables are published, and their partitions, too, ``with_partitions``."""
    schemas = _SCHEMAS if connection.server_version >= SCHEMAS_SINCE else ""
    statement = _ROWS.format(related=_RELATED if with_partitions else _PATH, schemas=schemas)
    found = rows(connection, statement, {"oids": list(oids), "publication": publication})
    return _by_oid((oid, CatalogRow(name, xid)) for oid, name, xid in found)


def read_unnoticed_rows(connection: Connection, publication: str, oids: Iterable[int]) -> dict[int, frozenset[int]]:
    """By OID, the 32-bit xids of rows by which tables or their partitions were published after their creation.

    A server session that has seen an earlier change of such a table sends no later one.
    """
    statement = _UNNOTICED_MOVES if connection.server_version >= SCHEMAS_SINCE else _UNNOTICED_LINKS
    return _by_oid(rows(connection, statement, {"oids": list(oids), "publication": publication}))


def read_writers(connection: Connection, oids: Iterable[int]) -> dict[int, frozenset[int]]:
    """By table OID, the open transactions that may have changed these tables or their partitions.

    Their 32-bit xids include those of subtransactions. On a standby, the primary's are unknown.
    """
    return _by_oid(rows(connection, _WRITERS.format(below=EVER_BELOW), {"oids": list(oids)}))


def _by_oid(found: Iterable[tuple[Any, ...]]) -> dict[int, frozenset[Any]]:
    by_oid = defaultdict[int, set[Any]](set)
    for oid, each in found:
        by_oid[oid].add(each)
    return {oid: frozenset(every) for oid, every in by_oid.items()}
