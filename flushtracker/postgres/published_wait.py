"""Wait until capture has published past a snapshot, where a failover could lose what the snapshot has seen.

A snapshot of a primary may have transactions that a standby lacks. If that standby is promoted, its other transactions
get the same LSNs and xids, and readers would leave them out as contained. So such a snapshot is appended only once
capture has published past the end of the WAL that it saw: capture continues the source on a promoted standby only if
that has everything that was published.

Capture tells the server how far it has published as the written position of its stream. A role that may not see that
(``pg_read_all_stats``) sees how far the slot is confirmed, which is never ahead of it.
"""

import time
from collections.abc import Callable
from typing import Final

from flushtracker.errors import PostgresUnavailableError
from flushtracker.postgres.connection import Connection, rows
from flushtracker.wal.lsn import format_lsn, parse_lsn

TIMEOUT_S: Final = 60.0
_POLL_S: Final = 0.1
# A standby streams, or a slot waits for it, or it is restored from an archive.
_HAS_STANDBY: Final = """
SELECT current_setting('archive_mode') <> 'off'
  OR EXISTS (SELECT FROM pg_replication_slots WHERE slot_type = 'physical')
  OR EXISTS (SELECT FROM pg_stat_replication r WHERE NOT EXISTS (
    SELECT FROM pg_replication_slots s WHERE s.active_pid = r.pid))
"""
_PUBLISHED: Final = """
SELECT greatest(s.confirmed_flush_lsn, r.write_lsn)::text
FROM pg_replication_slots s LEFT JOIN pg_stat_replication r ON r.pid = s.active_pid WHERE s.slot_name = %s
"""


def wait_until_published(connection: Connection, slot: str, lsn: int, check: Callable[[], None]) -> None:
    """Wait until everything that commits below ``lsn`` is published, if the server may have a standby.

    ``check`` is called meanwhile; what it raises is raised.

    Raises:
        PostgresUnavailableError: capture has not published that far in time, or the connection is lost.
    """
    ((has_standby,),) = rows(connection, _HAS_STANDBY)
    deadline = time.monotonic() + TIMEOUT_S
    while has_standby:
        found = rows(connection, _PUBLISHED, (slot,))
        published = parse_lsn(found[0][0]) if found and found[0][0] is not None else 0
        if published >= lsn:
            return
        if time.monotonic() > deadline:
            raise PostgresUnavailableError(
                f"the snapshot sees up to {format_lsn(lsn)}, but capture has published only up to "
                f"{format_lsn(published)} after {TIMEOUT_S:.0f} s: a failover could lose the rest, so the snapshot is "
                "tried again. Check that capture runs and reads this server"
            )
        check()
        time.sleep(_POLL_S)
