"""Connections that hang, and connections that only seem to: capture gives up the former and keeps the latter."""

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest

from flushtracker.capture.wire import receiver_timeout
from flushtracker.capture.wire.standby_status import StandbyStatus
from flushtracker.errors import PostgresUnavailableError
from flushtracker.local.postgres import LocalPostgres
from flushtracker.postgres import connection, server_tables
from flushtracker.postgres.connection import connect, connect_for_replication, rows
from flushtracker.postgres.replication_frames import Frame
from flushtracker.postgres.replication_stream import ReplicationStream
from flushtracker.postgres.server_tables import ServerTables
from tests.support.capture_rig import CaptureRig, RigOn, shape
from tests.support.seeds import in_turn

INSERT = "INSERT INTO users (region) VALUES ('eu')"
UNPUBLISHED = "INSERT INTO bulk SELECT generate_series(1, 1000000)"


@pytest.fixture
def rig(postgres: LocalPostgres, rig_on: RigOn, monkeypatch: pytest.MonkeyPatch) -> CaptureRig:
    """A published table with a shape and one that is not published; capture is impatient."""
    monkeypatch.setattr(receiver_timeout, "REPLY_REQUEST_S", 0.2)
    monkeypatch.setattr(receiver_timeout, "SHORTEST_LIMIT_S", 0.2)
    monkeypatch.setattr(server_tables, "LOCK_TIMEOUT_S", 0.3)
    rig = rig_on(postgres)
    rig.create_topics()
    postgres.execute(
        "CREATE TABLE users (id serial PRIMARY KEY, region text)",
        "CREATE TABLE bulk (id int)",
        "CREATE PUBLICATION shapes FOR TABLE users",
        "SELECT pg_create_logical_replication_slot('shapes', 'pgoutput')",
    )
    rig.define(shape("users"))
    return rig


def execute_and_wait(rig: CaptureRig, *statements: str) -> None:
    """Execute the statements and wait until all their changes are published."""
    rig.wait_for_commits(rig.commit_lsn(*statements))


def set_wal_sender_timeout(rig: CaptureRig, value: str) -> None:
    rig.server.execute(f"ALTER SYSTEM SET wal_sender_timeout = '{value}'", "SELECT pg_reload_conf()")


def slot_pid(rig: CaptureRig) -> int | None:
    ((pid,),) = rig.server.execute("SELECT active_pid FROM pg_replication_slots")
    return None if pid is None else int(pid)


def connections(rig: CaptureRig) -> int:
    """How many connections have published something."""
    return [event.start for event in rig.fragments()].count(True)


@contextmanager
def stopped(pid: int | None) -> Iterator[None]:
    """A process of the server that hangs; its kernel still answers the TCP segments."""
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("timeout", in_turn(["0", "10min"]))
def test_a_server_that_decodes_a_large_unpublished_transaction_is_not_given_up(
    rig: CaptureRig, timeout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It replies only every half `wal_sender_timeout`; after a reconnect it would decode it all again, forever.

    That takes no longer than it takes; on a fast machine, still longer than a limit without the timeout would be.
    """
    monkeypatch.setattr(receiver_timeout, "REPLY_REQUEST_S", 0.01)
    monkeypatch.setattr(receiver_timeout, "SHORTEST_LIMIT_S", 0.01)
    set_wal_sender_timeout(rig, timeout)
    capture = rig.start()
    execute_and_wait(rig, INSERT)
    pid = slot_pid(rig)
    rig.wait_for_commits(rig.commit_lsn(UNPUBLISHED, INSERT), timeout_s=300)
    assert slot_pid(rig) == pid
    capture.stop()
    assert connections(rig) == 1
    assert len(rig.items("users")) == 2


def test_any_silence_is_tolerated_when_the_server_has_no_wal_sender_timeout(rig: CaptureRig) -> None:
    """Many times as long as what is a lost connection otherwise."""
    set_wal_sender_timeout(rig, "0")
    capture = rig.start()
    execute_and_wait(rig, INSERT)
    pid = slot_pid(rig)
    with stopped(pid):
        lsn = rig.commit_lsn(INSERT)
        time.sleep(2)  # there is no event to wait for, since nothing may happen
    rig.wait_for_commits(lsn)
    assert slot_pid(rig) == pid
    capture.stop()
    assert connections(rig) == 1


def test_a_server_that_does_not_reply_within_its_wal_sender_timeout_is_given_up(
    rig: CaptureRig, caplog: pytest.LogCaptureFixture
) -> None:
    """Capture connects again, and continues once the slot is released."""
    set_wal_sender_timeout(rig, "1s")
    capture = rig.start()
    execute_and_wait(rig, INSERT)
    with stopped(slot_pid(rig)):
        lsn = rig.commit_lsn(INSERT)
        rig.wait(lambda: "by its wal_sender_timeout of 1 s" in caplog.text, "the connection given up")
    rig.wait_for_commits(lsn)
    capture.stop()
    assert connections(rig) == 2
    assert len(rig.items("users")) == 2


def test_capture_reconnects_when_a_query_waits_too_long_for_a_lock(
    rig: CaptureRig, caplog: pytest.LogCaptureFixture
) -> None:
    """The thread that reads the stream runs the query; it is canceled and retried, and then capture continues."""
    capture = rig.start()
    execute_and_wait(rig, INSERT)
    with closing(rig.server.connect()) as holder, holder.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("LOCK TABLE pg_publication IN ACCESS EXCLUSIVE MODE")
        rig.wait(lambda: caplog.text.count("canceling statement due to lock timeout") > 1, "a retry that fails too")
    execute_and_wait(rig, INSERT)
    capture.stop()
    assert len(rig.items("users")) == 2


def test_a_partition_that_its_owner_keeps_locked_ends_the_shapes_of_its_table_only(
    rig: CaptureRig, caplog: pytest.LogCaptureFixture
) -> None:
    """Whether it has rows cannot be seen while it is locked: shapes of others waited for that, at each start."""
    rig.server.execute(
        "CREATE TABLE parted (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE filled (id int PRIMARY KEY)",
        "INSERT INTO filled VALUES (1)",
        "ALTER PUBLICATION shapes ADD TABLE parted",
    )
    rig.define(shape("users"), shape("parted", "public.parted"))
    capture = rig.start()
    execute_and_wait(rig, INSERT)
    capture.stop()
    with closing(rig.server.connect()) as owner, owner.cursor() as cursor:
        rig.server.execute("ALTER TABLE parted ATTACH PARTITION filled FOR VALUES FROM (0) TO (10)")
        cursor.execute("BEGIN")
        cursor.execute("LOCK TABLE filled")
        capture = rig.start()
        execute_and_wait(rig, INSERT)
        rig.wait(lambda: rig.registry()["parted"].removed_at is not None, "the end of the shape")
    capture.stop()
    assert len(rig.items("users")) == 2
    assert rig.registry()["users"].removed_at is None
    assert "may have had rows" in (rig.registry()["parted"].ended_because or "")
    assert "new partition is locked, so it may have rows" in caplog.text


def test_a_query_that_hangs_is_canceled_and_counts_as_unavailable(
    rig: CaptureRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise capture would end with it, or wait forever."""
    monkeypatch.setattr(server_tables, "STATEMENT_TIMEOUT_S", 0.3)
    with closing(connect(rig.server.options)) as control:
        ServerTables(control, "shapes")
        with pytest.raises(PostgresUnavailableError, match="due to statement timeout; pg_stat_activity and pg_locks"):
            rows(control, "SELECT pg_sleep(60)")


def test_capture_reconnects_when_the_server_process_of_its_queries_hangs(
    rig: CaptureRig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Such a process does not enforce a timeout either; capture continues while it still hangs."""
    monkeypatch.setattr(server_tables, "STATEMENT_TIMEOUT_S", 0.3)
    monkeypatch.setattr(connection, "_ANSWER_MARGIN_S", 0.2)
    capture = rig.start()
    execute_and_wait(rig, INSERT)
    ((pid,),) = rig.server.execute(
        "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' "
        "AND application_name = 'flushtracker_capture' AND pid <> pg_backend_pid()"
    )
    with stopped(pid):
        rig.wait(lambda: "has not answered a query for 0.5 s" in caplog.text, "the connection given up")
        execute_and_wait(rig, INSERT)
    capture.stop()
    assert len(rig.items("users")) == 2


def test_a_stream_whose_server_process_hangs_before_it_starts_is_given_up(
    rig: CaptureRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once it has started, reads do not block, and the limit of silence applies."""
    monkeypatch.setattr(connection.ReplicationConnection, "answer_timeout_s", 0.3)
    walsender = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'walsender'"
    for command in (ReplicationStream.identify_system, lambda stream: stream.start("shapes", "shapes")):
        with (
            closing(ReplicationStream(rig.server.options)) as stream,
            stopped(rig.server.execute(walsender)[0][0]),
            pytest.raises(PostgresUnavailableError, match=r"has not answered a query for 0\.3 s"),
        ):
            command(stream)
        rig.wait(lambda: rig.server.execute(walsender) == [], "the server process ended")


def test_a_lost_connection_that_the_sending_thread_notices_first_is_reported_by_the_next_read(
    postgres: LocalPostgres,
) -> None:
    """libpq closes the socket in whichever call notices it, so there may be none left to wait for."""
    postgres.execute("CREATE PUBLICATION p", "SELECT pg_create_logical_replication_slot('s', 'pgoutput')")
    with closing(ReplicationStream(postgres.options)) as stream:
        pid = stream.identify_system().pid
        stream.start("s", "p")
        postgres.execute(f"SELECT pg_terminate_backend({pid}, 30000)")
        with pytest.raises(PostgresUnavailableError, match="interrupted"):
            repeat(lambda: stream.send(StandbyStatus(0).status_update(0)))
        with pytest.raises(PostgresUnavailableError, match="terminating connection due to administrator command"):
            repeat(lambda: waited_and_read(stream))


def waited_and_read(stream: ReplicationStream) -> list[Frame]:
    stream.wait(60)
    return stream.read()


def repeat(call: Callable[[], object]) -> None:
    """Until it raises."""
    while True:
        call()


def test_a_vanished_peer_is_found_by_tcp_on_both_connections(postgres: LocalPostgres) -> None:
    """Also while data are unacknowledged, when no keepalives are sent; the user's own value is kept."""
    for open_connection in (connect, connect_for_replication):
        for options, expected_ms in (({}, 30_000), ({"tcp_user_timeout": "7000"}, 7_000)):
            with (
                closing(open_connection({**postgres.options, **options})) as opened,
                socket.socket(fileno=os.dup(opened.fileno())) as endpoint,
            ):
                assert endpoint.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
                assert endpoint.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 10
                assert endpoint.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == expected_ms
