"""``ServerTables``: capture's queries to the server, over an ordinary connection next to the stream."""

import logging
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from psycopg.errors import LockNotAvailable

from flushtracker.errors import FlushtrackerError, PostgresError, PostgresUnavailableError, ShapeError
from flushtracker.postgres.catalog import Catalog
from flushtracker.postgres.connection import (
    Connection,
    is_untranslatable,
    limit_statements,
    require_open,
    rows,
    server_encoding,
)
from flushtracker.postgres.full_identity import lacking_leaves
from flushtracker.postgres.left_out import LeftOutLog
from flushtracker.postgres.publication import Publication
from flushtracker.postgres.publication_rows import (
    read_publication_rows,
    read_unnoticed_rows,
    read_writers,
)
from flushtracker.postgres.raw_names import readable
from flushtracker.postgres.readable_shapes import resolve_readable
from flushtracker.postgres.table_bindings import read_bindings
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.item_key import quoted
from flushtracker.shapes.table_binding import TableBinding
from flushtracker.shapes.unpublished import Unpublished
from flushtracker.wal.changes import TableName
from flushtracker.wal.lsn import format_lsn, parse_lsn
from flushtracker.wal.mvcc_snapshot import CatalogRow, MvccSnapshot
from flushtracker.wal.text_codecs import may_lack_characters

logger = logging.getLogger(__name__)

_INSERT_LSN: Final = """
CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_insert_lsn() END::text
"""
_EMPTY_AT: Final = f"SELECT coalesce(pg_relation_size(%(oid)s::oid::regclass), 1), {_INSERT_LSN}"
# Before PostgreSQL 15, a stream that has seen changes of a table from before it was published sends no later ones, if
# it is published only as a partition. A table that still has its first file and was never vacuumed has always been
# empty.
_NEVER_FILLED_AT: Final = f"""
SELECT CASE WHEN pg_relation_size(w.oid::regclass) = 0 AND (
  pg_relation_filenode(w.oid::regclass) = w.oid AND c.reltuples < 0 OR EXISTS (
    SELECT FROM pg_publication p WHERE p.pubname = %(publication)s AND (
      p.puballtables OR EXISTS (SELECT FROM pg_publication_rel r WHERE r.prpubid = p.oid AND r.prrelid = w.oid)
    )
  )
) THEN 0 ELSE 1 END, {_INSERT_LSN}
FROM (SELECT %(oid)s::oid AS oid) w LEFT JOIN pg_class c ON c.oid = w.oid
"""  # noqa: S608  a constant
_NOTICES_LINKS_SINCE: Final = 150_000
_WAL_END: Final = """
SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_flush_lsn() END::text
"""
_STANDBY: Final = """
SELECT pg_is_in_recovery(), (SELECT received_tli FROM pg_stat_wal_receiver),
  pg_has_role('pg_read_all_stats', 'USAGE'), current_user
"""
STATEMENT_TIMEOUT_S: Final = 30.0
LOCK_TIMEOUT_S: Final = 10.0
"""The thread that reads the stream also runs these queries, so nothing is published while one of them hangs. They take
milliseconds, but the catalog of a large database on a busy disk may take seconds. After a timeout capture reconnects,
and the server resends everything unconfirmed, so a shorter timeout would only cause more resends. The size of a new
partition is read under a lock; if that is not available within this time, the partition counts as having rows.
"""
# The age of an xid is its distance from the next one.
_NEXT_XID: Final = "SELECT txid_snapshot_xmax(txid_current_snapshot()), 3 + age('3'::xid)::bigint"
_SLOT_XMIN: Final = "SELECT catalog_xmin::text::bigint FROM pg_replication_slots WHERE slot_name = %s"
_WAL_SENDER_TIMEOUT: Final = "SELECT setting::bigint FROM pg_settings WHERE name = 'wal_sender_timeout'"
_VISIBILITY_TIMEOUT_S: Final = 5.0
_VISIBILITY_POLL_S: Final = 0.02
# Every role can read a session's xid, but what it waits for only its own role and pg_read_all_stats. A prepared
# transaction belongs to no session; the one that commits it has no xid of its own. A snapshot's text would not do: it
# lists nothing above the last xid that has ended.
_IN_PROGRESS: Final = """
WITH sessions AS (
  SELECT backend_xid::text::bigint AS xid, CASE
      WHEN pg_has_role('pg_read_all_stats', 'USAGE') OR coalesce(pg_has_role(usesysid, 'USAGE'), false)
      THEN coalesce(wait_event = 'SyncRep', false)
      ELSE current_setting('synchronous_standby_names') <> ''
    END AS may_wait
  FROM pg_stat_activity WHERE datname = current_database()
)
SELECT xid, may_wait FROM sessions WHERE xid IS NOT NULL
UNION ALL
SELECT transaction::text::bigint, EXISTS (SELECT FROM sessions WHERE xid IS NULL AND may_wait)
FROM pg_prepared_xacts WHERE database = current_database()
"""
# A transaction that changes nothing but is sent by the server; a standby cannot write it. With `local` its own commit
# flushes all WAL so far, including that of transactions with synchronous_commit = off, and waits for that. With `off`,
# the WAL is flushed soon. Otherwise WAL that no commit follows would be flushed within 15 s or so, or with the next
# commit. It must not wait for a synchronous standby itself.
_TRANSACTION: Final = """
SELECT CASE WHEN pg_is_in_recovery() THEN NULL {unless}
ELSE concat(set_config('synchronous_commit', '{commit}', true), pg_logical_emit_message(true, 'flushtracker', '')) END
"""
_EMIT: Final = _TRANSACTION.format(unless="", commit="off")
_FLUSH: Final = _TRANSACTION.format(unless="WHEN pg_current_wal_flush_lsn() > %s::pg_lsn THEN NULL", commit="off")
_FLUSH_COMMITS: Final = _TRANSACTION.format(unless="", commit="local")
_MISSING: Final = """
SELECT o.oid::bigint FROM unnest(%s::oid[]) AS o(oid) WHERE NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = o.oid)
"""
_HEARTBEAT: Final = """
SELECT CASE WHEN pg_is_in_recovery() THEN false
ELSE pg_logical_emit_message(false, 'flushtracker', '') IS NOT NULL END
"""


class ServerTables:
    """Every method raises ``PostgresUnavailableError`` if the connection is lost or a query takes too long.

    ``ServerQueries`` in :mod:`flushtracker.capture.shapes.bound_tables` says what its methods without a text return.
    """

    def __init__(
        self, connection: Connection, publication: str, slot: str = "", *, sets_identities: bool = False
    ) -> None:
        limit_statements(connection, statement_timeout_s=STATEMENT_TIMEOUT_S, lock_timeout_s=LOCK_TIMEOUT_S)
        self._connection = connection
        self._catalog = Catalog(connection, publication)
        self._name = publication
        self._slot = slot
        self._held_xmin: int | None = None
        self.standby_timeline: int | None = None
        """The server's timeline when the stream began, if it was a standby then."""
        self._publication = Publication(connection, publication, slot, sets_identities=sets_identities)
        self._left_out = LeftOutLog(connection, publication)

    def wal_end(self) -> int:
        return parse_lsn(rows(self._connection, _WAL_END)[0][0])

    def insert_lsn(self) -> int:
        return parse_lsn(rows(self._connection, f"SELECT {_INSERT_LSN}")[0][0])

    def wal_sender_timeout_s(self) -> float:
        """The time without a reply after which the server ends the stream; 0 for never.

        It may be set for the role or database; it applies to both connections.
        """
        ((timeout_ms,),) = rows(self._connection, _WAL_SENDER_TIMEOUT)
        return int(timeout_ms) / 1000

    def ancestors(self, oid: int, xid: int) -> frozenset[int]:
        """The OIDs of a table's partitioned ancestors, once transaction ``xid`` is visible.

        The stream may be ahead of the catalog. A commit that waits for a synchronous standby is already in the WAL and
        sent, while the catalog still shows the previous state.

        Raises:
            PostgresUnavailableError: it is not visible within seconds; after a reconnect the server resends it.
        """
        deadline = time.monotonic() + _VISIBILITY_TIMEOUT_S
        while True:
            ancestors, snapshot = self._catalog.ancestors(oid)
            if snapshot.sees(xid):
                return ancestors
            if time.monotonic() > deadline:
                raise PostgresUnavailableError(
                    f"transaction {xid} has committed but is not visible yet: it is waiting for a synchronous standby, "
                    "which must not be capture itself"
                )
            time.sleep(_VISIBILITY_POLL_S)

    def missing_relations(self, oids: Collection[int]) -> frozenset[int]:
        return frozenset(oid for (oid,) in rows(self._connection, _MISSING, (list(oids),)))

    def is_standby(self) -> bool:
        ((found,),) = rows(self._connection, "SELECT pg_is_in_recovery()")
        return bool(found)

    def snapshot(self) -> MvccSnapshot:
        """A snapshot taken now; on a standby, it does not show which transactions are in progress."""
        ((snapshot,),) = rows(self._connection, "SELECT txid_current_snapshot()::text")
        return MvccSnapshot.parse(snapshot)

    def in_progress(self) -> dict[int, bool]:
        return dict(rows(self._connection, _IN_PROGRESS))

    def publication_rows(self, oids: Iterable[int]) -> dict[int, frozenset[CatalogRow]]:
        return read_publication_rows(self._connection, self._name, oids, with_partitions=True)

    def publication_path(self, oids: Iterable[int]) -> dict[int, frozenset[CatalogRow]]:
        return read_publication_rows(self._connection, self._name, oids, with_partitions=False)

    def unnoticed_rows(self, oids: Iterable[int]) -> dict[int, frozenset[int]]:
        return read_unnoticed_rows(self._connection, self._name, oids)

    def writers(self, oids: Iterable[int]) -> dict[int, frozenset[int]]:
        return read_writers(self._connection, oids)

    def next_xid(self) -> int:
        ((xmax, next_xid),) = rows(self._connection, _NEXT_XID)
        return int(xmax) + int(next_xid - xmax) % 2**32

    def slot_xmin(self) -> int | None:
        found = rows(self._connection, _SLOT_XMIN, (self._slot,))
        return None if not found or found[0][0] is None else int(found[0][0])

    def held_xmin(self) -> int | None:
        """The slot's ``catalog_xmin`` when the stream had acquired it, before anything was confirmed."""
        return self._held_xmin

    def flush_commits(self) -> None:
        """Flush the WAL of everything visible now, and wait for that; a standby shows only flushed WAL."""
        rows(self._connection, _FLUSH_COMMITS)

    def flush_wal(self, lsn: int) -> None:
        """Have the server flush its WAL past ``lsn``, if there is any, within its ``wal_writer_delay``."""
        rows(self._connection, _FLUSH, (format_lsn(lsn),))

    def require_open(self) -> None:
        """Raise ``PostgresUnavailableError`` if the server has closed the connection."""
        require_open(self._connection)

    def hold_slot(self, stream_pid: int) -> None:
        """Note that the server's process ``stream_pid`` sends the slot's stream; nothing is confirmed yet."""
        self._held_xmin = self.slot_xmin()
        self._publication.hold(stream_pid)

    def warn_of_refused_changes(self) -> None:
        """Log the published tables without a replica identity: PostgreSQL refuses their updates and deletes."""
        self._publication.warn_of_refused_changes()

    def check_publication(self) -> str:
        return self._publication.check()

    def create_publication(self, tables: Collection[TableName]) -> bool:
        """Create a managed publication if there is none; return whether it was created. See ``Publication.create``."""
        return self._publication.create(tables)

    def publish_tables(self, oids: Mapping[int, Collection[str]]) -> dict[int, Unpublished]:
        return self._publication.publish(oids)

    def awaits_identity(self, error: FlushtrackerError) -> bool:
        """Whether :meth:`resolve` refuses a shape only until a table can be locked, to set its replica identity."""
        return bool(leaves := lacking_leaves(error)) and self._publication.awaits_identity(leaves)

    def can_publish(self, oids: Collection[int]) -> bool:
        return self._publication.can_publish(oids)

    def retract_tables(self, used: Collection[int]) -> None:
        self._publication.retract(used)

    def bindings(self, oids: Iterable[int]) -> dict[int, TableBinding]:
        """The current tables with these OIDs; dropped ones are omitted. Locks no table."""
        try:
            return read_bindings(self._connection, self._name, oids)
        except PostgresError as error:
            if not is_untranslatable(error):
                raise
            # It came after the last call of unreadable_tables, which the next connection begins with.
            raise PostgresUnavailableError("a name without equivalent in UTF-8 has come into the catalog") from error

    def unreadable_tables(self, oids: Collection[int]) -> list[int]:
        if not may_lack_characters(server_encoding(self._connection)):
            return []

        def read(some: Sequence[int]) -> Sequence[int]:
            read_bindings(self._connection, self._name, some)
            return some

        return sorted({*oids} - {*readable(read, sorted(oids))})

    def empty_at(self, oid: int) -> int | None:
        """The end of the WAL, flushed or not, at a moment when the table's file was empty; else ``None``.

        Also ``None`` if the stream may not have noticed that the table is published, or if the table stays locked for
        ``LOCK_TIMEOUT_S``: its owner must not be able to stop the shapes of others.
        """
        notices_links = self._connection.server_version >= _NOTICES_LINKS_SINCE
        statement = _EMPTY_AT if notices_links else _NEVER_FILLED_AT
        try:
            ((size, wal_end),) = rows(self._connection, statement, {"oid": oid, "publication": self._name})
        except PostgresUnavailableError as error:
            if not isinstance(error.__cause__, LockNotAvailable):
                raise
            logger.warning("new partition is locked, so it may have rows table_oid=%d reason=%s", oid, error)
            return None
        return None if size else parse_lsn(wal_end)

    def require_timeline(self) -> None:
        """Check that a server that was a standby is still one, on the same timeline.

        Raises:
            PostgresUnavailableError: it may have left its timeline, or receives nothing, so that this is unknown.
            PostgresError: this role may not see which timeline it receives.
        """
        if self.standby_timeline is None:
            return
        ((is_standby, received, may_see, role),) = rows(self._connection, _STANDBY)
        if is_standby and not may_see:
            grant = f"GRANT pg_read_all_stats TO {quoted(role)}"
            raise PostgresError(
                f"the server is a standby, and role {role} may not see whether its primary was replaced, after which "
                f"its changes may be others; connect to the primary, or there: {grant}"
            )
        if is_standby and received is None:
            raise PostgresUnavailableError(
                "the server is a standby that does not stream from its primary, so whether that was replaced is not "
                "known; one that is fed from an archive alone cannot be captured"
            )
        if not is_standby or received != self.standby_timeline:
            raise PostgresUnavailableError(
                f"the server was a standby on timeline {self.standby_timeline}; it was promoted, or its primary was "
                "replaced"
            )

    def emit_transaction(self) -> None:
        rows(self._connection, _EMIT)

    def emit_heartbeat(self) -> bool:
        """Write a few bytes of WAL that change nothing, so that the slot can advance; ``False`` on a standby, which
        cannot.
        """
        ((is_written,),) = rows(self._connection, _HEARTBEAT)
        return bool(is_written)

    def resolve(self, definitions: Iterable[ShapeDefinition]) -> list[tuple[ShapeDefinition, TableBinding]]:
        """Fill in the keys, so that they do not depend on the table later; check that shapes can be kept.

        Returns each definition with its table, both as of one moment. A definition with subqueries is repeated with
        each of its other tables. Replica identities that do not allow a shape are set, if this capture does that.

        Raises:
            ShapeError: there is no such table, or its columns or replica identity do not allow the shape.
            PostgresError: the publication omits rows or columns of the table.
        """
        wanted = tuple(definitions)
        try:
            resolved = resolve_readable(self._connection, self._name, wanted)
        except (ShapeError, PostgresError) as error:
            lacking = (lacking_leaves(each) for each in error.shape_errors.values())
            if not self._publication.give_identities(frozenset().union(*lacking)):
                raise
            resolved = resolve_readable(self._connection, self._name, wanted)
        self._left_out.note(
            {
                table.table
                for definition, table in resolved
                if definition.columns is None and table.table == definition.table
            }
        )
        return resolved
