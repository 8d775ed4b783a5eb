"""Capture when its server or slot has changed: restarted, restored from a copy, promoted, advanced, or lost."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from flushtracker.errors import LostSlotError
from flushtracker.local.broker import LocalBroker
from flushtracker.wal.lsn import format_lsn
from tests.support.capture_rig import INSERT_USER, CaptureRig, RigOn, shape
from tests.support.deleted_records import delete_compacted
from tests.support.insert_load import published_ids

INSERT_MANY: Final = "INSERT INTO users (region) SELECT 'eu' FROM generate_series(1, 5000)"
_FLUSHERS: Final = """
SELECT pid FROM pg_stat_activity
WHERE backend_type IN ('walwriter', 'background writer', 'checkpointer', 'autovacuum launcher')
"""
_OTHER_WAL: Final = "SELECT pg_logical_emit_message(false, 'nobody', repeat('x', 1000))"


def test_a_new_shape_gets_what_commits_after_a_crash_that_lost_wal(rig: CaptureRig) -> None:
    """A shape starts after WAL that is flushed: what was not is gone, and other commits get its LSNs."""
    rig.server.execute("CREATE TABLE other (note text)")
    capture = rig.start()
    rig.execute_and_wait(INSERT_USER)
    for (pid,) in rig.server.execute(_FLUSHERS):
        os.kill(int(pid), signal.SIGSTOP)
    rig.server.execute(
        "SET synchronous_commit = off; INSERT INTO other SELECT repeat('x', 100) FROM generate_series(1, 2000)"
    )
    rig.define(shape("users"), shape("new", "public.users"))
    rig.wait(lambda: "new" in rig.registry(), "the new shape")
    lost = rig.commit_lsn()
    rig.server.kill()
    rig.server.start()
    rig.execute_and_wait(INSERT_USER)
    capture.stop()
    assert max(event.lsn for event in rig.fragments() if event.xid is not None) < lost
    assert rig.operations("new") == ["insert"]


def test_unrelated_traffic_does_not_pin_the_slot(rig: CaptureRig) -> None:
    """Writes to another database advance the end of the WAL; if nothing is written, a heartbeat does."""
    rig.settings["capture"]["intervals"]["heartbeat"] = "100 ms"
    rig.server.execute("CREATE DATABASE other")
    capture = rig.start()
    rig.execute_and_wait(INSERT_USER)
    before = rig.confirmed_lsn()
    connection = rig.server.connect(dbname="other")
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE noise AS SELECT generate_series(1, 1000) AS id")
    connection.close()
    rig.execute_and_wait()
    rig.acknowledge_all()
    assert rig.confirmed_lsn() > before + 50_000
    end = rig.confirmed_lsn()
    rig.wait(lambda: rig.fragments()[-1].lsn > end, "a heartbeat's keepalive")
    capture.stop()


@pytest.fixture
def own_broker(rig: CaptureRig, killable_broker: LocalBroker, rig_on: RigOn) -> tuple[CaptureRig, LocalBroker]:
    """A rig on the same server with a broker that the test may kill."""
    own_rig = rig_on(rig.server, "own", killable_broker)
    own_rig.define(shape("users"))
    own_rig.create_topics()
    return own_rig, killable_broker


def test_status_updates_continue_while_the_brokers_are_unavailable(own_broker: tuple[CaptureRig, LocalBroker]) -> None:
    """For longer than `wal_sender_timeout`: the connection survives, and the backlog is published afterwards."""
    rig, broker = own_broker
    rig.server.execute("ALTER SYSTEM SET wal_sender_timeout = '1s'", "SELECT pg_reload_conf()")
    capture = rig.start()
    rig.execute_and_wait(INSERT_USER)
    pid = rig.server.execute("SELECT active_pid FROM pg_replication_slots")
    broker.kill()
    rig.server.execute(*[INSERT_USER] * 50)
    time.sleep(2)  # twice wal_sender_timeout; there is no event to wait for, since nothing may happen
    assert rig.server.execute("SELECT active_pid FROM pg_replication_slots") == pid
    broker.start()
    rig.execute_and_wait(INSERT_USER)
    capture.stop()
    assert len(published_ids(rig)) == 52
    assert rig.server.execute("SELECT active_pid FROM pg_replication_slots") == [(None,)]


def test_capture_stops_while_the_brokers_are_unavailable(
    own_broker: tuple[CaptureRig, LocalBroker], caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise it would retry for 120 s, since the entry of a new shape must be confirmed first."""
    rig, broker = own_broker
    capture = rig.start()
    rig.execute_and_wait(INSERT_USER)
    broker.kill()
    rig.define(shape("users"), shape("more"))
    rig.wait(lambda: "waiting for kafka" in caplog.text, "capture waiting for the brokers")
    capture.stop()
    assert "stopped with unconfirmed records reason=Kafka at" in caplog.text


def test_capture_waits_for_a_slot_that_is_still_in_use(rig: CaptureRig) -> None:
    """The server may keep the connection of a dead process; a second capture takes over once it is closed."""
    first = rig.start()
    rig.execute_and_wait(INSERT_USER)
    second = rig.start(waits=True)
    rig.wait(lambda: second.loop.has_answered, "an attempt of the second")
    assert second.error is None
    first.stop()
    rig.wait(lambda: second.loop.source is not None, "the slot used by the second")
    rig.execute_and_wait(INSERT_USER)
    second.stop()
    assert published_ids(rig) == [1, 2]


def test_a_slot_that_was_advanced_by_someone_else_is_refused(rig: CaptureRig) -> None:
    """Transactions between the ack and the slot's position are in no shape, and the server never sends them again."""
    rig.capture_once(acknowledges=True)
    # The server may find the connection closed a moment later.
    active = "SELECT 1 FROM pg_replication_slots WHERE active"
    rig.wait(lambda: not rig.server.execute(active), "the slot is free")
    rig.server.execute(INSERT_USER, "SELECT pg_replication_slot_advance('shapes', pg_current_wal_lsn())")
    failure = rig.start().failure()
    assert failure.startswith("SlotError")
    assert "another client advanced the slot" in failure
    rig.capture_once(new_epoch=True)
    assert rig.source().endswith("/1/shapes/1")
    rig.capture_once()
    assert rig.source().endswith("/1/shapes/1")


def test_a_lost_slot_is_a_final_error_that_states_what_to_do(rig: CaptureRig) -> None:
    """The server has removed WAL that the slot still needed."""
    rig.capture_once()
    rig.server.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'", "SELECT pg_reload_conf()")
    for _ in range(3):
        rig.server.execute("SELECT pg_switch_wal()", INSERT_USER, "CHECKPOINT")
    failure = rig.start().failure()
    assert failure.startswith("LostSlotError: replication slot shapes is lost")
    assert "--create --new-epoch" in failure
    rig.settings["status"] = {"listen": "127.0.0.1:0"}
    telling = rig.start()
    rig.wait(lambda: (slot := telling.loop.status().slot) and slot.wal_status == "lost", "the status of the lost slot")
    assert telling.thread.is_alive()
    with pytest.raises(LostSlotError):
        telling.stop()


def test_a_slot_that_is_lost_while_it_is_read_ends_capture(rig: CaptureRig) -> None:
    """The server ends the connection, to remove WAL that the shapes have held for too long; no retry can help."""
    capture = rig.start()
    rig.execute_and_wait(INSERT_USER)
    rig.acknowledge_all()
    rig.server.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'", "SELECT pg_reload_conf()")
    for _ in range(3):
        rig.server.execute("SELECT pg_switch_wal()", INSERT_USER, "CHECKPOINT")
    failure = capture.failure()
    assert failure.startswith("LostSlotError: replication slot shapes is lost (wal_removed)")
    assert "A larger max_slot_wal_keep_size helps" in failure


@pytest.mark.parametrize("diverged", [False, True], ids=["behind", "diverged"])
def test_a_server_restored_from_a_copy_is_refused(rig: CaptureRig, postgres_folder: Path, diverged: bool) -> None:  # noqa: FBT001  a parameter of the test
    """It is behind what was published, or past it with other transactions; a new epoch continues as a new source."""
    rig.capture_once(acknowledges=True)
    rig.server.stop()
    copy = rig.server.copy_to(postgres_folder / "copy")
    rig.server.start()
    rig.capture_once(INSERT_USER, INSERT_USER)
    copy.settings["max_wal_senders"] = "10"
    with copy:
        if diverged:
            copy.execute(*["INSERT INTO users (region) VALUES ('us')"] * 50)
        rig.settings["postgres"] = dict(copy.options)
        failure = rig.start().failure()
        assert failure.startswith("SlotError")
        assert ("has diverged since" if diverged else "it was probably restored from a copy") in failure
        capture = rig.start(new_epoch=True)
        rig.server.stop()
        rig.server = copy
        rig.execute_and_wait(INSERT_USER)
        capture.stop()
        assert rig.source().endswith("/1/shapes/1")


def test_a_restored_server_is_refused_although_nothing_was_published_since_the_copy(
    rig: CaptureRig, postgres_folder: Path
) -> None:
    """Only keepalives were acknowledged since, for what other tables wrote. It has changes at their LSNs, which the
    acks would confirm although no shape has flushed them, and with xids that snapshots of that time have seen.
    """
    capture = rig.start()
    rig.execute_and_wait(INSERT_USER)
    rig.acknowledge_all()
    rig.execute_and_wait(*[_OTHER_WAL] * 2)
    rig.acknowledge_all()
    capture.stop()
    rig.server.stop()
    copy = rig.server.copy_to(postgres_folder / "copy")
    rig.server.start()
    capture = rig.start()
    rig.execute_and_wait(*[_OTHER_WAL] * 20)
    ack_lsn = rig.acknowledge_all()
    capture.stop()
    published = len(rig.changes())
    rig.server.stop()
    rig.server = copy
    rig.settings["postgres"] = dict(copy.options)
    with copy:
        copy.execute(INSERT_USER)
        while rig.commit_lsn(_OTHER_WAL) <= ack_lsn:
            pass
        # Its commit flushes all before it, so that the positions look right.
        copy.execute(INSERT_USER)
        before = rig.confirmed_lsn()
        assert f"although all up to {format_lsn(ack_lsn)} is acknowledged without it" in rig.start().failure()
        assert (rig.confirmed_lsn(), len(rig.changes())) == (before, published)


def test_a_restored_server_that_a_reconnect_reaches_is_confirmed_nothing(
    rig: CaptureRig, postgres_folder: Path
) -> None:
    """The ack is of other transactions than those that its slot would send."""
    rig.server.stop()
    copy = rig.server.copy_to(postgres_folder / "copy")
    copy.settings["max_wal_senders"] = "10"
    rig.server.start()
    capture = rig.start()
    rig.execute_and_wait(*[INSERT_MANY] * 4)
    rig.acknowledge_all()
    rig.execute_and_wait(INSERT_USER)
    with copy:
        copy.execute(*[INSERT_MANY] * 8)
        copy.stop()
        rig.server.kill()
        copy.port, rig.server = rig.server.port, copy
        copy.start()
        before = rig.confirmed_lsn()
        assert "has diverged since" in capture.failure()
        assert rig.confirmed_lsn() == before


def test_a_promoted_standby_with_a_new_slot_is_refused(rig: CaptureRig, postgres_folder: Path) -> None:
    """The slot lacks what was written before it was created; a new epoch goes on, with shapes that begin again."""
    rig.capture_once()
    first = rig.source()
    with rig.server.standby(postgres_folder / "standby") as standby:
        rig.server.stop()
        standby.execute("SELECT pg_promote()", "SELECT pg_create_logical_replication_slot('shapes', 'pgoutput')")
        rig.server = standby
        rig.settings["postgres"] = dict(standby.options)
        assert "the failover has lost the slot, and another one was created" in rig.start().failure()
        rig.capture_once(new_epoch=True)
    assert rig.source() == f"{first}/1"
    assert len(published_ids(rig)) == 2


def test_a_registry_that_loses_its_beginning_is_replaced_more_than_once(
    rig: CaptureRig, topic_name: Callable[[str], str]
) -> None:
    """Capture may lack shapes then, so it refuses; each time, a new topic and a new epoch go on, under another name."""
    kafka = rig.settings["kafka"]
    sources = []
    for number in (1, 2):
        rig.capture_once(acknowledges=True, new_epoch=number > 1)
        sources.append(rig.source())
        delete_compacted(kafka["bootstrap_servers"], rig.topics["shapes"])
        assert "begins at Kafka offset" in rig.start().failure()
        assert "begins at Kafka offset" in rig.start(new_epoch=True).failure()
        kafka["topic_prefix"] = topic_name(f"rig{number}")
        rig.create_topics()
        assert "but no entry in the shape registry" in rig.start().failure()
    rig.capture_once(new_epoch=True)
    assert [*sources, rig.source()] == [sources[0], f"{sources[0]}/1", f"{sources[0]}/2"]
