"""Capture over promotions of real servers: one source, with its name, shapes and acks, as long as nothing was lost."""

import random
import signal
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from threading import Event

import pytest

from flushtracker.capture.source import publish_fence
from flushtracker.events.registry_events import SourceEntry, parse_registry_entry
from flushtracker.local.free_ports import HOST
from flushtracker.postgres.connection import connect, rows
from flushtracker.postgres.failover_lacks import failover_lacks
from flushtracker.postgres.slot import create_slot
from flushtracker.tracking.acks.ack_reader import AckReader
from tests.support.capture_rig import INSERT_USER, USERS, CaptureRig, RigOn, shape
from tests.support.failover_pair import FailoverPair, create_slot_on_standby
from tests.support.insert_load import InsertLoad, acknowledge_some, published_ids, stored_ids
from tests.support.seeds import every
from tests.support.waiting import wait_until

"""``make soak`` has a hundred, of the whole loop."""


@pytest.fixture
def pair(postgres_folder: Path) -> Iterator[FailoverPair]:
    """The primary alone, which a test may give a standby."""
    with FailoverPair(postgres_folder) as pair:
        yield pair


@pytest.fixture
def rig(pair: FailoverPair, rig_on: RigOn) -> CaptureRig:
    """Topics, publication, a failover slot and one shape; capture connects to whichever server is the primary."""
    rig = rig_on(pair.primary)
    rig.create_topics()
    pair.primary.execute("CREATE PUBLICATION shapes FOR ALL TABLES", USERS)
    pair.create_slot()
    rig.define(shape("users"))
    rig.settings["postgres"] = pair.options
    rig.settings["kafka"]["retry_timeout"] = "5 seconds"
    return rig


def insert_and_acknowledge(rig: CaptureRig) -> None:
    rig.execute_and_wait(INSERT_USER)
    rig.acknowledge(max(event.lsn for event in rig.fragments()))


def source_entry(rig: CaptureRig) -> SourceEntry:
    entries = [parse_registry_entry(value) for value in rig.values("shapes")]
    return [entry for entry in entries if isinstance(entry, SourceEntry)][-1]


def wait_for_switch(rig: CaptureRig, timeline: int) -> None:
    def is_recorded() -> bool:
        history = source_entry(rig).history
        return history is not None and history.timeline == timeline

    rig.wait(is_recorded, f"timeline {timeline}", 90)


@pytest.mark.parametrize("promotions", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_promotions_under_load_lose_and_repeat_nothing(rig: CaptureRig, pair: FailoverPair, promotions: int) -> None:
    """Primaries are killed at any moment, and the next standby is at the address of the first one."""
    rng = random.Random(1)  # noqa: S311  a reproducible history
    capture = rig.start()
    rig.execute_and_wait(INSERT_USER)
    source, last_ack = rig.source(), 0
    for number in range(promotions):
        pair.add_standby()
        pair.wait_until_synced(partial(insert_and_acknowledge, rig))
        last_ack = AckReader(str(rig.acks), {}).last_ack(source) or 0
        with InsertLoad(lambda: pair.primary, number):
            for _ in range(3):
                last_ack = acknowledge_some(rig, last_ack, rng)
                Event().wait(rng.random())
            pair.fail_over()
            rig.server = pair.primary
            wait_for_switch(rig, number + 2)
            assert rig.confirmed_lsn() <= last_ack + 1
            Event().wait(0.5)
        rig.execute_and_wait(INSERT_USER)
    last_ack = rig.acknowledge_all()
    capture.stop()
    assert {event.source for event in rig.fragments()} == {source}
    assert sorted(published_ids(rig)) == stored_ids(pair.primary)
    assert AckReader(str(rig.acks), {}).last_ack(source) == last_ack
    assert rig.confirmed_lsn() == last_ack + 1


@every(3, 0)
def test_a_capture_that_was_killed_with_its_primary_is_waited_for(rig: CaptureRig, pair: FailoverPair) -> None:
    """Nothing tells that it has died. One that was stopped has released its source, and is not waited for."""
    capture = rig.start()
    rig.execute_and_wait(INSERT_USER)
    pair.add_standby()
    pair.wait_until_synced(partial(insert_and_acknowledge, rig))
    capture.stop()
    assert source_entry(rig).holder is None
    process = rig.start_process()
    pair.primary.execute(INSERT_USER)
    rig.wait(lambda: source_entry(rig).holder is not None, "the capture that is killed", 60)
    rig.execute_and_wait(INSERT_USER)
    process.send_signal(signal.SIGKILL)
    process.wait(30)
    pair.fail_over()
    rig.server = pair.primary
    capture = rig.start()
    wait_for_switch(rig, 2)
    rig.execute_and_wait(INSERT_USER)
    capture.stop()
    assert source_entry(rig).holder is None
    assert sorted(published_ids(rig)) == stored_ids(pair.primary)


@every(3, 1)
def test_a_planned_switchover_by_its_steps_loses_nothing(
    rig: CaptureRig, pair: FailoverPair, caplog: pytest.LogCaptureFixture
) -> None:
    """Those of docs/operating.md; what commits while capture is stopped comes from the new primary."""
    capture = rig.start()
    rig.execute_and_wait(INSERT_USER)
    pair.add_standby()
    pair.wait_until_synced(partial(insert_and_acknowledge, rig))
    capture.stop()
    pair.primary.execute(INSERT_USER)
    pair.primary.stop()
    pair.promote()
    rig.server = pair.primary
    pair.primary.execute(INSERT_USER)
    caplog.clear()
    capture = rig.start()
    wait_for_switch(rig, 2)
    rig.execute_and_wait(INSERT_USER)
    capture.stop()
    assert sorted(published_ids(rig)) == stored_ids(pair.primary)
    assert "waiting until no other capture publishes" in caplog.text
    assert "source continues on a later timeline" in caplog.text


def test_capture_says_what_its_slot_lacks_to_survive_a_failover(pair: FailoverPair) -> None:
    """Nothing, while there is no standby; then settings, and a copy, which is temporary until the slot advances."""
    primary = pair.primary
    with closing(primary.connect()) as control:
        assert create_slot(control, "plain")
        assert create_slot(control, "shapes", failover=True)
        assert failover_lacks(control, primary.options, "shapes", connect) is None
        standby = pair.add_standby()
        (asked,) = failover_lacks(control, primary.options, "shapes", connect) or ()
        assert asked == "no standby was asked: name all hosts in postgres"
        plain, copy = failover_lacks(control, pair.options, "plain", connect) or ()
        assert plain == (
            "slot plain is no failover slot; stop capture, and over a replication connection: "
            'ALTER_REPLICATION_SLOT "plain" (FAILOVER true)'
        )
        assert copy.startswith(f"standby {HOST} port {standby.port} has no copy of slot plain")

        def advance() -> None:
            primary.execute(
                "SELECT pg_logical_emit_message(true, '', '')",
                "SELECT pg_log_standby_snapshot()",
                "SELECT pg_replication_slot_advance('shapes', pg_current_wal_flush_lsn())",
            )

        pair.wait_until_synced(advance)
        assert failover_lacks(control, pair.options, "shapes", connect) == ()
        standby.stop()
        unused, silent = failover_lacks(control, pair.options, "shapes", connect) or ()
        assert unused == "no standby uses slot standby of synchronized_standby_slots, for which the primary waits"
        assert silent.startswith(f"standby {HOST} port {standby.port} does not answer: ")
        del standby.settings["sync_replication_slots"], standby.settings["hot_standby_feedback"]
        primary.execute("SELECT pg_drop_replication_slot('shapes')")
        standby.start()
        wait_until(lambda: standby.execute("SELECT 1 FROM pg_stat_wal_receiver"), "the standby streams", 30)
        assert create_slot(control, "shapes", failover=True)
        primary.execute("ALTER SYSTEM RESET synchronized_standby_slots", "SELECT pg_reload_conf()")
        wait_until(lambda: rows(control, "SHOW synchronized_standby_slots") == [("",)], "the setting", 10)
        empty, unset = failover_lacks(control, pair.options, "shapes", connect) or ()
        assert empty.startswith("synchronized_standby_slots is empty on the primary")
        assert unset.endswith("lacks sync_replication_slots = on and hot_standby_feedback = on")


def test_a_slot_of_a_demoted_primary_is_named_and_the_statement_makes_room_for_the_copy(pair: FailoverPair) -> None:
    """The server makes no copy in its place, however far the primary's slot advances."""
    with closing(pair.primary.connect()) as control:
        standby = pair.add_standby()
        create_slot_on_standby(pair.primary, standby)
        assert create_slot(control, "shapes", failover=True)
        (reason,) = failover_lacks(control, pair.options, "shapes", connect) or ()
        own = f"standby {HOST} port {standby.port} has a slot shapes of its own, as one that was the primary"
        assert reason.startswith(own)
        standby.execute(reason.rpartition("drop it there: ")[2])
        has_copy = "SELECT 1 FROM pg_replication_slots WHERE slot_name = 'shapes' AND synced"
        wait_until(lambda: standby.execute(has_copy), "a copy", 120)
        (reason,) = failover_lacks(control, pair.options, "shapes", connect) or ("nothing",)
        assert own not in reason


def test_a_setting_that_came_along_with_a_copy_names_the_statement_for_its_slot(pair: FailoverPair) -> None:
    """pg_basebackup and pg_rewind bring synchronized_standby_slots; until that slot is there, capture gets nothing."""
    pair.primary.stop()
    pair.primary.settings["synchronized_standby_slots"] = "gone"
    pair.primary.start()
    with closing(pair.primary.connect()) as control:
        assert create_slot(control, "shapes", failover=True)
        first, *_ = failover_lacks(control, pair.options, "shapes", connect) or ()
        _, _, rest = first.partition("and which does not exist: ")
        statement = rest.removesuffix(", or take it out of the setting")
        rows(control, statement)
        first, *_ = failover_lacks(control, pair.options, "shapes", connect) or ()
    assert first == "no standby uses slot gone of synchronized_standby_slots, for which the primary waits"


def test_a_copy_that_a_promotion_would_drop_is_named(pair: FailoverPair) -> None:
    """The slot is behind what the standby can keep of the catalog, until it has advanced."""
    with closing(pair.primary.connect()) as control:
        assert create_slot(control, "shapes", failover=True)
        rows(control, "SELECT txid_current()")
        standby = pair.add_standby()
        has_copy = "SELECT 1 FROM pg_replication_slots WHERE slot_name = 'shapes'"
        wait_until(lambda: standby.execute(has_copy), "a copy", 60)
        (reason,) = failover_lacks(control, pair.options, "shapes", connect) or ("nothing",)
    assert reason == (
        f"standby {HOST} port {standby.port} has a temporary copy of slot shapes, which a promotion drops: it becomes "
        "persistent as acks advance"
    )


def test_the_standbys_copy_and_a_slot_created_after_the_promotion_are_refused(
    rig: CaptureRig, pair: FailoverPair
) -> None:
    """Capture that connects to whichever host answers first is told where to connect; the primary's is left alone.

    The new slot is refused also if nothing was committed in between: nobody can tell.
    """
    capture = rig.start()
    rig.execute_and_wait(INSERT_USER)
    standby = pair.add_standby()
    pair.wait_until_synced(partial(insert_and_acknowledge, rig))
    rig.settings["postgres"] = dict(standby.options)
    failure = rig.start().failure()
    assert "replication slot shapes is the server's own copy of its primary's slot" in failure
    assert "Connect capture to the primary" in failure
    pair.primary.execute(INSERT_USER)
    capture.stop()
    rig.settings["postgres"] = pair.options
    rig.capture_once(acknowledges=True)
    pair.fail_over()
    rig.server = pair.primary
    pair.primary.execute(INSERT_USER, "SELECT pg_drop_replication_slot('shapes')")
    assert "there is no replication slot shapes" in rig.start().failure()
    pair.create_slot()
    assert "the failover has lost the slot, and another one was created" in rig.start().failure()


def test_what_a_failover_has_lost_is_named_and_a_new_epoch_goes_on(rig: CaptureRig, pair: FailoverPair) -> None:
    """The standby was behind what capture had published: the server did not wait for it."""
    capture = rig.start()
    rig.execute_and_wait(INSERT_USER)
    first = rig.source()
    standby = pair.add_standby()
    pair.wait_until_synced(partial(insert_and_acknowledge, rig))
    pair.primary.execute("ALTER SYSTEM RESET synchronized_standby_slots", "SELECT pg_reload_conf()")
    standby.stop()
    rig.execute_and_wait(INSERT_USER)
    published = max(event.lsn for event in rig.fragments())
    pair.primary.kill()
    standby.start()
    pair.promote()
    rig.server = pair.primary
    failure = capture.failure()
    assert failure.startswith(f"SlotError: source {first}: the server was promoted to timeline 2")
    assert "the failover has lost transactions that shapes have" in failure
    assert f"{published >> 32:X}/{published & 0xFFFFFFFF:X}" in failure
    rig.capture_once(new_epoch=True)
    assert rig.source() == f"{first}/1"


@every(3, 1)
def test_the_capture_of_an_old_primary_that_lives_on_is_fenced(
    rig: CaptureRig, pair: FailoverPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends, and is refused when it is started again; what it has past the switch point is in no topic."""
    monkeypatch.setattr(publish_fence, "CHECK_S", 0.2)
    rig.settings["postgres"] = dict(pair.primary.options)
    old_capture = rig.start()
    rig.execute_and_wait(INSERT_USER)
    pair.add_standby()
    pair.wait_until_synced(partial(insert_and_acknowledge, rig))
    caught_up = rig.commit_lsn()
    rig.wait_for_commits(caught_up)
    old = pair.promote()
    try:
        rig.server = pair.primary
        rig.settings["postgres"] = dict(pair.primary.options)
        new_capture = rig.start()
        assert "another capture has claimed the source" in old_capture.failure()
        old.execute(INSERT_USER)
        wait_for_switch(rig, 2)
        rig.execute_and_wait(INSERT_USER)
        rig.settings["postgres"] = dict(old.options)
        assert "which does not continue it: it is an old primary" in rig.start().failure()
        new_capture.stop()
        assert sorted(published_ids(rig)) == stored_ids(pair.primary)
    finally:
        old.stop()


@every(3, 2)
def test_a_standby_that_is_captured_is_promoted(rig: CaptureRig, postgres_folder: Path) -> None:
    """The connection would survive it; capture connects again, and records the new timeline before it goes on."""
    primary = rig.server
    primary.execute("SELECT pg_drop_replication_slot('shapes')")
    with primary.standby(postgres_folder / "captured") as standby:
        create_slot_on_standby(primary, standby)
        rig.settings["postgres"] = dict(standby.options)
        capture = rig.start()
        rig.execute_and_wait(INSERT_USER)
        source = rig.source()
        primary.kill()
        standby.execute("SELECT pg_promote()")
        rig.server = standby
        rig.execute_and_wait(INSERT_USER)
        wait_for_switch(rig, 2)
        capture.stop()
        rig.capture_once()
        assert {event.source for event in rig.fragments()} == {source}
        assert sorted(published_ids(rig)) == stored_ids(standby)
