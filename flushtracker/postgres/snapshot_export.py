"""``exported_table``: a snapshot of a table that other connections can import.

TRUNCATE and table rewrites are not MVCC-safe: an older snapshot finds the table empty afterwards. So the table and its
partitions are locked, in the weakest mode, before the snapshot is taken; locking takes no snapshot. From then on,
schema changes cannot affect what the snapshot shows, either. A reader (:mod:`flushtracker.postgres.range_reader`) takes
the same locks before it imports the snapshot, which fails once this transaction has ended. So a reader that has
imported it no longer needs this transaction.

A snapshot also sees commits whose WAL is not flushed yet, with ``synchronous_commit = off``. A server crash would undo
them, and others would get their LSNs and xids. So nothing is read before the WAL is flushed that far.

The end of the WAL is read after the snapshot was taken: transactions that commit above it are not in the snapshot. The
server's clock is read then, too, while an advisory lock excludes other exports of the table: so the later of two
exports, by this clock, has the later snapshot, which contains everything in the other.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Final

from psycopg import sql

from flushtracker.errors import PostgresError, PostgresUnavailableError, ShapeError, listed
from flushtracker.postgres.catalog import Catalog, TableFacts
from flushtracker.postgres.connection import Connection, connect_for_snapshot, limit_statements, rows
from flushtracker.postgres.slot import read_slot
from flushtracker.postgres.table_bindings import read_bindings
from flushtracker.shapes.table_binding import TableBinding
from flushtracker.shapes.type_binding import user_types
from flushtracker.wal.changes import Relation, TableName
from flushtracker.wal.lsn import parse_lsn
from flushtracker.wal.mvcc_snapshot import MvccSnapshot
from flushtracker.wal.source_name import SourceName

_XID_BITS: Final = 48
STATEMENT_TIMEOUT_S: Final = 30.0
"""Limit of a catalog query, on top of the time it may wait for a lock."""

_SERVER: Final = """
SELECT pg_is_in_recovery(), CASE WHEN NOT pg_is_in_recovery() THEN system_identifier || '/' ||
  ('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))::bit(32)::bigint END
FROM pg_control_system()
"""
_EXPORT: Final = "SELECT pg_export_snapshot(), txid_current_snapshot()::text"
_WAL_END: Final = "SELECT pg_current_wal_insert_lsn()::text"
# Without a WAL record of its own, a transaction does not wait for the flush; and it must not wait for a standby.
_NEXT_XID: Final = """
SELECT txid_current() FROM
  (SELECT set_config('synchronous_commit', 'local', true), pg_logical_emit_message(true, 'flushtracker', '')) AS flushed
"""
_CLOCK: Final = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
# Database-wide, so the first number distinguishes it from other locks; the second is the table's OID.
_EXCLUSIVE: Final = "SELECT pg_try_advisory_lock(%s, (%s::bigint - 2147483648)::int)"
_LOCK_CLASS: Final = 1_718_383_475
# Any role that may log in can hold it, so the message names the holder. A prepared transaction has no session.
_HOLDERS: Final = """
SELECT CASE WHEN l.pid IS NULL THEN 'a prepared transaction, which ROLLBACK PREPARED ends'
  ELSE format('session %%s of role %%s', l.pid, a.usename) END
FROM pg_locks l JOIN pg_database d ON d.oid = l.database AND d.datname = current_database()
LEFT JOIN pg_stat_activity a USING (pid)
WHERE l.granted AND l.locktype = 'advisory'
  AND (l.classid::bigint, l.objid::bigint, l.objsubid) = (%s, %s, 2)
"""
_UNLOCKED: Final = """
SELECT t.oid::regclass::text FROM unnest(%s::oid[]) AS t(oid) WHERE NOT EXISTS (
  SELECT FROM pg_locks l WHERE l.pid = pg_backend_pid() AND l.locktype = 'relation' AND l.relation = t.oid
)
"""
_LOCKED: Final = """
SELECT DISTINCT l.relation::bigint FROM pg_locks l JOIN pg_database d ON d.oid = l.database
WHERE d.datname = current_database() AND l.locktype = 'relation' AND l.mode = 'AccessExclusiveLock'
"""
_PAGES: Final = """
SELECT t.oid::bigint, pg_relation_size(t.oid::regclass) / current_setting('block_size')::bigint
FROM unnest(%s::oid[]) AS t(oid)
"""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A table that stores rows: the table, or a partition. ``pages``: its size when the snapshot was taken."""

    relation: Relation
    pages: int


@dataclass(frozen=True, slots=True)
class InnerExport:
    """Another table in the same snapshot."""

    binding: TableBinding
    leaves: tuple[Leaf, ...]


@dataclass(frozen=True, slots=True)
class ExportedTable:
    """A table in an exported snapshot, and the ``inner`` ones that the subqueries of its shapes read.

    ``snapshot_id`` is for ``SET TRANSACTION SNAPSHOT``, and ``visible`` is the same snapshot. ``lsn`` is the end of the
    WAL after it was taken, and ``taken_us`` the server's time then, in µs since 1970. Transactions that commit up to
    there have xids below ``next_xid``.
    """

    snapshot_id: str
    visible: MvccSnapshot
    lsn: int
    taken_us: int
    next_xid: int
    binding: TableBinding
    leaves: tuple[Leaf, ...]
    inner: tuple[InnerExport, ...] = ()

    @property
    def all_leaves(self) -> tuple[Leaf, ...]:
        """The leaves of the table, then of each inner table."""
        return (*self.leaves, *(leaf for each in self.inner for leaf in each.leaves))


def primary_server(connection: Connection) -> str:
    """The server's system identifier and timeline, with which the names of its sources begin.

    Raises:
        PostgresError: it is a standby, whose snapshots do not list the transactions in progress.
    """
    ((is_standby, server),) = rows(connection, _SERVER)
    if is_standby:
        info = connection.info
        raise PostgresError(
            f"the server at {info.host} port {info.port} is a standby, whose snapshots do not say which transactions "
            "are in progress; name the primary in postgres"
        )
    return str(server)


def locked_tables(connection: Connection) -> frozenset[int]:
    """The OIDs of the database's tables that nobody can read now."""
    return frozenset(oid for (oid,) in rows(connection, _LOCKED))


@contextmanager
def exported_table(  # noqa: PLR0913  all but the first ones by name
    options: Mapping[str, str],
    source: str,
    table: TableName,
    oid: int,
    inner: Sequence[TableBinding] = (),
    *,
    publication: str,
    lock_timeout_s: float,
) -> Iterator[tuple[Connection, ExportedTable]]:
    """Lock the table with this OID and export a snapshot of it; both last until the body ends, as does the connection.

    The ``inner`` tables are locked and exported, too. Other exports are excluded by a lock on the table itself, which
    all attempts of a shape share. ``source`` names the timeline on which it is now captured.

    Raises:
        ShapeError: the table no longer exists.
        PostgresUnavailableError: a lock cannot be acquired at the moment, or the connection is lost.
        PostgresError: the server refuses, or it or the database is not that of ``source``.
    """
    with closing(connect_for_snapshot(options)) as connection:
        limit_statements(
            connection, statement_timeout_s=STATEMENT_TIMEOUT_S + lock_timeout_s, lock_timeout_s=lock_timeout_s
        )
        _require_source(connection, source)
        ((is_exclusive,),) = rows(connection, _EXCLUSIVE, (_LOCK_CLASS, oid))
        if not is_exclusive:
            holders = [holder for (holder,) in rows(connection, _HOLDERS, (_LOCK_CLASS, oid ^ 1 << 31))]
            raise PostgresUnavailableError(
                f"another snapshot of table {'.'.join(table)} is being taken; let only one job run; if that is none, "
                f"end with pg_terminate_backend what holds its advisory lock: {listed(holders) or 'it has ended now'}"
            )
        rows(connection, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        names = sql.SQL(", ").join(sql.Identifier(*each) for each in (table, *(each.table for each in inner)))
        rows(connection, sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(names).as_string())
        exported = _export(connection, options, table, oid, publication)
        others = (_read(connection, each.table, each.oid, publication) for each in inner)
        yield connection, replace(exported, inner=tuple(InnerExport(*each) for each in others))


def _next_xid(options: Mapping[str, str]) -> int:
    """A new xid (64 bits), assigned to a commit that makes the server flush all WAL so far.

    It uses a separate connection, because the snapshot's cannot commit.
    """
    with closing(connect_for_snapshot(options)) as connection:
        ((next_xid,),) = rows(connection, _NEXT_XID)
    return int(next_xid)


def attempt_number(server: str, next_xid: int, earlier_timelines: int = 0) -> int:
    """A number greater than those of earlier exports of the source, even after a failover.

    ``server`` is the system identifier and the timeline. A promoted server may reuse xids of its primary. An upgraded
    one continues the xids, but begins with timeline 1: ``earlier_timelines`` counts the earlier ones.

    >>> attempt_number("7301/1", 2**40) < attempt_number("7301/2", 750) < attempt_number("7302/1", 751, 2)
    True
    """
    return (int(server.rpartition("/")[2]) + earlier_timelines << _XID_BITS) + next_xid


def _require_source(connection: Connection, source: str) -> None:
    """Check that this is the server and the database of the source."""
    name = SourceName.parse(source)
    if name is None:
        raise PostgresError(f"source {source} belongs to no replication slot, so no server has its transactions")
    if (found := primary_server(connection)) != name.server:
        system, _, timeline = found.rpartition("/")
        if system == name.system_id and int(timeline) > name.timeline:
            raise PostgresUnavailableError(
                f"the server was promoted to timeline {timeline}, on which capture has not continued {source} yet"
            )
        raise PostgresError(
            f"the server is {found} (system identifier and timeline), and source {source} is of {name.server}; name "
            "its primary in postgres"
        )
    # Raises an error if the slot is in another database, which may be a copy of this one with the same tables.
    read_slot(connection, name.slot)


def _export(
    connection: Connection, options: Mapping[str, str], table: TableName, oid: int, publication: str
) -> ExportedTable:
    ((snapshot_id, visible),) = rows(connection, _EXPORT)
    lsn = parse_lsn(rows(connection, _WAL_END)[0][0])
    ((taken_us,),) = rows(connection, _CLOCK)
    next_xid = _next_xid(options)
    binding, leaves = _read(connection, table, oid, publication)
    return ExportedTable(snapshot_id, MvccSnapshot.parse(visible), lsn, taken_us, next_xid, binding, leaves)


def _read(
    connection: Connection, table: TableName, oid: int, publication: str
) -> tuple[TableBinding, tuple[Leaf, ...]]:
    """A table, which was locked by its name, and the leaves with its rows."""
    binding = read_bindings(connection, publication, [oid]).get(oid)
    if binding is None:
        raise ShapeError(f"table {'.'.join(table)} was dropped")
    oids = [partition.oid for partition in binding.partitions] if binding.is_partitioned else [oid]
    if unlocked := [name for (name,) in rows(connection, _UNLOCKED, (oids,))]:
        raise PostgresUnavailableError(
            f"table {'.'.join(table)} got the partition {listed(unlocked)} while it was being locked; try again"
        )
    facts = Catalog(connection, publication).table(table)
    if facts is None or facts.oid != oid:
        raise ShapeError(f"table {'.'.join(table)} is not the same table as when the shape was bound to it")
    return binding, _leaves(connection, facts, binding, oids)


def _leaves(
    connection: Connection, facts: TableFacts, binding: TableBinding, oids: Collection[int]
) -> tuple[Leaf, ...]:
    pages = dict(rows(connection, _PAGES, (list(oids),)))
    types = user_types(binding.types)
    tables = facts.partitions if binding.is_partitioned else (facts,)
    return tuple(Leaf(leaf.relation.with_types(types), pages[leaf.oid]) for leaf in tables if leaf.oid in pages)
