"""The server's transactions: what is visible now, what is in progress, and how to have it sent."""

from typing import Final

from flushtracker.postgres.connection import Connection, rows
from flushtracker.wal.lsn import format_lsn
from flushtracker.wal.mvcc_snapshot import MvccSnapshot

# A session's xid can be read by everyone, what it waits for only by its role and pg_read_all_stats. A prepared
# transaction belongs to no session; that which commits it has no xid of its own. A snapshot's text would not do: it
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
# WAL that no commit follows is flushed within 15 s or so, or with the next commit, such as that of this statement. It
# must not wait for a synchronous standby itself.
_FLUSH: Final = """
SELECT CASE WHEN pg_is_in_recovery() THEN NULL WHEN pg_current_wal_flush_lsn() > %s::pg_lsn THEN NULL
ELSE concat(set_config('synchronous_commit', 'off', true), pg_logical_emit_message(true, 'flushtracker', '')) END
"""


def is_standby(connection: Connection) -> bool:
    """Whether the server is in recovery."""
    ((found,),) = rows(connection, "SELECT pg_is_in_recovery()")
    return bool(found)


def current_snapshot(connection: Connection) -> MvccSnapshot:
    """The snapshot of the connection's transaction, or of this statement.

    On a standby, PostgreSQL leaves out which transactions are in progress.
    """
    ((snapshot,),) = rows(connection, "SELECT txid_current_snapshot()::text")
    return MvccSnapshot.parse(snapshot)


def in_progress(connection: Connection) -> dict[int, bool]:
    """The transactions of this database that have a 32-bit xid and have not ended; empty on a standby.

    ``True``: it may have committed and be waiting for a synchronous standby, or this role may not see whether it does.
    """
    return dict(rows(connection, _IN_PROGRESS))


def flush_wal(connection: Connection, lsn: int) -> None:
    """Have the server flush its WAL past ``lsn``, where it has some, within its ``wal_writer_delay``."""
    rows(connection, _FLUSH, (format_lsn(lsn),))
