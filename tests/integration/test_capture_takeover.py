"""Capture when another server or another capture process takes over while it keeps running."""

import signal
from contextlib import closing
from pathlib import Path

import pytest

from flushtracker.capture.wire import slot_takeover
from flushtracker.errors import PostgresError, PostgresUnavailableError, SlotHeldError
from flushtracker.local.free_ports import HOST
from flushtracker.local.postgres import LocalPostgres
from flushtracker.postgres.connection import rows
from flushtracker.postgres.replication_stream import ReplicationStream
from flushtracker.postgres.slot import create_slot, read_held_slot, read_slot
from flushtracker.wal.lsn import parse_lsn
from tests.support.capture_rig import CaptureRig, RigOn, shape
from tests.support.failover_pair import create_slot_on_standby, slot_position
from tests.support.seeds import every

USERS = "CREATE TABLE users (id serial PRIMARY KEY, region text)"
INSERT = "INSERT INTO users (region) VALUES ('eu')"


@pytest.fixture
def other(rig: CaptureRig, rig_on: RigOn) -> CaptureRig:
    """A second process for the same slot and topics, with a shapes file of its own."""
    other = rig_on(rig.server, "other")
    other.settings["kafka"] = rig.settings["kafka"]
    other.settings["storage"] = rig.settings["storage"]
    return other


def routings(rig: CaptureRig) -> dict[int, list[set[str]]]:
    """For each transaction, the shapes that it was routed to, each time that it was published."""
    routings: dict[int, list[set[str]]] = {}
    for event in rig.fragments():
        if event.xid is not None:
            routings.setdefault(event.lsn, []).append({routed.shape_id for routed in event.shapes})
    return routings


def test_shapes_that_another_process_added_are_known_after_a_reconnect(rig: CaptureRig, other: CaptureRig) -> None:
    """The first is shut out, the second adds a shape and routes by it, and the first returns."""
    server = rig.server
    server.execute("CREATE ROLE first LOGIN REPLICATION")
    rig.settings["postgres"]["user"] = "first"
    capture = rig.start()
    rig.wait_for_commits(rig.commit_lsn(INSERT))
    server.execute(
        "ALTER ROLE first CONNECTION LIMIT 0",
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'first'",
    )
    other.define(shape("users"), shape("late"))
    process = other.start_process()
    rig.wait(lambda: "late" in rig.registry(), "the shape of the second process")
    starts_after = rig.registry()["late"].starts_after
    rig.wait_for_commits(rig.commit_lsn(INSERT))
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0
    server.execute("ALTER ROLE first CONNECTION LIMIT -1")
    rig.wait_for_commits(rig.commit_lsn(INSERT))
    capture.stop()
    first, second, third = (routings(rig)[lsn] for lsn in sorted(routings(rig)))
    assert first == [{"users"}] * 3
    assert second == [{"users", "late"}] * 2
    assert third == [{"users", "late"}]
    assert (rig.registry()["late"].starts_after, rig.registry()["late"].removed_at) == (starts_after, None)


def test_a_second_capture_says_who_holds_the_slot_and_ends_or_waits_if_told(
    rig: CaptureRig, other: CaptureRig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It retried in silence, and whoever had started it took the one that ran for it."""
    monkeypatch.setattr(slot_takeover, "PATIENCE_S", 0.5)
    other.define(shape("users"))
    first = rig.start()
    rig.wait_for_commits(rig.commit_lsn(INSERT))
    ((pid, since),) = rig.server.execute(
        "SELECT pid, to_char(backend_start AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS') FROM pg_stat_replication"
    )
    holder = f"replication slot shapes is held by process {pid} (flushtracker_capture, from {HOST}, since {since}Z)"
    second = other.start()
    rig.wait(lambda: isinstance(second.error, SlotHeldError), "the end of the second")
    assert str(second.error).startswith(f"{holder}: another capture runs. Stop one of the two, or start this one with")
    third = other.start(waits=True)
    rig.wait(lambda: "waiting for the slot slot=shapes held_by=process" in caplog.text, "the third waits")
    rig.wait(lambda: caplog.text.count(f"reason={holder}\n") > 4, "the third waits for longer than the second")
    first.stop()
    rig.wait_for_commits(rig.commit_lsn(INSERT))
    third.stop()


def test_the_slot_of_another_server_than_the_streams_is_not_used(postgres: LocalPostgres) -> None:
    """A failover between the two connections: the old server's position would confirm what the new one has not sent."""
    control = postgres.connect()
    create_slot(control, "s")
    postgres.execute("CREATE PUBLICATION p")
    stream = ReplicationStream(postgres.options)
    pid = stream.identify_system().pid
    with pytest.raises(PostgresUnavailableError, match=rf"read by process None .* from process {pid}: the two conn"):
        read_held_slot(control, "s", pid)
    stream.start("s", "p")
    assert read_held_slot(control, "s", pid).active_pid == pid
    stream.close()
    control.close()


def test_a_temporary_slot_is_refused(postgres: LocalPostgres) -> None:
    """As the copy on a standby is until it is complete; a promotion drops it."""
    with closing(postgres.connect()) as control:
        rows(control, "SELECT pg_create_logical_replication_slot('s', 'pgoutput', true)")
        with pytest.raises(PostgresError, match=r"replication slot s is temporary: .* Connect capture to the primary"):
            read_slot(control, "s")


@every(2, 0)
def test_a_slot_that_was_created_on_a_standby_continues_after_its_promotion(
    rig: CaptureRig, postgres_folder: Path
) -> None:
    """As before PostgreSQL 17. The slot is behind the acks, which move it once what was published was sent again."""
    with rig.server.standby(postgres_folder / "standby") as standby:
        primary, start = rig.server, create_slot_on_standby(rig.server, standby)
        rig.settings["postgres"] |= {
            "host": f"{HOST},{HOST}",
            "port": f"{primary.port},{standby.port}",
            "target_session_attrs": "read-write",
        }
        capture = rig.start()
        old_lsn = rig.commit_lsn(INSERT, INSERT)
        rig.wait_for_commits(old_lsn)
        last_ack = rig.acknowledge_all()
        ((end,),) = primary.execute("SELECT pg_current_wal_flush_lsn()::text")
        replayed = f"SELECT pg_last_wal_replay_lsn() >= '{end}'"
        rig.wait(lambda: standby.execute(replayed) == [(True,)], "the standby caught up")
        source = rig.source()
        assert slot_position(standby) == start
        primary.kill()
        standby.execute("SELECT pg_promote()")
        rig.server = standby
        lsn = rig.commit_lsn(INSERT)
        rig.wait_for_commits(lsn)
        rig.wait(lambda: slot_position(standby) == last_ack + 1, "the slot at the ack of before")
        assert {event.source for event in rig.fragments()} == {source}
        assert len(rig.items("users")) == 3
        rig.acknowledge_all()
        assert slot_position(standby) >= lsn
        capture.stop()


@every(2, 1)
def test_heartbeats_do_not_end_the_capture_of_a_standby(
    rig: CaptureRig, postgres_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A standby cannot write WAL, which is logged once; after its promotion it can."""
    rig.settings["capture"]["intervals"]["heartbeat"] = "50 ms"
    with rig.server.standby(postgres_folder / "standby") as standby:
        primary = rig.server
        create_slot_on_standby(primary, standby)
        rig.settings["postgres"] = dict(standby.options)
        capture = rig.start()
        rig.wait_for_commits(rig.commit_lsn(INSERT))
        rig.wait(lambda: caplog.text.count("no heartbeats") > 0, "a heartbeat")
        rig.wait_for_commits(rig.commit_lsn(INSERT))
        assert caplog.text.count("no heartbeats") == 1
        assert rig.operations("users") == ["insert", "insert"]
        primary.kill()
        standby.execute("SELECT pg_promote()")
        ((lsn,),) = standby.execute("SELECT pg_current_wal_insert_lsn()::text")
        rig.wait_for_commits(parse_lsn(lsn) + 2_000)
        capture.stop()
