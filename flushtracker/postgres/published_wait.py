"""Waits until capture has published past a snapshot, because a failover could lose transactions that the snapshot saw.

A primary's snapshot may have transactions that a standby lacks. If that standby is promoted, its other transactions get
the same LSNs and xids, and readers would skip them as contained. So a snapshot is appended only once capture has
published past the end of the WAL that it saw: capture continues the source on a promoted standby only if that has
everything published.

Capture reports its published position to the server as the written position of its stream. So there is no wait while
capture is current. A role that may not see it (``pg_read_all_stats``) sees the slot's confirmed position, which is
never ahead of it, but may be far behind. So without capture, or without that privilege, it waits only if the server may
have a standby. A disconnected standby is recognized by its slot, which a copy of capture's slot needs, or by the
server's settings.
"""

import time
from collections.abc import Callable
from typing import Final

from flushtracker.errors import PostgresUnavailableError
from flushtracker.postgres.connection import Connection, rows
from flushtracker.wal.lsn import format_lsn, parse_lsn

TIMEOUT_S: Final = 60.0
_POLL_S: Final = 0.1
# A standby is streaming, or a slot waits for it, or it is restored from an archive, or is to be promoted, or commits
# wait for it. As JSON, a column that an older server lacks is not an error.
_PUBLISHED: Final = """
WITH captured AS (
  SELECT s.confirmed_flush_lsn, r.write_lsn
  FROM pg_replication_slots s LEFT JOIN pg_stat_replication r ON r.pid = s.active_pid WHERE s.slot_name = %s
)
SELECT (SELECT greatest(confirmed_flush_lsn, write_lsn)::text FROM captured),
  EXISTS (SELECT FROM captured WHERE write_lsn IS NOT NULL)
  OR current_setting('archive_mode') <> 'off'
  OR current_setting('synchronous_standby_names') <> ''
  OR EXISTS (SELECT FROM pg_replication_slots s WHERE slot_type = 'physical' OR to_jsonb(s) ->> 'failover' = 'true')
  OR EXISTS (SELECT FROM pg_stat_replication r WHERE NOT EXISTS (
    SELECT FROM pg_replication_slots s WHERE s.active_pid = r.pid))
"""


def wait_until_published(connection: Connection, slot: str, lsn: int, check: Callable[[], None]) -> None:
    """Wait until everything that commits below ``lsn`` is published, if capture runs or there may be a standby.

    ``check`` is called meanwhile; its exceptions are passed on.

    Raises:
        PostgresUnavailableError: capture makes no progress for ``TIMEOUT_S``, or the connection is lost.
    """
    before, deadline, must_wait = -1, 0.0, False
    while True:
        ((text, may_be_lost),) = rows(connection, _PUBLISHED, (slot,))
        published = 0 if text is None else parse_lsn(text)
        # If there was a standby, or capture, it may return.
        must_wait = must_wait or may_be_lost
        if published >= lsn or not must_wait:
            return
        if published > before:
            before, deadline = published, time.monotonic() + TIMEOUT_S
        if time.monotonic() > deadline:
            raise PostgresUnavailableError(
                f"the snapshot sees up to {format_lsn(lsn)}, but capture has published only up to "
                f"{format_lsn(published)}, and nothing more for {TIMEOUT_S:.0f} s: a failover could lose the rest, so "
                "the snapshot is tried again. Check that capture runs and reads this server, and that this role has "
                "pg_read_all_stats if it is another one than capture's"
            )
        check()
        time.sleep(_POLL_S)
