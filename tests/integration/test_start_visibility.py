"""When capture says that any MVCC snapshot contains what a shape does not get, on a real server."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Thread
from typing import Final

import pytest

from flushtracker.local.postgres import LocalPostgres
from flushtracker.postgres.connection import rows
from flushtracker.postgres.server_tables import ServerTables
from flushtracker.wal.lsn import parse_lsn
from tests.support.capture_rig import DEADLINE_S, INSERT_USER, USERS, CaptureRig, run_in_transaction, shape
from tests.support.failover_pair import create_slot_on_standby
from tests.support.waiting import wait_until

WAITING: Final = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep' ORDER BY xact_start"
LOCAL: Final = "SET LOCAL synchronous_commit = local"


class AbsentStandby:
    """Within the block, commits wait for a synchronous standby that is absent, unless it returns before."""

    def __init__(self, server: LocalPostgres) -> None:
        self._server = server
        self._commits: list[Thread] = []

    def __enter__(self) -> "AbsentStandby":
        self._server.execute("ALTER SYSTEM SET synchronous_standby_names = 'absent'", "SELECT pg_reload_conf()")
        is_set = "SELECT current_setting('synchronous_standby_names') = 'absent'"
        wait_until(lambda: self._server.execute(is_set) == [(True,)], "the absent standby", DEADLINE_S)
        return self

    def commit(self, statement: str) -> None:
        """Run a statement, which commits and waits."""
        before = len(self._server.execute(WAITING))
        self._commits.append(Thread(target=self._server.execute, args=(statement,), daemon=True))
        self._commits[-1].start()
        wait_until(lambda: len(self._server.execute(WAITING)) > before, "a commit that waits", DEADLINE_S)

    def cancel_first_wait(self) -> None:
        """Let the commit that has waited longest become visible."""
        self._server.execute(f"SELECT pg_cancel_backend({self._server.execute(WAITING)[0][0]})")

    def __exit__(self, *_: object) -> None:
        self._server.execute("ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()")
        for commit in self._commits:
            commit.join(DEADLINE_S)
            assert not commit.is_alive()


@contextmanager
def open_transaction(server: LocalPostgres, statement: str) -> Iterator[None]:
    """A transaction that has changed something and stays open."""
    with closing(server.connect()) as connection:
        connection.autocommit = False
        with connection.cursor() as cursor:
            cursor.execute(statement)
        yield


def is_visible(rig: CaptureRig, shape_id: str) -> bool:
    entry = rig.registry().get(shape_id)
    return entry is not None and entry.starts_visible


def test_a_start_becomes_visible_although_an_old_transaction_stays_open(rig: CaptureRig) -> None:
    """Nobody commits, so nothing but capture itself has the server flush, and send, what the transaction wrote.

    Its table was published before it began: it began after capture had connected; or, for a shape without a snapshot of
    a new source, after the slot was created.
    """
    with open_transaction(rig.server, INSERT_USER):
        rig.define(shape("bare", snapshot=False))
        capture = rig.start()
        rig.wait(lambda: "bare" in rig.registry(), "the shape of a new source")
    with open_transaction(rig.server, INSERT_USER):
        rig.define(shape("users"), shape("bare", snapshot=False))
        rig.wait(lambda: is_visible(rig, "users"), "the start of a shape that is added")
        with open_transaction(rig.server, INSERT_USER):
            rig.define(shape("users"), shape("bare", snapshot=False), shape("later"))
            rig.wait(lambda: is_visible(rig, "later"), "the start of another shape")
        capture.stop()
    snapshots = {name: entry.definition.snapshot for name, entry in rig.registry().items()}
    assert snapshots == {"users": True, "bare": False, "later": True}
    assert not is_visible(rig, "bare")


def test_a_start_waits_for_a_commit_that_waits_for_a_standby(rig: CaptureRig) -> None:
    """Also after capture was restarted past that commit: the server does not send it again, but it is still invisible.

    Meanwhile changes reach the shape, and a later commit that waits does not count.
    """
    rig.define(shape("users", snapshot=False))
    capture = rig.start()
    rig.execute_and_wait(INSERT_USER)
    with AbsentStandby(rig.server) as standby:
        standby.commit(INSERT_USER)
        rig.define(shape("users", snapshot=False), shape("later"))
        rig.wait(lambda: "later" in rig.registry(), "the shape")
        run_in_transaction(rig.server, [LOCAL, INSERT_USER])
        rig.wait(lambda: rig.operations("later") == ["insert"], "a change for the shape")
        rig.acknowledge_all()
        capture.stop()
        assert not is_visible(rig, "later")
        capture = rig.start()
        run_in_transaction(rig.server, [LOCAL, INSERT_USER])
        rig.wait(lambda: rig.operations("later") == ["insert"] * 2, "another change for the shape")
        # Longer than it takes to find out that a transaction is only open.
        rig.wait_for_commits(rig.commit_lsn("SELECT pg_sleep(1.5)"))
        assert not is_visible(rig, "later")
        standby.commit(INSERT_USER)
        standby.cancel_first_wait()
        rig.wait(lambda: is_visible(rig, "later"), "the start, once the first commit is visible")
    capture.stop()


def test_what_is_in_progress_is_listed_with_whether_it_may_have_committed(postgres: LocalPostgres) -> None:
    """Also what is prepared, whose commit belongs to no session of its own; and what this role may not look at."""
    postgres.execute("ALTER SYSTEM SET max_prepared_transactions = 5", "ALTER SYSTEM SET autovacuum = off")
    postgres.restart()
    postgres.execute(USERS, "CREATE ROLE plain LOGIN")
    with closing(postgres.connect()) as connection, closing(postgres.connect(user="plain")) as plain:
        server, seen_by_plain = ServerTables(connection, "p"), ServerTables(plain, "p")
        assert server.in_progress() == {}
        with open_transaction(postgres, INSERT_USER):
            run_in_transaction(postgres, [INSERT_USER, "PREPARE TRANSACTION 'p'"])
            found = server.in_progress()
            assert list(found.values()) == [False, False]
            assert seen_by_plain.in_progress() == found
            assert not any(server.snapshot().sees(xid) for xid in found)
            with AbsentStandby(postgres) as standby:
                standby.commit("COMMIT PREPARED 'p'")
                assert sorted(server.in_progress().items()) == list(zip(sorted(found), [False, True], strict=True))
                assert seen_by_plain.in_progress() == dict.fromkeys(found, True)
        wait_until(lambda: not server.in_progress(), "the end of both", DEADLINE_S)


def test_the_wal_is_flushed_without_waiting_for_a_standby(postgres: LocalPostgres) -> None:
    """Capture's one thread runs this, and would wait for as long as the standby is absent; any role may."""
    postgres.execute(USERS, "CREATE ROLE plain LOGIN")
    insert_lsn = "SELECT pg_current_wal_insert_lsn()::text"
    with (
        closing(postgres.connect(user="plain")) as connection,
        AbsentStandby(postgres),
        open_transaction(postgres, INSERT_USER),
    ):
        ((text,),) = rows(connection, insert_lsn)
        ServerTables(connection, "p").flush_wal(parse_lsn(text))
        is_flushed = f"SELECT pg_current_wal_flush_lsn() > '{text}'"
        wait_until(lambda: rows(connection, is_flushed) == [(True,)], "the flush", 5)
        before = rows(connection, insert_lsn)
        ServerTables(connection, "p").flush_wal(parse_lsn(text))
        assert rows(connection, insert_lsn) == before


def test_a_standby_does_not_tell_what_is_visible_on_its_primary(
    rig: CaptureRig, postgres_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It replays a commit that waits for another standby, and shows it at once. Snapshots are the primary's."""
    primary = rig.server
    with primary.standby(postgres_folder / "standby") as standby:
        create_slot_on_standby(primary, standby)
        rig.settings["postgres"] = dict(standby.options)
        rig.define(shape("bare", snapshot=False))
        capture = rig.start()
        rig.wait(lambda: "bare" in rig.registry(), "the first shape")
        with AbsentStandby(primary) as absent:
            absent.commit(INSERT_USER)
            rig.define(shape("bare", snapshot=False), shape("users"))
            rig.wait(lambda: "shape_ids=users reason=capture reads a standby" in caplog.text, "the reason to wait")
            counted = "SELECT count(*) FROM users"
            assert (primary.execute(counted), standby.execute(counted)) == ([(0,)], [(1,)])
            assert not is_visible(rig, "users")
        capture.stop()
