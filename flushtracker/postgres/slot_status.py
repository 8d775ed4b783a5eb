"""What ``pg_replication_slots`` shows of a slot, whoever reads it: a query that changes nothing and locks nothing."""

from typing import Any, Final

from flushtracker.postgres.connection import Connection, rows
from flushtracker.status.capture_status import SlotStatus
from flushtracker.wal.lsn import parse_lsn

# The columns depend on the server's version; as JSON, missing ones are no error.
_SLOT: Final = """
SELECT to_jsonb(s), wal_end::text, greatest(coalesce(pg_wal_lsn_diff(wal_end, s.restart_lsn), 0), 0)::bigint
FROM pg_replication_slots s, LATERAL (
  SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END AS wal_end
) AS server
WHERE s.slot_name = %s
"""


def read_slot_status(connection: Connection, slot: str, now_ms: int) -> SlotStatus | None:
    """The slot as the server shows it now, at ``now_ms``; ``None`` if there is no such slot.

    A slot that is lost, or that has reserved nothing yet, retains 0 bytes.

    Raises:
        PostgresUnavailableError: the connection is lost, or the server does not answer in time.
        PostgresError: the server rejects the query.
    """
    found = rows(connection, _SLOT, (slot,))
    if not found:
        return None
    ((facts, wal_end, retained_bytes),) = found
    return SlotStatus(
        name=slot,
        at_ms=now_ms,
        is_active=facts["active"],
        wal_status=facts.get("wal_status"),
        written_lsn=parse_lsn(wal_end),
        confirmed_lsn=_lsn(facts, "confirmed_flush_lsn"),
        retained_bytes=int(retained_bytes),
        safe_wal_bytes=facts.get("safe_wal_size"),
    )


def _lsn(facts: dict[str, Any], name: str) -> int | None:
    return None if facts.get(name) is None else parse_lsn(facts[name])
