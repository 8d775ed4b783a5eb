"""``FailoverPair``: a primary, and a standby to which its failover slots are synchronised (PostgreSQL 17 and later)."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from flushtracker.local.postgres import HOST, SUPERUSER, LocalPostgres, free_port
from tests.support.waiting import wait_until

SLOT: Final = "shapes"
_STANDBY_SLOT: Final = "standby"
_CREATE_SLOT: Final = f"SELECT pg_create_logical_replication_slot('{SLOT}', 'pgoutput', failover => true)"
_SYNCED: Final = "SELECT synced AND NOT temporary FROM pg_replication_slots WHERE slot_name = 'shapes'"


class FailoverPair:
    """Servers at two addresses that take turns; a context manager. The standby is added once there is a slot.

    With ``waits_for_standby`` the primary sends capture nothing that the standby does not have.
    """

    def __init__(self, folder: Path, *, waits_for_standby: bool = True) -> None:
        self._folder = folder
        self._ports = [free_port(), free_port()]
        self._waits_for_standby = waits_for_standby
        self._count = 0
        self.primary = LocalPostgres(folder / "server-0")
        self.primary.port = self._ports[0]
        self.standby: LocalPostgres | None = None

    @property
    def options(self) -> dict[str, str]:
        """How capture connects, to whichever of the two is the primary."""
        return {
            "host": f"{HOST},{HOST}",
            "port": ",".join(map(str, self._ports)),
            "user": SUPERUSER,
            "dbname": "postgres",
            "target_session_attrs": "read-write",
        }

    def create_slot(self) -> None:
        self.primary.execute(_CREATE_SLOT)

    def add_standby(self) -> LocalPostgres:
        """A new standby of the primary, at the address that is free."""
        self._count += 1
        primary = self.primary
        slots = primary.execute("SELECT 1 FROM pg_replication_slots WHERE slot_name = 'standby'")
        if not slots:
            primary.execute("SELECT pg_create_physical_replication_slot('standby', true)")
        # The old primary's data is of no use to the standby.
        standby = primary.standby(self._folder / f"server-{self._count}")
        (standby.port,) = set(self._ports) - {primary.port}
        standby.settings |= {
            "primary_conninfo": f"host={HOST} port={primary.port} user={SUPERUSER} dbname=postgres",
            "primary_slot_name": _STANDBY_SLOT,
            "hot_standby_feedback": "on",
            "sync_replication_slots": "on",
            "wal_receiver_status_interval": "1s",
        }
        standby.start()
        self.standby = standby
        waits_for = _STANDBY_SLOT if self._waits_for_standby else ""
        primary.execute(f"ALTER SYSTEM SET synchronized_standby_slots = '{waits_for}'", "SELECT pg_reload_conf()")
        return standby

    def wait_until_synced(self, acknowledge: Callable[[], object]) -> None:
        """Wait until the standby's copy of the slot would survive a promotion, for which the slot must advance."""
        standby = self.standby
        assert standby is not None

        def is_synced() -> bool:
            # A slot advances to where the transactions in progress are logged.
            self.primary.execute("SELECT pg_log_standby_snapshot()")
            acknowledge()
            return standby.execute(_SYNCED) == [(True,)]

        wait_until(is_synced, "the synchronised slot", 60, pause_s=0.3)

    def promote(self) -> LocalPostgres:
        """Promote the standby, whether or not the primary lives; returns what was the primary."""
        promoted, old = self.standby, self.primary
        assert promoted is not None
        # A server that has no standby must not wait for one.
        promoted.execute("ALTER SYSTEM RESET synchronized_standby_slots", "SELECT pg_reload_conf()")
        promoted.execute("SELECT pg_promote()")
        self.primary, self.standby = promoted, None
        return old

    def fail_over(self) -> None:
        """Kill the primary, and promote the standby."""
        self.primary.kill()
        self.promote()

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        return self.primary.execute(statement)

    def __enter__(self) -> "FailoverPair":
        self.primary.start()
        return self

    def __exit__(self, *_: object) -> None:
        for server in (self.primary, self.standby):
            if server is not None:
                server.stop()
