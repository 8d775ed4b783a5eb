"""Wait until capture has published past a snapshot, because a failover could lose what the snapshot has seen.

A snapshot of a primary may have transactions that a standby lacks. If that standby is promoted, its other transactions
get the same LSNs and xids, and readers would leave them out as contained. So such a snapshot is appended only once
capture has published past the end of the WAL that it saw: capture continues the source on a promoted standby only if
that has everything that was published.

Capture tells the server how far it has published as the written position of its stream. So the wait costs nothing while
capture is current. A role that may not see that (``pg_read_all_stats``) sees how far the slot is confirmed, which is
never ahead of it, but may be far behind. So without capture, or without that right, it waits only if the server may
have a standby. It shows one that is away by its slot, which a copy of capture's slot needs, or by its settings.
"""

import time
from collections.abc import Callable
from typing import Final

from flushtracker.errors import PostgresUnavailableError
from flushtracker.postgres.connection import Connection, rows
from flushtracker.wal.lsn import format_lsn, parse_lsn

TIMEOUT_S: Final = 60.0
"""Without progress."""
_POLL_S: Final = 0.1
# A standby streams, or a slot waits for it, or it is restored from an archive, or is to be promoted, or commits wait
# for it. As JSON, a column that an older server lacks is no error.
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

    ``check`` is called meanwhile; what it raises is raised.

    Raises:
        PostgresUnavailableError: capture publishes nothing for ``TIMEOUT_S``, or the connection is lost.
    """
    before, deadline, must_wait = -1, 0.0, False
    while True:
        ((text, may_be_lost),) = rows(connection, _PUBLISHED, (slot,))
        published = 0 if text is None else parse_lsn(text)
        # Once there was a standby, or capture, there may be again.
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
