"""``FailoverPair``: a primary, and a standby to which its failover slots are synchronised (PostgreSQL 17 and later).

A primary that may be killed twice in a row has a *spare* as well: another standby, which then follows the promoted one.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from flushtracker.local.postgres import HOST, SUPERUSER, LocalPostgres, free_port
from flushtracker.wal.lsn import parse_lsn
from tests.support.waiting import wait_until

SLOT: Final = "shapes"
_STANDBY_SLOT: Final = "standby"
_SPARE_SLOT: Final = "spare"
_CREATE_SLOT: Final = f"SELECT pg_create_logical_replication_slot('{SLOT}', 'pgoutput', failover => true)"
_SLOTS: Final = "SELECT slot_name FROM pg_replication_slots WHERE failover AND slot_type = 'logical'"
_TIMELINE: Final = "SELECT ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int"
_RECEIVED_TIMELINE: Final = "SELECT received_tli FROM pg_stat_wal_receiver"
_COPIES: Final = "SELECT slot_name FROM pg_replication_slots WHERE synced AND NOT temporary"


class FailoverPair:
    """Servers at two addresses that take turns; a context manager. The standby is added once there is a slot.

    The primary sends capture nothing that its standbys do not have. There is a third address for a spare, if it
    ``may_have_spare``.
    """

    def __init__(self, folder: Path, *, may_have_spare: bool = False) -> None:
        self._folder = folder
        self._ports = [free_port() for _ in range(2 + may_have_spare)]
        self._count = 0
        self.primary = LocalPostgres(folder / "server-0")
        self.primary.port = self._ports[0]
        # pg_rewind needs the WAL since the last checkpoint that both servers have.
        self.primary.settings["wal_keep_size"] = "1GB"
        self.standby: LocalPostgres | None = None
        self._spare: LocalPostgres | None = None
        self._killed: LocalPostgres | None = None
        self._slots: list[tuple[Any, ...]] = []
        self._waits_from = 0
        """The primary waits for the standby from this LSN on."""

    @property
    def options(self) -> dict[str, str]:
        """How capture connects, to whichever of them is the primary."""
        return {
            "host": ",".join([HOST] * len(self._ports)),
            "port": ",".join(map(str, self._ports)),
            "user": SUPERUSER,
            "dbname": "postgres",
            "target_session_attrs": "read-write",
        }

    def create_slot(self) -> None:
        self.primary.execute(_CREATE_SLOT)

    def add_standby(self) -> LocalPostgres:
        """A new standby of the primary, at an address that is free."""
        if self._killed is not None:
            shutil.rmtree(self._killed.data)
        self.standby, self._killed = self._copy(), None
        self._follow(self.standby, _STANDBY_SLOT)
        self._wait_for(_STANDBY_SLOT)
        return self.standby

    def rejoin(self) -> LocalPostgres:
        """The primary that was killed comes back as a standby, without its slots and what the new primary lacks."""
        killed = self._killed
        assert killed is not None
        killed.rewind_to(self.primary)
        self.standby, self._killed = killed, None
        self._follow(killed, _STANDBY_SLOT)
        self._wait_for(_STANDBY_SLOT)
        return killed

    def add_spare(self) -> None:
        """A second standby of the primary, for which that waits, too."""
        self._spare = self._copy()
        self._follow(self._spare, _SPARE_SLOT)
        self._wait_for(f"{_STANDBY_SLOT}, {_SPARE_SLOT}")

    def is_promotable(self) -> bool:
        """Whether each standby has all slots for good, and all that was sent when the primary did not wait for it."""
        standbys = [each for each in (self.standby, self._spare) if each is not None]
        return all(
            sorted(each.execute(_COPIES)) == sorted(self._slots) and _received_lsn(each) >= self._waits_from
            for each in standbys
        )

    def wait_until_synced(self, acknowledge: Callable[[], object]) -> None:
        """Wait until the standby's copies of the slots would survive a promotion, for which the slots must advance."""

        def is_synced() -> bool:
            # A slot advances to where the transactions in progress are logged.
            self.primary.execute("SELECT pg_log_standby_snapshot()")
            acknowledge()
            return self.is_promotable()

        wait_until(is_synced, "the synchronised slots", 180, pause_s=0.3)

    def promote(self) -> LocalPostgres:
        """Promote the standby, whether or not the primary lives; returns what was the primary.

        If there is a spare, the one that is ahead is promoted, and the other one follows it, and is waited for.
        """
        promoted, spare, old = self.standby, self._spare, self.primary
        assert promoted is not None
        if spare is not None and _received_lsn(spare) > _received_lsn(promoted):
            promoted, spare = spare, promoted
        self.primary, self.standby, self._spare = promoted, spare, None
        if spare is None:
            # A server that has no standby must not wait for one.
            promoted.execute("ALTER SYSTEM RESET synchronized_standby_slots", "SELECT pg_reload_conf()")
        else:
            spare.stop()
            self._create_slot(_STANDBY_SLOT)
            self._wait_for(_STANDBY_SLOT)
        promoted.execute("SELECT pg_promote()")
        if spare is not None:
            self._follow(spare, _STANDBY_SLOT)
            # If that is killed before the spare has heard of its timeline, nobody may promote the spare.
            timeline = promoted.execute(_TIMELINE)
            wait_until(lambda: spare.execute(_RECEIVED_TIMELINE) == timeline, "the spare follows", 60)
        return old

    def fail_over(self) -> None:
        """Kill the primary, and promote the standby."""
        self.primary.kill()
        if self._killed is not None:
            shutil.rmtree(self._killed.data)
        self._killed = self.promote()

    def _copy(self) -> LocalPostgres:
        """A base backup of the primary, at an address that is free."""
        self._count += 1
        copy = self.primary.standby(self._folder / f"server-{self._count}")
        used = {each.port for each in (self.primary, self.standby) if each is not None}
        copy.port = next(port for port in self._ports if port not in used)
        return copy

    def _create_slot(self, name: str) -> None:
        if not self.primary.execute(f"SELECT 1 FROM pg_replication_slots WHERE slot_name = '{name}'"):  # noqa: S608
            self.primary.execute(f"SELECT pg_create_physical_replication_slot('{name}', true)")

    def _follow(self, standby: LocalPostgres, slot: str) -> None:
        """Start a server as a standby of the primary."""
        self._create_slot(slot)
        standby.settings |= {
            "primary_conninfo": f"host={HOST} port={self.primary.port} user={SUPERUSER} dbname=postgres",
            "primary_slot_name": slot,
            "hot_standby_feedback": "on",
            "sync_replication_slots": "on",
            "wal_receiver_status_interval": "1s",
        }
        standby.start()

    def _wait_for(self, slots: str) -> None:
        """Let the primary, or who becomes it, send capture nothing that standbys with these slots do not have."""
        primary, setting = self.primary, "SHOW synchronized_standby_slots"
        primary.execute(f"ALTER SYSTEM SET synchronized_standby_slots = {slots}", "SELECT pg_reload_conf()")
        wait_until(lambda: primary.execute(setting) == [(slots,)], "the setting", 10)
        self._slots = primary.execute(_SLOTS)
        ((lsn,),) = primary.execute(
            "SELECT (CASE WHEN pg_is_in_recovery() THEN '0/0' ELSE pg_current_wal_lsn() END)::text"
        )
        self._waits_from = parse_lsn(lsn)

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        return self.primary.execute(statement)

    def __enter__(self) -> "FailoverPair":
        self.primary.start()
        return self

    def __exit__(self, *_: object) -> None:
        for server in (self.primary, self.standby, self._spare):
            if server is not None:
                server.stop()


def _received_lsn(standby: LocalPostgres) -> int:
    ((lsn,),) = standby.execute("SELECT coalesce(pg_last_wal_receive_lsn(), '0/0')::text")
    return parse_lsn(lsn)
