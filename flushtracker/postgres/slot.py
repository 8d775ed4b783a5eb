"""The replication slot: reads, checks and creates it."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from flushtracker.errors import LostSlotError, PostgresError, PostgresUnavailableError
from flushtracker.postgres.connection import Connection, rows
from flushtracker.postgres.failover_lacks import FAILOVER_SINCE
from flushtracker.postgres.server_lacks import reading_lacks
from flushtracker.shapes.item_key import quoted
from flushtracker.status.capture_status import SlotStatus
from flushtracker.wal.lsn import parse_lsn

logger = logging.getLogger(__name__)

PLUGIN: Final = "pgoutput"
_KEEPS_ADDED_TABLES: Final[Mapping[int, int]] = {14: 18, 15: 13, 16: 9, 17: 5}
"""By major version, the first minor version whose decoder notices a changed publication inside a transaction."""
_PREVENTIONS: Final[Mapping[str, str]] = {
    "wal_removed": "A larger max_slot_wal_keep_size helps",
    "idle_timeout": "A larger idle_replication_slot_timeout helps, or 0",
    "rows_removed": "On a standby, hot_standby_feedback and a primary_slot_name help",
    "wal_level_insufficient": "Its primary needs wal_level = logical",
}
"""How to prevent the loss of a slot, by the server's reason."""
# The columns depend on the server's version; as JSON, missing ones are not an error.
_SLOT: Final = """
SELECT to_jsonb(s), current_database(), pg_is_in_recovery() FROM pg_replication_slots s WHERE slot_name = %s
"""
# A standby's slot retains WAL that it has received, and decodes WAL that it has replayed.
_STATUS: Final = """
SELECT to_jsonb(s), CASE WHEN pg_is_in_recovery()
  THEN greatest(pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn()) ELSE pg_current_wal_lsn() END::text
FROM pg_replication_slots s WHERE slot_name = %s
"""
# pg_stat_replication shows another role's process only by pid, except to pg_read_all_stats.
_HOLDER: Final = """
SELECT s.active_pid, r.application_name, host(r.client_addr),
  to_char(r.backend_start AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS"Z"')
FROM pg_replication_slots s LEFT JOIN pg_stat_replication r ON r.pid = s.active_pid
WHERE s.slot_name = %s AND s.active_pid IS NOT NULL
"""
_SYSTEM: Final = "SELECT system_identifier::text FROM pg_control_system()"


@dataclass(frozen=True, slots=True)
class SlotFacts:
    """A logical slot of this database, with the plugin pgoutput.

    ``active_pid`` is the server's process that reads it, if any.
    """

    confirmed_lsn: int
    active_pid: int | None


@dataclass(frozen=True, slots=True)
class SlotHolder:
    """The server's process that reads a slot, and its client as far as known; ``str`` describes it in words."""

    pid: int
    application: str | None
    client: str | None
    since: str | None

    def __str__(self) -> str:
        if self.since is None:
            return f"process {self.pid} (this role may not see whose that is: pg_stat_replication)"
        client = "a local socket" if self.client is None else self.client
        return (
            f"process {self.pid} ({self.application or 'without application_name'}, from {client}, since {self.since})"
        )


def check_server(connection: Connection) -> None:
    """Raise ``PostgresError`` if ``wal_level`` or the role does not allow reading a slot."""
    for lack in reading_lacks(connection):
        raise PostgresError(str(lack))
    major, minor = divmod(connection.server_version, 10_000)
    if minor < _KEEPS_ADDED_TABLES.get(major, 0):
        logger.warning(
            "server may omit changes of a table that is added to the publication while it is changed "
            "server_version=%d.%d upgrade_to=%d.%d",
            *(major, minor, major, _KEEPS_ADDED_TABLES[major]),
        )


def read_slot(connection: Connection, slot: str) -> SlotFacts:
    """The slot's current state.

    Raises:
        LostSlotError: the slot is lost.
        PostgresError: it does not exist, belongs to another plugin or database, or is temporary, one of two-phase
            decoding, or a standby's copy of its primary's.
        PostgresUnavailableError: it is being created.
    """
    found = rows(connection, _SLOT, (slot,))
    if not found:
        raise PostgresError(
            f"there is no replication slot {slot}; --create creates it. If it existed before, the shapes miss what "
            "was written since it was dropped: add --new-epoch, or --upgraded-from on an upgraded server, with which "
            "all of them begin again"
        )
    ((facts, database, is_standby),) = found
    if facts["plugin"] != PLUGIN or facts["database"] != database:
        raise PostgresError(
            f"replication slot {slot} has plugin {facts['plugin']} and database {facts['database']}, not {PLUGIN} and "
            f"{database}; use another slot"
        )
    if facts.get("wal_status") == "lost" or facts.get("invalidation_reason") is not None:
        cause = facts.get("invalidation_reason") or "wal_removed"
        raise LostSlotError(
            f"replication slot {slot} is lost ({cause}): changes that no shape has are gone. Drop the slot, and start "
            "with --create --new-epoch: all shapes begin again, with new snapshots. "
            f"{_PREVENTIONS.get(cause, 'The documentation of pg_replication_slots describes the reason')}"
        )
    if facts["temporary"]:
        raise PostgresError(
            f"replication slot {slot} is temporary: it is the server's own copy of its primary's slot and not complete "
            "yet, or belongs to one session. Connect capture to the primary"
        )
    # After a promotion it remains true, without meaning.
    if is_standby and facts.get("synced"):
        raise PostgresError(
            f"replication slot {slot} is the server's own copy of its primary's slot, and cannot be read before a "
            "promotion. Connect capture to the primary"
        )
    if facts.get("two_phase"):
        raise PostgresError(
            f"replication slot {slot} has two_phase enabled: the server would send prepared transactions before their "
            "commit, and not again with it. Drop the slot, and start with --create, and with --new-epoch if there are "
            "shapes, which then begin again; or disable it since PostgreSQL 18, over a replication connection: "
            f"ALTER_REPLICATION_SLOT {quoted(slot)} (TWO_PHASE false)"
        )
    if facts["confirmed_flush_lsn"] is None:
        raise PostgresUnavailableError(
            f"replication slot {slot} is being created: the server waits for the transactions that were open before"
        )
    return SlotFacts(parse_lsn(facts["confirmed_flush_lsn"]), facts["active_pid"])


def read_held_slot(connection: Connection, slot: str, pid: int) -> SlotFacts:
    """The current state of the slot that the server's process ``pid`` reads; only that stream's status updates move it.

    Raises:
        PostgresUnavailableError: another process reads it, or none: ``connection`` leads to another server.
    """
    facts = read_slot(connection, slot)
    if facts.active_pid != pid:
        raise PostgresUnavailableError(
            f"replication slot {slot} is read by process {facts.active_pid} of one server, but the stream comes from "
            f"process {pid}: the two connections lead to different servers, as during a failover"
        )
    return facts


def read_slot_holder(connection: Connection, slot: str) -> SlotHolder | None:
    """The process that reads the slot; ``None`` if there is none."""
    found = rows(connection, _HOLDER, (slot,))
    return SlotHolder(*found[0]) if found else None


def read_slot_status(connection: Connection, slot: str, now_ms: int) -> SlotStatus | None:
    """The server's figures for a slot at ``now_ms``; ``None`` if there is none of that name. Raises ``PostgresError``.

    Unlike :func:`read_slot`, it accepts any slot: a lost slot, or another plugin's, has figures too.
    """
    found = rows(connection, _STATUS, (slot,))
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
        # A lost slot retains no WAL.
        retained_bytes=0 if restart_lsn is None else max(0, written_lsn - restart_lsn),
        safe_wal_bytes=facts.get("safe_wal_size"),
    )


def system_identifier(connection: Connection) -> str:
    """The cluster's system identifier, with which the names of its sources begin; raises ``PostgresError``."""
    return str(rows(connection, _SYSTEM)[0][0])


def has_slot(connection: Connection, slot: str) -> bool:
    return bool(rows(connection, "SELECT 1 FROM pg_replication_slots WHERE slot_name = %s", (slot,)))


def create_slot(connection: Connection, slot: str, *, failover: bool = False) -> bool:
    """Create the slot if it does not exist; return whether it was created.

    With ``failover``, it is synchronized to standbys, if the server is a primary that supports that.
    """
    if has_slot(connection, slot):
        return False
    statement = "SELECT pg_create_logical_replication_slot(%s, %s)"
    if failover and connection.server_version >= FAILOVER_SINCE:
        ((is_standby,),) = rows(connection, "SELECT pg_is_in_recovery()")
        if not is_standby:
            statement = "SELECT pg_create_logical_replication_slot(%s, %s, failover => true)"
    rows(connection, statement, (slot, PLUGIN))
    return True


def _optional_lsn(text: str | None) -> int | None:
    return None if text is None else parse_lsn(text)
