"""What a server lacks for capture, as statements that an administrator runs. Reads only the catalog and settings."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from flushtracker.postgres.connection import Connection, rows
from flushtracker.shapes.item_key import quoted

OLDEST_VERSION: Final = 140_000
"""The first version of PostgreSQL that capture reads."""
_MAY_REPLICATE: Final = """
SELECT current_user, rolsuper OR rolreplication OR EXISTS (
  SELECT FROM pg_roles g WHERE g.rolname = 'rds_replication' AND pg_has_role(current_user, g.oid, 'member')
), EXISTS (SELECT FROM pg_roles g WHERE g.rolname = 'rds_replication')
FROM pg_roles WHERE rolname = current_user
"""
# Every role sees that a slot or a walsender exists, but not all about it.
_ROOM: Final = """
SELECT pg_is_in_recovery(), EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = %s),
  current_setting('max_replication_slots')::int, (SELECT count(*) FROM pg_replication_slots),
  current_setting('max_wal_senders')::int, (SELECT count(*) FROM pg_stat_replication),
  current_setting('max_slot_wal_keep_size')
"""
_KEPT_WAL: Final = "10GB"


@dataclass(frozen=True, slots=True)
class ServerLack:
    """``statements`` end the lack, and ``then`` is what follows them, if anything; without ``is_needed``, capture runs
    without them, too.
    """

    fact: str
    statements: tuple[str, ...] = ()
    then: str = ""
    is_needed: bool = True

    def __str__(self) -> str:
        remedy = ", and ".join(filter(None, ("; ".join(self.statements), self.then)))
        return f"{self.fact}; {remedy}" if remedy else self.fact


def reading_lacks(connection: Connection) -> Iterator[ServerLack]:
    """Why this role may not read any slot of the server."""
    ((wal_level,),) = rows(connection, "SELECT current_setting('wal_level')")
    if wal_level != "logical":
        statement = "ALTER SYSTEM SET wal_level = logical"
        yield ServerLack(f"wal_level is {wal_level}, not logical", (statement,), "restart the server")
    ((role, may_replicate, is_rds),) = rows(connection, _MAY_REPLICATE)
    if not may_replicate:
        name = quoted(role)
        statement = f"GRANT rds_replication TO {name}" if is_rds else f"ALTER ROLE {name} REPLICATION"
        yield ServerLack(f"role {role} may not read a slot", (statement,))


def server_lacks(connection: Connection, slot: str) -> Iterator[ServerLack]:
    """All that the server lacks for a capture that reads ``slot``, which need not exist yet."""
    if connection.server_version < OLDEST_VERSION:
        major = connection.server_version // 10_000
        yield ServerLack(f"the server is PostgreSQL {major}, and capture needs 14 or newer", then="upgrade it")
    yield from reading_lacks(connection)
    ((is_standby, has_slot, most_slots, slots, most_senders, senders, kept),) = rows(connection, _ROOM, (slot,))
    if is_standby:
        yield ServerLack("the server is a standby, from which no snapshot can be taken", then="name its primary")
    if slots >= most_slots and not has_slot:
        statement = f"ALTER SYSTEM SET max_replication_slots = {slots + 2}"
        yield ServerLack(f"all {most_slots} of max_replication_slots are taken", (statement,), "restart the server")
    if senders >= most_senders:
        statement = f"ALTER SYSTEM SET max_wal_senders = {senders + 2}"
        yield ServerLack(f"all {most_senders} of max_wal_senders are taken", (statement,), "restart the server")
    if kept == "-1":
        yield ServerLack(
            "max_slot_wal_keep_size is -1, so WAL that is not confirmed is kept until the disk is full; set what the "
            "disk can spare",
            (f"ALTER SYSTEM SET max_slot_wal_keep_size = '{_KEPT_WAL}'", "SELECT pg_reload_conf()"),
            is_needed=False,
        )
