"""What capture does when the server is not what it was: restarted, restored, promoted, moved on, or not set up."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flushtracker.local.broker import LocalBroker
from flushtracker.local.postgres import LocalPostgres, system_binaries
from tests.integration.conftest import Broker
from tests.support.capture_rig import CaptureRig, shape

USERS = "CREATE TABLE users (id serial PRIMARY KEY, region text)"
INSERT = "INSERT INTO users (region) VALUES ('eu')"


@pytest.fixture
def rig(
    postgres: LocalPostgres, broker: Broker, tmp_path: Path, topic_name: Callable[[str], str]
) -> Iterator[CaptureRig]:
    """Everything made, one shape on one table, nothing captured yet."""
    rig = CaptureRig(postgres, broker.bootstrap_servers, tmp_path, topic_name)
    rig.create()
    postgres.execute(USERS)
    rig.define(shape("users"))
    yield rig
    rig.close()


def captured(rig: CaptureRig, *statements: str) -> None:
    """Run statements and wait until all of them are published."""
    rig.wait_for_commits(rig.commit_lsn(*statements))


def ids(rig: CaptureRig) -> list[int]:
    return [int(str(item.value and item.value["id"])) for item in rig.items("users")]


def test_the_slot_follows_the_acks_and_goes_no_further(rig: CaptureRig) -> None:
    """Without an ack it stays; with one it is confirmed by the position one above, and its WAL is let go."""
    start = rig.confirmed_lsn()
    capture = rig.start()
    captured(rig, INSERT)
    assert rig.confirmed_lsn() == start
    first = rig.acknowledge_all()
    captured(rig, INSERT, INSERT)
    assert rig.confirmed_lsn() == first + 1
    restart_before = rig.server.execute("SELECT restart_lsn::text FROM pg_replication_slots")
    rig.acknowledge_all()
    capture.stop()
    capture = rig.start()
    captured(rig, "CHECKPOINT", INSERT, "CHECKPOINT", INSERT)
    rig.acknowledge_all()
    rig.wait(
        lambda: rig.server.execute("SELECT restart_lsn::text FROM pg_replication_slots") != restart_before,
        "restart_lsn to move",
    )
    capture.stop()
    assert ids(rig) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("how", ["restart", "kill"])
def test_capture_goes_on_after_the_server_came_back(rig: CaptureRig, how: str) -> None:
    """It connects again by itself, and everything unconfirmed is published again, in a new chain."""
    capture = rig.start()
    captured(rig, INSERT)
    if how == "kill":
        rig.server.kill()
        rig.server.start()
    else:
        rig.server.restart()
    captured(rig, INSERT)
    capture.stop()
    assert len(ids(rig)) == 2  # a sequence may leave out numbers after a crash
    assert [event.start for event in rig.fragments()].count(True) == 2


def test_unrelated_traffic_does_not_pin_the_slot(rig: CaptureRig) -> None:
    """What another database writes moves the WAL's end; a heartbeat does where nothing else is written."""
    rig.settings["intervals"]["heartbeat"] = "100 ms"
    rig.server.execute("CREATE DATABASE other")
    capture = rig.start()
    captured(rig, INSERT)
    before = rig.confirmed_lsn()
    connection = rig.server.connect(dbname="other")
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE noise AS SELECT generate_series(1, 1000) AS id")
    connection.close()
    rig.wait_for_commits(rig.commit_lsn())
    rig.acknowledge_all()
    assert rig.confirmed_lsn() > before + 50_000
    end = rig.confirmed_lsn()
    rig.wait(lambda: rig.fragments()[-1].lsn > end, "a heartbeat's keepalive")
    capture.stop()


@pytest.fixture
def away(rig: CaptureRig, tmp_path: Path, topic_name: Callable[[str], str]) -> Iterator[tuple[CaptureRig, LocalBroker]]:
    """The same server with a broker of the test's own, which it may kill."""
    with LocalBroker(tmp_path / "broker") as own:
        away = CaptureRig(rig.server, own.bootstrap_servers, tmp_path / "away", topic_name)
        away.define(shape("users"))
        away.create_topics()
        yield away, own
        away.close()


def test_the_server_is_told_how_far_it_is_while_the_brokers_are_away(away: tuple[CaptureRig, LocalBroker]) -> None:
    """Longer than `wal_sender_timeout`: the connection stays, and what waited is published when they are back."""
    rig, own = away
    rig.server.execute("ALTER SYSTEM SET wal_sender_timeout = '1s'", "SELECT pg_reload_conf()")
    capture = rig.start()
    captured(rig, INSERT)
    pid = rig.server.execute("SELECT active_pid FROM pg_replication_slots")
    own.kill()
    rig.server.execute(*[INSERT] * 50)
    time.sleep(3)  # three times the server's patience: there is no event to wait for, nothing may happen
    assert rig.server.execute("SELECT active_pid FROM pg_replication_slots") == pid
    own.start()
    captured(rig, INSERT)
    capture.stop()
    assert len(ids(rig)) == 52
    assert rig.server.execute("SELECT active_pid FROM pg_replication_slots") == [(None,)]


def test_capture_stops_while_it_waits_for_brokers(
    away: tuple[CaptureRig, LocalBroker], caplog: pytest.LogCaptureFixture
) -> None:
    """However long it would wait otherwise, here 120 s; a new shape's entry would have to be confirmed first."""
    rig, own = away
    capture = rig.start()
    captured(rig, INSERT)
    own.kill()
    rig.define(shape("users"), shape("more"))
    rig.wait(lambda: "waiting for kafka" in caplog.text, "capture to wait for the brokers")
    capture.stop()
    assert "stopped without kafka reason=Kafka at" in caplog.text


def test_capture_waits_for_a_slot_that_another_process_still_has(rig: CaptureRig) -> None:
    """The server may hold on to a connection whose process is gone; a second capture takes over when it lets go."""
    first = rig.start()
    captured(rig, INSERT)
    second = rig.start()
    rig.wait(lambda: second.loop.has_answered, "the second to have tried")
    assert second.error is None
    first.stop()
    rig.wait(lambda: second.loop.source is not None, "the second to have the slot")
    captured(rig, INSERT)
    second.stop()
    assert ids(rig) == [1, 2]


def test_a_slot_that_somebody_else_moved_on_is_refused(rig: CaptureRig) -> None:
    """What lies between the ack and the slot is in no shape, and nobody would ever send it again."""
    capture = rig.start()
    captured(rig, INSERT)
    rig.acknowledge_all()
    capture.stop()
    rig.server.execute(INSERT, "SELECT pg_replication_slot_advance('shapes', pg_current_wal_lsn())")
    failure = rig.start().failure()
    assert failure.startswith("SlotError")
    assert "somebody else has moved it on" in failure
    capture = rig.start(new_epoch=True)
    captured(rig, INSERT)
    capture.stop()
    assert rig.source().endswith("/1/shapes/1")
    capture = rig.start()
    captured(rig, INSERT)
    capture.stop()
    assert rig.source().endswith("/1/shapes/1")


def test_a_lost_slot_is_one_final_error_that_says_what_to_do(rig: CaptureRig) -> None:
    """The server has removed WAL that the slot still needed."""
    captured_once = rig.start()
    captured(rig, INSERT)
    captured_once.stop()
    rig.server.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'", "SELECT pg_reload_conf()")
    for _ in range(3):
        rig.server.execute("SELECT pg_switch_wal()", INSERT, "CHECKPOINT")
    failure = rig.start().failure()
    assert failure.startswith("SlotError: replication slot shapes is lost")
    assert "--create --new-epoch" in failure


@pytest.mark.parametrize("grown", [False, True], ids=["behind", "grown past"])
def test_a_server_restored_from_a_copy_is_refused(rig: CaptureRig, postgres_folder: Path, grown: bool) -> None:  # noqa: FBT001  a parameter of the test
    """Behind what was published, or past it with other transactions: a new epoch goes on with another source."""
    capture = rig.start()
    captured(rig, INSERT)
    rig.acknowledge_all()
    capture.stop()
    rig.server.stop()
    copy = rig.server.copy_to(postgres_folder / "copy")
    rig.server.start()
    capture = rig.start()
    captured(rig, INSERT, INSERT)
    capture.stop()
    copy.settings["max_wal_senders"] = "10"
    with copy:
        if grown:
            copy.execute(*["INSERT INTO users (region) VALUES ('us')"] * 50)
        rig.settings["postgres"]["connection"] = dict(copy.options)
        failure = rig.start().failure()
        assert failure.startswith("SlotError")
        assert ("has another history since" if grown else "it was restored from a copy") in failure
        capture = rig.start(new_epoch=True)
        rig.server.stop()
        rig.server = copy
        captured(rig, INSERT)
        capture.stop()
        assert rig.source().endswith("/1/shapes/1")


def test_a_promoted_standby_is_another_source(rig: CaptureRig, postgres_folder: Path) -> None:
    """It has another timeline; its slot is its own, and what it captures belongs to nobody else's acks."""
    capture = rig.start()
    captured(rig, INSERT)
    capture.stop()
    first = rig.source()
    with rig.server.standby(postgres_folder / "standby") as standby:
        rig.server.stop()
        standby.execute("SELECT pg_promote()", "SELECT pg_create_logical_replication_slot('shapes', 'pgoutput')")
        rig.server = standby
        rig.settings["postgres"]["connection"] = dict(standby.options)
        capture = rig.start()
        captured(rig, INSERT)
        capture.stop()
    system_id, timeline, slot = rig.source().split("/")
    assert first == f"{system_id}/1/{slot}"
    assert timeline == "2"
    assert len(ids(rig)) == 2


def test_the_systems_own_server_is_captured_too(
    broker: Broker, postgres_folder: Path, tmp_path: Path, topic_name: Callable[[str], str]
) -> None:
    """Another major version of PostgreSQL, where one is installed; else the packaged one once more."""
    with LocalPostgres(postgres_folder / "system", binaries=system_binaries()) as server:
        rig = CaptureRig(server, broker.bootstrap_servers, tmp_path, topic_name)
        try:
            rig.create()
            server.execute(USERS)
            rig.define(shape("users"))
            capture = rig.start()
            captured(rig, INSERT)
            rig.acknowledge_all()
            server.restart()
            captured(rig, INSERT)
            rig.acknowledge_all()
            capture.stop()
            assert len(ids(rig)) == 2
        finally:
            rig.close()
