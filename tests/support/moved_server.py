"""Other ways than pg_upgrade to a server with the data of another one: a dump, two subscribers, a recovery."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

from flushtracker.local.free_ports import HOST
from flushtracker.local.postgres import SUPERUSER, LocalPostgres
from flushtracker.wal.lsn import parse_lsn
from tests.support.new_server import new_server
from tests.support.waiting import wait_until

_DEADLINE_S: Final = 120
_POINT: Final = "here"
_SUBSCRIPTIONS: Final = "SELECT subname FROM pg_subscription"
_STREAMED: Final = "SELECT 1 FROM pg_subscription_rel WHERE srsubstate <> 'r'"
_CONFIRMED: Final = "SELECT min(confirmed_flush_lsn)::text FROM pg_replication_slots WHERE slot_name <> 'shapes'"


def dumped(old: LocalPostgres, folder: Path, *what: str) -> LocalPostgres:
    """A server of the later version with what pg_dump writes of ``old``; it runs."""
    new = new_server(folder)
    new.start()
    dump = str(folder / "dump")
    new.run("pg_dump", *_client(old), "--format=custom", "--file", dump, *what, "postgres")
    new.run("pg_restore", *_client(new), "--dbname=postgres", "--exit-on-error", dump)
    return new


def replicated(old: LocalPostgres, folder: Path) -> LocalPostgres:
    """A server of the later version that subscribes to all tables of ``old``; it runs."""
    new = dumped(old, folder, "--schema-only")
    old.execute("CREATE PUBLICATION moving FOR ALL TABLES")
    new.execute(f"CREATE SUBSCRIPTION moving CONNECTION '{_conninfo(old)}' PUBLICATION moving")
    return new


def subscribed(old: LocalPostgres, folder: Path) -> LocalPostgres:
    """A standby of ``old`` that pg_createsubscriber has made a server that subscribes to all tables; it runs."""
    new = old.standby(folder)
    arguments = {
        "--pgdata": str(new.data),
        "--publisher-server": f"host={HOST} port={old.port} user={SUPERUSER}",
        "--subscriber-port": str(new.port),
        "--subscriber-username": SUPERUSER,
        "--socketdir": str(folder),
        "--database": "postgres",
        "--publication": "moving",
        "--subscription": "moving",
    }
    new.run("pg_createsubscriber", *(part for pair in arguments.items() for part in pair), cwd=folder)
    new.start()
    return new


def has_caught_up(old: LocalPostgres, new: LocalPostgres) -> Callable[[], bool]:
    """Whether the subscriber has everything that is written on ``old`` now."""
    ((written,),) = old.execute("SELECT pg_current_wal_lsn()::text")

    def has() -> bool:
        ((confirmed,),) = old.execute(_CONFIRMED)
        return not new.execute(_STREAMED) and parse_lsn(confirmed) >= parse_lsn(written)

    return has


def end_subscription(old: LocalPostgres, new: LocalPostgres) -> None:
    """The subscriber has everything, and is a server of its own from now on."""
    wait_until(has_caught_up(old, new), "the subscriber", _DEADLINE_S)
    ((name,),) = new.execute(_SUBSCRIPTIONS)
    new.execute(f"DROP SUBSCRIPTION {name}")


class Archived:
    """The WAL of ``server`` is archived from now on, and can be recovered to the point that is marked."""

    def __init__(self, server: LocalPostgres, folder: Path) -> None:
        self._server, self._folder = server, folder
        self._archive = folder / "archive"
        # Like the server's other folders, its user's.
        server._prepare_folder(self._archive)
        server.settings |= {"archive_mode": "on", "archive_command": f"cp %p {self._archive}/%f"}
        server.restart()

    def mark(self) -> None:
        self._server.execute(f"SELECT pg_create_restore_point('{_POINT}')")

    def recovered(self, base: LocalPostgres) -> LocalPostgres:
        """A server that has recovered from ``base`` to the mark, and is promoted; the one before is stopped."""
        ((segment,),) = self._server.execute("SELECT pg_walfile_name(pg_current_wal_lsn())")
        self._server.execute("SELECT pg_switch_wal()")
        wait_until((self._archive / segment).exists, "the archive", _DEADLINE_S)
        self._server.stop()
        (base.data / "standby.signal").unlink(missing_ok=True)
        shutil.copyfile(base.data / "PG_VERSION", base.data / "recovery.signal")
        base._prepare_folder(base.folder)
        base.settings |= {
            "archive_mode": "off",
            "restore_command": f"cp {self._archive}/%f %p",
            "recovery_target_name": _POINT,
            "recovery_target_action": "promote",
            "primary_conninfo": "",
        }
        base.start()
        wait_until(lambda: base.execute("SELECT pg_is_in_recovery()") == [(False,)], "the recovery", _DEADLINE_S)
        return base


def _client(server: LocalPostgres) -> tuple[str, ...]:
    return ("--host", HOST, "--port", str(server.port), "--username", SUPERUSER)


def _conninfo(server: LocalPostgres) -> str:
    return f"host={HOST} port={server.port} user={SUPERUSER} dbname=postgres"
