"""``FailoverPair``: a primary, and a standby to which its failover slots are synchronised (PostgreSQL 17 and later)."""

import shutil
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any, Final

from flushtracker.local.free_ports import HOST, free_port
from flushtracker.local.postgres import SUPERUSER, LocalPostgres
from flushtracker.wal.lsn import parse_lsn
from tests.support.new_server import new_server
from tests.support.waiting import wait_until

SLOT: Final = "shapes"
_STANDBY_SLOT: Final = "standby"
_CREATE_SLOT: Final = f"SELECT pg_create_logical_replication_slot('{SLOT}', 'pgoutput', failover => true)"
_SLOTS: Final = "SELECT slot_name FROM pg_replication_slots WHERE failover AND slot_type = 'logical'"
_COPIES: Final = "SELECT slot_name FROM pg_replication_slots WHERE synced AND NOT temporary"


class FailoverPair:
    """Servers at two addresses that take turns; a context manager. The standby is added once there is a slot.

    With ``waits_for_standby`` the primary sends capture nothing that the standby does not have.
    """

    def __init__(self, folder: Path, *, waits_for_standby: bool = True) -> None:
        self._folder = folder
        self._ports = [free_port(), free_port()]
        self._waits_for_standby = waits_for_standby
        self._count = 0
        self.primary = new_server(folder / "server-0")
        self.primary.port = self._ports[0]
        # pg_rewind needs the WAL since the last checkpoint that both servers have.
        self.primary.settings["wal_keep_size"] = "1GB"
        self.standby: LocalPostgres | None = None
        self._killed: LocalPostgres | None = None
        self._slots: list[tuple[Any, ...]] = []
        self._waits_from = 0
        """The primary waits for the standby from this LSN on."""

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
        self._create_standby_slot()
        if self._killed is not None:
            shutil.rmtree(self._killed.data)
        standby = self.primary.standby(self._folder / f"server-{self._count}")
        (standby.port,) = set(self._ports) - {self.primary.port}
        return self._start_standby(standby)

    def rejoin(self) -> LocalPostgres:
        """The primary that was killed comes back as a standby, without its slots and what the new primary lacks."""
        killed = self._killed
        assert killed is not None
        self._create_standby_slot()
        killed.rewind_to(self.primary)
        return self._start_standby(killed)

    def is_promotable(self) -> bool:
        """Whether the standby has every slot for good, and all that was sent when the primary did not wait for it."""
        standby = self.standby
        assert standby is not None
        ((lsn,),) = standby.execute("SELECT coalesce(pg_last_wal_receive_lsn(), '0/0')::text")
        return sorted(standby.execute(_COPIES)) == sorted(self._slots) and parse_lsn(lsn) >= self._waits_from

    def wait_until_synced(self, acknowledge: Callable[[], object]) -> None:
        """Wait until the standby's copies of the slots would survive a promotion, for which the slots must advance."""

        def is_synced() -> bool:
            # A slot advances to where the transactions in progress are logged.
            self.primary.execute("SELECT pg_log_standby_snapshot()")
            acknowledge()
            return self.is_promotable()

        wait_until(is_synced, "the synchronised slots", 180, pause_s=0.3)

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
        self._killed = self.promote()

    def _create_standby_slot(self) -> None:
        if not self.primary.execute("SELECT 1 FROM pg_replication_slots WHERE slot_name = 'standby'"):
            self.primary.execute("SELECT pg_create_physical_replication_slot('standby', true)")

    def _start_standby(self, standby: LocalPostgres) -> LocalPostgres:
        primary = self.primary
        standby.settings |= {
            "primary_conninfo": f"host={HOST} port={primary.port} user={SUPERUSER} dbname=postgres",
            "primary_slot_name": _STANDBY_SLOT,
            "hot_standby_feedback": "on",
            "sync_replication_slots": "on",
            "wal_receiver_status_interval": "1s",
        }
        standby.start()
        self.standby, self._killed, self._slots = standby, None, primary.execute(_SLOTS)
        waits_for = _STANDBY_SLOT if self._waits_for_standby else ""
        primary.execute(f"ALTER SYSTEM SET synchronized_standby_slots = '{waits_for}'", "SELECT pg_reload_conf()")
        setting = "SHOW synchronized_standby_slots"
        wait_until(lambda: primary.execute(setting) == [(waits_for,)], "the setting", 10)
        ((lsn,),) = primary.execute("SELECT pg_current_wal_lsn()::text")
        self._waits_from = parse_lsn(lsn)
        return standby

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        return self.primary.execute(statement)

    def __enter__(self) -> "FailoverPair":
        self.primary.start()
        return self

    def __exit__(self, *_: object) -> None:
        for server in (self.primary, self.standby):
            if server is not None:
                server.stop()


def create_slot_on_standby(primary: LocalPostgres, standby: LocalPostgres) -> int:
    """Create the slot; returns its position. It waits until the primary logs which transactions are running."""
    created = Thread(
        target=standby.execute, args=("SELECT pg_create_logical_replication_slot('shapes', 'pgoutput')",), daemon=True
    )
    created.start()
    while created.is_alive():
        primary.execute("SELECT pg_log_standby_snapshot()")
        created.join(0.1)
    return slot_position(standby)


def slot_position(server: LocalPostgres) -> int:
    ((lsn,),) = server.execute("SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = 'shapes'")
    return parse_lsn(lsn)
