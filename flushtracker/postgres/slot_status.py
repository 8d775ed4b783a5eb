"""``read_slot_status``: what ``pg_replication_slots`` shows of a slot, for people and for limits.

Unlike :func:`flushtracker.postgres.slot.read_slot`, it judges nothing: a slot that is lost or of another plugin has
figures, too.
"""

from typing import Final

from flushtracker.postgres.connection import Connection, rows
from flushtracker.status.capture_status import SlotStatus
from flushtracker.wal.lsn import parse_lsn

# The columns depend on the server's version; as JSON, missing ones are no error. A standby's slot retains what it has
# received, and decodes what it has replayed.
_SLOT: Final = """
SELECT to_jsonb(s), CASE WHEN pg_is_in_recovery()
  THEN greatest(pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn()) ELSE pg_current_wal_lsn() END::text
FROM pg_replication_slots s WHERE slot_name = %s
"""
_SYSTEM: Final = "SELECT system_identifier::text FROM pg_control_system()"


def read_slot_status(connection: Connection, slot: str, now_ms: int) -> SlotStatus | None:
    """The slot at ``now_ms``, or ``None`` if there is none of that name; raises ``PostgresError``."""
    found = rows(connection, _SLOT, (slot,))
    if not found:
        return None
    ((facts, written),) = found
    written_lsn, restart_lsn = parse_lsn(written), _optional_lsn(facts["restart_lsn"])
    return SlotStatus(
        name=slot,
        at_ms=now_ms,
        is_active=facts["active"],
        wal_status=facts.get("wal_status"),
        written_lsn=written_lsn,
        confirmed_lsn=_optional_lsn(facts.get("confirmed_flush_lsn")),
        # A lost slot retains nothing.
        retained_bytes=0 if restart_lsn is None else max(0, written_lsn - restart_lsn),
        safe_wal_bytes=facts.get("safe_wal_size"),
    )


def system_identifier(connection: Connection) -> str:
    """The identifier of the server's cluster, with which the names of its sources begin; raises ``PostgresError``."""
    return str(rows(connection, _SYSTEM)[0][0])


def _optional_lsn(text: str | None) -> int | None:
    return None if text is None else parse_lsn(text)
