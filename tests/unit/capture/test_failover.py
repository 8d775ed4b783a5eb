"""``CaptureLoop`` after a failover, without servers: it continues its source, or says why it cannot."""

import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from flushtracker.capture.shapes.lost_starts import lost_tables
from flushtracker.capture.source import publish_fence
from flushtracker.errors import BrokerError, BrokerUnavailableError, FencedError, SlotError
from flushtracker.events.registry_events import (
    PartitionEntry,
    ShapeEntry,
    TableEntry,
    parse_registry_entry,
)
from flushtracker.events.stream_events import ShapeChangesEvent
from flushtracker.postgres.replication_frames import Frame, Keepalive
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.table_binding import PartitionBinding
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.timeline_history import TimelineHistory
from tests.support.fake_world import (
    BEGUN,
    CONFIRMED,
    USERS,
    Connection,
    FakeWorld,
    Publisher,
    land_late,
    published,
    shape_entry,
    source_entry,
    transaction,
)
from tests.support.waiting import wait_until


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeWorld:
    """No source was captured yet; fences are checked often, and other captures are waited for briefly."""
    monkeypatch.setattr(publish_fence, "CHECK_S", 0.005)
    monkeypatch.setattr(publish_fence, "CLAIM_WAIT_S", 0.05)
    monkeypatch.setattr(publish_fence, "wait_s", lambda _: 0.3)
    return FakeWorld(tmp_path, monkeypatch)


def promoted(*frames: Frame, switch: int, timeline: int = 2) -> Connection:
    """A connection to the promoted standby of timeline 1."""
    connection = Connection(timeline, list(frames))
    connection.switches = ((1, switch),)
    return connection


def test_the_source_goes_on_under_its_name_after_a_promotion(world: FakeWorld) -> None:
    """With its shapes, and the ack of the old timeline moves the slot of the new one, once all is published again."""
    world.define("users")
    world.acks["7/1/s"] = 1500
    old = Connection(1, [*transaction(2000, 50), Keepalive(2100, reply_requested=False)])
    old.until = lambda: any(event.lsn == 2099 for event in world.fragments())
    new = promoted(*transaction(2000, 50), *transaction(2200, 50), switch=2150)
    new.until = lambda: new.flushed[-1:] == [1501]
    world.register(shape_entry("users"), replace(BEGUN, published_lsn=-1))
    world.capture(old, new)
    assert {event.source for event in world.fragments()} == {"7/1/s"}
    assert world.routed(2000) == [["users"], ["users"]]
    assert world.routed(2200) == [["users"]]
    entry = source_entry(world)
    assert entry.history == TimelineHistory(2, ((1, 2150),))
    assert entry.published_lsn == 2099


def test_the_switch_point_itself_is_not_continued(world: FakeWorld) -> None:
    """A keepalive counts as a transaction: it says that nothing else commits there."""
    world.register(replace(BEGUN, published_lsn=-1))
    old = Connection(1, [Keepalive(2100, reply_requested=False)])
    old.until = lambda: any(event.lsn == 2099 for event in world.fragments())
    new = promoted(switch=2099)
    with pytest.raises(SlotError, match=r"has timeline 1 up to 0/833, but up to 0/833 was published or acknowledged"):
        world.capture(old, new)
    assert set(new.flushed) <= {CONFIRMED}
    assert source_entry(world).history in {None, TimelineHistory(1)}


def test_acks_past_the_switch_point_are_refused(world: FakeWorld) -> None:
    """Whatever the topics have kept."""
    world.register(BEGUN)
    world.acks["7/1/s"] = 3000
    with pytest.raises(SlotError, match="the failover has lost transactions that shapes have"):
        world.capture(promoted(switch=3000))


def test_shape_changes_ahead_of_their_fragments_count_as_published(world: FakeWorld) -> None:
    """They may be confirmed before the fragments, and a writer may have stored them."""
    world.register(BEGUN)
    world.topics["fragments"].append(published("7/1/s", 2000, 50))
    at = LogOffset(2500, 0)
    event = ShapeChangesEvent("7/1/s", "users", 51, LogOffset(2000, 0), at, False, True, None, ())  # noqa: FBT003
    world.topics["changes"].append(event.to_json().encode())
    with pytest.raises(SlotError, match=r"up to 0/9C4 was published or acknowledged"):
        world.capture(promoted(switch=2400))


def test_what_was_published_before_an_interrupted_resend_counts(world: FakeWorld) -> None:
    """The topics end with less of the last connection than the one before had published; its claim has that."""
    world.register(replace(BEGUN, holder="gone", published_lsn=3000, history=TimelineHistory(1)))
    world.topics["fragments"].append(published("7/1/s", 2000, 50))
    with pytest.raises(SlotError, match=r"up to 0/BB8 was published or acknowledged"):
        world.capture(promoted(switch=2900))


def test_what_is_queued_for_the_brokers_counts_as_published(world: FakeWorld) -> None:
    """It is not in the topics yet when the connection is lost, and is sent nevertheless."""
    world.register(replace(BEGUN, published_lsn=-1))
    world.is_queueing = True
    old = Connection(1, transaction(2200, 50))
    old.until = lambda: world.queued
    with pytest.raises(SlotError, match=r"up to 0/898 was published or acknowledged"):
        world.capture(old, promoted(switch=2150))
    assert [event.lsn for event in world.fragments()] == [2200]


def test_an_old_primary_is_refused_once_its_successor_is_captured(world: FakeWorld) -> None:
    """Its capture ends with a message, and publishes nothing."""
    world.register(replace(BEGUN, history=TimelineHistory(2, ((1, 2150),))))
    with pytest.raises(SlotError, match=r"captured on timeline 2 \(since 0/866\), but the server is on timeline 1"):
        world.capture(Connection(1, transaction(2000, 50)))
    assert world.fragments() == []


def test_a_new_epoch_goes_on_after_a_failover_that_has_lost_something(world: FakeWorld) -> None:
    """Its name is after all others of the slot, and it is on the server's timeline."""
    world.register(BEGUN)
    world.acks["7/1/s"] = 3000
    world.start_new_epoch()
    world.capture(promoted(*transaction(2200, 50), switch=2150))
    assert {event.source for event in world.fragments()} == {"7/1/s/1"}
    assert source_entry(world).history == TimelineHistory(2, ((1, 2150),))


def test_a_new_epoch_is_after_all_that_have_acks_though_the_registry_was_replaced(world: FakeWorld) -> None:
    """The second time that a topic of shapes is replaced, the new one does not know of the first time."""
    world.acks |= {"7/1/s": 1500, "7/1/s/2": 1700, "7/1/other/9": 1900}
    world.start_new_epoch()
    world.capture(Connection(1, transaction(2000, 50)))
    assert {event.source for event in world.fragments()} == {"7/1/s/3"}


@pytest.mark.parametrize("new_epoch", [False, True])
def test_a_registry_whose_beginning_was_deleted_is_refused(world: FakeWorld, *, new_epoch: bool) -> None:
    """A shape whose entry was deleted would be added as new, and its log would lack what came in between."""
    world.register(BEGUN)
    world.deleted["shapes"] = 3
    if new_epoch:
        world.start_new_epoch()
    with pytest.raises(SlotError, match="topic shapes begins at Kafka offset 3 in partition 0: what was before"):
        world.capture(Connection(1, transaction(2000, 50)))
    assert world.fragments() == []


def test_nothing_is_confirmed_before_the_last_transaction_was_resent(world: FakeWorld) -> None:
    """Two standbys were promoted at the same place to the same timeline; only their transactions tell them apart."""
    world.acks["7/1/s"] = 1800
    history = TimelineHistory(2, ((1, 1500),))
    world.register(replace(BEGUN, history=history))
    first = promoted(*transaction(1700, 50), *transaction(2000, 51), switch=1500)
    first.until = lambda: first.flushed[-1:] == [1801]
    others = (*transaction(1700, 50), *transaction(1900, 60))
    twin = promoted(*others, switch=1500)
    # Long enough for the ack to be read, and reported.
    twin.until = lambda: len(twin.flushed) > 10
    again = promoted(*others, *transaction(2000, 61), switch=1500)
    with pytest.raises(SlotError, match=r"transaction 51 at 0/7D0 .* was published before, but the server sends"):
        world.capture(first, twin, again)
    assert set(twin.flushed) == {CONFIRMED}


def test_a_capture_whose_source_was_claimed_by_another_ends(world: FakeWorld) -> None:
    """The old primary lives on, and so does its capture: it publishes nothing more."""
    world.register(BEGUN)
    old = Connection(1, transaction(2000, 50))

    def claim_and_send() -> bool:
        if world.fragments() and source_entry(world).holder != "other":
            world.register(replace(source_entry(world), holder="other"))
            time.sleep(0.1)
            old.frames = transaction(3000, 60)
        return False

    old.until = claim_and_send
    with pytest.raises(FencedError, match="another capture has claimed the source"):
        world.capture(old)
    assert [event.lsn for event in world.fragments() if event.xid is not None] == [2000]


def test_nothing_stays_queued_without_a_fence(world: FakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """When a connection is lost, what is queued is confirmed first; at any other end it is discarded."""
    world.register(BEGUN)
    watching: list[bool] = []

    def confirm(*_: object) -> None:
        watching.append("publish-deadline" in {thread.name for thread in threading.enumerate()})

    monkeypatch.setattr(Publisher, "flush", confirm)
    first = Connection(1, transaction(2000, 50))
    first.at_the_end = watching.clear
    second = Connection(1)
    second.while_reading_topics = lambda: watching.append(False)
    second.until = lambda: world.register(replace(source_entry(world), holder="other"))
    with pytest.raises(FencedError):
        world.capture(first, second)
    assert watching[:2] == [True, False]
    assert [type(error) for error in world.abandoned] == [FencedError, BrokerError]


def test_a_takeover_waits_for_the_capture_that_it_fences(world: FakeWorld) -> None:
    """What that one still publishes counts: the proof is repeated after the wait."""
    world.register(replace(BEGUN, holder="other", published_lsn=-1, history=TimelineHistory(1)))
    new = promoted(*transaction(2200, 50), switch=2150)
    holders: list[str | None] = []

    def publish_late() -> None:
        holders.append(source_entry(world).holder)
        if len(holders) == 2:
            world.topics["fragments"].append(published("7/1/s", 2500, 70))

    new.while_reading_topics = publish_late
    with pytest.raises(SlotError, match=r"up to 0/9C4 was published"):
        world.capture(new)
    assert len(holders) == 2
    assert holders[0] == "other" != holders[1]
    assert source_entry(world).history == TimelineHistory(1)
    # The old primary has everything, and may go on.
    assert (source_entry(world).claimed, source_entry(world).holder) == (None, None)
    world.capture_as_another_process((), Connection(1, [*transaction(2500, 70), *transaction(2600, 80)]))
    assert [event.lsn for event in world.fragments()] == [2500, 2500, 2600]


def test_the_capture_of_an_old_primary_cannot_return_during_the_wait(world: FakeWorld) -> None:
    """A supervisor starts it again as soon as it was fenced; it must not fence the one that waits for its end."""
    world.register(replace(BEGUN, holder="other", published_lsn=-1, history=TimelineHistory(1)))
    new = promoted(*transaction(2200, 50), switch=2150)
    refusals: list[str] = []

    def start_again() -> None:
        if source_entry(world).claimed is None:
            return
        try:
            world.capture_as_another_process((), Connection(1, transaction(2500, 70)))
        except SlotError as error:
            refusals.append(str(error))

    new.while_reading_topics = start_again
    world.capture(new)
    assert [refusal[:72] for refusal in refusals] == [
        "source 7/1/s: a capture is taking it over to timeline 2 (since 0/866), b"
    ]
    assert [event.lsn for event in world.fragments()] == [2200]
    assert source_entry(world).history == TimelineHistory(2, ((1, 2150),))
    assert source_entry(world).claimed is None


def test_a_takeover_that_was_killed_keeps_the_old_primary_out(world: FakeWorld) -> None:
    """Until it was repeated, also by the capture of a server that was promoted after that one."""
    two, three = TimelineHistory(2, ((1, 2150),)), TimelineHistory(3, ((1, 2150), (2, 2170)))
    world.register(replace(BEGUN, holder="killed", published_lsn=1999, history=TimelineHistory(1), claimed=two))
    for other in (Connection(1), promoted(switch=2140), promoted(switch=2140, timeline=3)):
        with pytest.raises(SlotError, match="a capture is taking it over to timeline 2"):
            world.capture(other)
        world.start_again()
    later = promoted(switch=2150, timeline=3)
    later.switches = three.switches
    world.capture(later)
    assert (source_entry(world).history, source_entry(world).claimed) == (three, None)


def test_a_takeover_that_is_stopped_is_retracted_and_its_wait_is_repeated(
    world: FakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was published of the new timeline; but the capture before may still publish, so it is not released."""
    with monkeypatch.context() as patched:
        patched.setattr(publish_fence, "wait_s", lambda _: 1_000.0)
        world.register(replace(BEGUN, holder="other", published_lsn=-1, history=TimelineHistory(1)))
        threading.Timer(0.3, world.stop.set).start()
        world.capture(promoted(*transaction(2200, 50), switch=2150))
    entry = source_entry(world)
    assert (entry.history, entry.claimed) == (TimelineHistory(1), None)
    assert entry.holder not in {None, "other"}
    assert world.fragments() == []
    world.start_again()
    again = promoted(*transaction(2200, 50), switch=2150)
    readings: list[int] = []

    def publish_late() -> None:
        readings.append(len(world.fragments()))
        if len(readings) == 2:
            world.topics["fragments"].append(published("7/1/s", 2500, 70))

    again.while_reading_topics = publish_late
    with pytest.raises(SlotError, match=r"up to 0/9C4 was published"):
        world.capture(again)


def test_a_late_record_of_the_capture_before_hides_nothing(world: FakeWorld) -> None:
    """It lands after what the capture that replaced it on the same server has published since."""
    world.register(replace(BEGUN, holder="b", published_lsn=2099, history=TimelineHistory(1), ends=((0,), (0,))))
    world.topics["fragments"] += [published("7/1/s", lsn, 70) for lsn in (2000, 2500, 2050)]
    with pytest.raises(SlotError, match=r"up to 0/9C4 was published"):
        world.capture(promoted(switch=2400))


def test_a_claim_from_an_outdated_reading_is_not_made(world: FakeWorld) -> None:
    """The topics take long to read, and meanwhile another capture has claimed the source, or taken it over."""
    world.register(BEGUN)
    taken = replace(BEGUN, holder="other", history=TimelineHistory(2, ((1, 2150),)))
    old = Connection(1, transaction(2000, 50))
    world.while_reading_ends = lambda: world.register(taken)
    with pytest.raises(FencedError):
        world.capture(old)
    assert source_entry(world) == taken


def test_claims_that_cross_do_not_put_the_source_back_to_the_timeline_before(
    world: FakeWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """At a planned switchover, a capture of the old primary starts, and its claim lands after that of the new one.

    Both end, with nothing published. When the new primary's starts again, it goes on.
    """
    released = replace(BEGUN, published_lsn=-1, history=TimelineHistory(1))
    world.register(released)
    land_late(world, replace(released, holder="late"), caplog)
    new = promoted(*transaction(2200, 50), switch=2150)
    new.until = lambda: False
    with monkeypatch.context() as patched:
        patched.setattr(publish_fence, "CLAIM_WAIT_S", 1_000.0)
        with pytest.raises(FencedError):
            world.capture(new)
    assert world.fragments() == []
    world.start_again()
    world.capture(promoted(*transaction(2200, 50), switch=2150))
    assert [event.lsn for event in world.fragments()] == [2200]
    assert source_entry(world).history == TimelineHistory(2, ((1, 2150),))


def test_of_claims_that_cross_only_the_first_one_holds(world: FakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one looks again once its claim is confirmed, and publishes nothing in between."""
    monkeypatch.setattr(publish_fence, "CHECK_S", 1_000.0)
    world.register(replace(BEGUN, published_lsn=-1))
    looks: list[float] = []
    world.after_look = lambda: looks.append(time.monotonic())

    def claim_first(topic: str) -> None:
        world.before_delivery = lambda _: None
        assert topic == "shapes"
        # The watching thread looks once before, and then for long no more.
        wait_until(lambda: len(looks) == 2, "the looks", 30)
        world.register(replace(source_entry(world), holder="first"))

    world.before_delivery = claim_first
    with pytest.raises(FencedError):
        world.capture(Connection(1, transaction(2000, 50)))
    assert world.fragments() == []


def test_a_claim_that_is_late_hides_nothing_of_a_capture_that_was_killed(world: FakeWorld) -> None:
    """Two captures follow: one on its server, which counts the WAL as published, and another one, whose claim is late.

    A record of the killed one lands in between, and what the first of the two publishes hides it.
    """
    killed = replace(BEGUN, holder="killed", published_lsn=-1, history=TimelineHistory(1), ends=((0,), (0,)))
    world.register(killed)
    late = replace(killed, holder="late", claimed=TimelineHistory(2, ((1, 2400),)))
    old = Connection(1, transaction(2050, 51), wal_lsn=3000)

    def land() -> bool:
        if world.fragments() and source_entry(world).holder != "late":
            world.topics["fragments"].insert(0, published("7/1/s", 2500, 60))
            world.register(late)
        return False

    old.until = land
    with pytest.raises(FencedError):
        world.capture(old)
    assert [event.lsn for event in world.fragments()] == [2500, 2050]
    world.start_again()
    with pytest.raises(SlotError, match="the failover has lost transactions"):
        world.capture(promoted(switch=2400))


def test_a_claim_is_discarded_if_it_is_not_confirmed_in_time(world: FakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a thread of its own, while the one that claims waits for the brokers."""
    monkeypatch.setattr(publish_fence, "CLAIM_S", 0.2)
    world.register(replace(BEGUN, published_lsn=-1))
    world.is_queueing = True

    def wait_in_vain(*_: object) -> None:
        wait_until(lambda: world.abandoned, "the claim to be discarded", 30)
        raise world.abandoned[0]

    monkeypatch.setattr(Publisher, "flush", wait_in_vain)
    with pytest.raises(BrokerUnavailableError, match="the brokers have not confirmed its claim"):
        world.capture(Connection(1, transaction(2000, 50)))
    assert len(world.queued) == 1


def test_a_takeover_of_a_released_source_that_is_stopped_releases_it(
    world: FakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has fenced nobody who may still publish, so the next one need wait for claims only."""
    monkeypatch.setattr(publish_fence, "CLAIM_WAIT_S", 1_000.0)
    world.register(replace(BEGUN, published_lsn=-1, history=TimelineHistory(1)))
    threading.Timer(0.3, world.stop.set).start()
    world.capture(promoted(*transaction(2200, 50), switch=2150))
    entry = source_entry(world)
    assert (entry.history, entry.claimed, entry.holder) == (TimelineHistory(1), None, None)
    assert world.fragments() == []


def test_the_wait_begins_when_the_claim_is_confirmed(world: FakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers may take long to confirm it; until then the other capture cannot know of it."""
    world.register(replace(BEGUN, holder="other", published_lsn=-1, history=TimelineHistory(1)))
    times: list[float] = []

    def confirm_slowly(*_: object) -> None:
        if not times:
            time.sleep(0.4)
            times.append(time.monotonic())

    monkeypatch.setattr(Publisher, "flush", confirm_slowly)
    new = promoted(*transaction(2200, 50), switch=2150)
    new.while_reading_topics = lambda: times.append(time.monotonic()) if times else None
    world.capture(new)
    confirmed_s, read_again_s = times[:2]
    assert read_again_s - confirmed_s >= 0.3


def test_a_capture_that_has_stopped_is_not_waited_for(world: FakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has released the source; and one process that reconnects has nobody to wait for."""
    monkeypatch.setattr(publish_fence, "wait_s", lambda _: 1_000.0)
    world.register(replace(BEGUN, published_lsn=-1, history=TimelineHistory(1)))
    world.capture(promoted(*transaction(2200, 50), switch=2150))
    assert len(world.fragments()) == 1


def test_a_capture_releases_its_source_when_it_stops(world: FakeWorld) -> None:
    """Once everything is confirmed; a kill leaves the claim."""
    connection = Connection(1, transaction(2000, 50))

    def stop() -> bool:
        if world.fragments():
            assert source_entry(world).holder is not None
            world.stop.set()
        return False

    connection.until = stop
    world.capture(connection)
    # The claim of a source that begins says where the topics ended.
    assert source_entry(world).ends == ((0,), (0,))
    assert (source_entry(world).holder, source_entry(world).published_lsn) == (None, 2000)


def test_a_release_that_follows_the_claim_of_another_hides_nothing(world: FakeWorld) -> None:
    """A capture is stopped just when another one has its slot, which sends again only a part of what it has sent."""
    world.register(replace(BEGUN, published_lsn=-1))
    old = Connection(1, [*transaction(2000, 50), *transaction(2500, 70)])

    def stop() -> bool:
        if len(world.fragments()) == 2:
            world.before_delivery = claim_in_between
            world.stop.set()
        return False

    def claim_in_between(topic: str) -> None:
        world.before_delivery = lambda _: None
        assert topic == "shapes"
        world.register(replace(source_entry(world), holder="other"))
        world.topics["fragments"].append(published("7/1/s", 2000, 50))

    old.until = stop
    world.capture(old)
    assert (source_entry(world).holder, [event.lsn for event in world.fragments()]) == (None, [2000, 2500, 2000])
    world.start_again()
    with pytest.raises(SlotError, match=r"up to 0/9C4 was published"):
        world.capture(promoted(switch=2400))


def shape_at(shape_id: str, starts_after: int, *, incarnation: int = 1, starts_visible: bool = False) -> ShapeEntry:
    entry = shape_entry(shape_id, starts_after)
    definition = replace(entry.definition, incarnation=incarnation, snapshot=True)
    return replace(entry, definition=definition, starts_visible=starts_visible)


def test_a_shape_that_starts_beyond_the_switch_point_misses_nothing(world: FakeWorld) -> None:
    """It moves there, as nothing was published of it; one that may have a snapshot with lost rows ends."""
    world.define("early", "late", "seen", "again", "exact")
    shapes = [
        shape_at("early", 2149),
        shape_at("late", 2151),
        shape_at("seen", 2151, starts_visible=True),
        shape_at("again", 2160, incarnation=2),
        shape_at("exact", 2150, incarnation=2),
    ]
    world.wal_ends_at = 2155
    world.register(*shapes, BEGUN)
    world.capture(promoted(*transaction(2155, 50), switch=2150))
    entries = map(parse_registry_entry, world.topics["shapes"])
    last = {entry.definition.id: entry for entry in entries if isinstance(entry, ShapeEntry)}
    assert world.routed(2155) == [["early", "exact", "late"]]
    assert last["exact"].starts_after == LogOffset(2150, 0)
    assert last["late"].starts_after == LogOffset(2149, 0)
    assert last["early"].starts_after == LogOffset(2149, 0)
    for shape_id in ("seen", "again"):
        removed_at = last[shape_id].removed_at
        assert "just before a failover" in str(last[shape_id].ended_because)
        assert removed_at is not None
        assert removed_at >= last[shape_id].starts_after


def test_a_killed_takeover_is_repeated(world: FakeWorld) -> None:
    """The claim alone changes no timeline; the shapes that started beyond the switch point are still moved."""
    definition = ShapeDefinition("late", ("public", "users"), primary_key=("id",), snapshot=True)
    late = ShapeEntry("7/1/s", definition, USERS.oid, LogOffset(2151, 0))
    world.define("late")
    world.topics["shapes"] = [
        entry.to_json().encode()
        for entry in (TableEntry("7/1/s", USERS), late, replace(BEGUN, holder="killed", published_lsn=1999))
    ]
    world.capture(promoted(*transaction(2155, 50), switch=2150))
    assert world.routed(2155) == [["late"]]
    assert source_entry(world).published_lsn == 1999


PART = PartitionEntry(
    "7/1/s", USERS.oid, PartitionBinding(9, ("public", "q"), 6, "{q}", published_by=("all tables",)), 0
)


def partition_after(world: FakeWorld, entry: PartitionEntry) -> tuple[PartitionEntry, ShapeEntry]:
    """The entries of a partition and of the shape on its table, after a failover at 2150."""
    world.define("users")
    world.register(shape_entry("users"), entry, BEGUN)
    world.partition = entry.binding if entry.left_at is None else None
    world.capture(promoted(*transaction(2155, 50), switch=2150))
    entries = [parse_registry_entry(value) for value in world.topics["shapes"]]
    shape = [each for each in entries if isinstance(each, ShapeEntry)][-1]
    return [each for each in entries if isinstance(each, PartitionEntry)][-1], shape


@pytest.mark.parametrize(("joined", "after"), [(2149, 2149), (2150, None), (2190, None), (None, None)])
def test_a_partition_joins_again_if_its_first_transaction_was_lost(
    world: FakeWorld, joined: int | None, after: int | None
) -> None:
    """Otherwise its rows would reach no shape before that position."""
    entry, shape = partition_after(world, replace(PART, joined=joined))
    assert (entry.joined, shape.ended_because) == (after, None)


@pytest.mark.parametrize(
    ("left_at", "lost_with", "after"),
    [(2100, 2140, (2100, 2140)), (2100, 2150, (2100, 2155)), (2170, 2190, (2150, 2155))],
)
def test_a_partition_is_lost_again_if_the_transaction_for_that_was_lost(
    world: FakeWorld, left_at: int, lost_with: int, after: tuple[int, int]
) -> None:
    """With the first transaction of the new timeline; its rows would stay in the shapes."""
    entry, shape = partition_after(world, replace(PART, left_at=left_at, lost_with=lost_with))
    assert ((entry.left_at, entry.lost_with), shape.ended_because) == (after, None)


@pytest.mark.parametrize(("empty_at", "is_ended"), [(2149, False), (2150, True)])
def test_a_partition_that_was_found_empty_in_lost_wal_ends_shapes(
    world: FakeWorld, empty_at: int, *, is_ended: bool
) -> None:
    """On the promoted server it may have rows, of which the shapes would learn nothing."""
    _, shape = partition_after(world, replace(PART, joined=None, empty_at=empty_at))
    assert ("was altered just before a failover" in str(shape.ended_because)) == is_ended


def test_a_column_that_was_found_altered_in_lost_wal_ends_shapes() -> None:
    """The promoted server may have it as it was."""
    tables = [TableEntry("7/1/s", replace(USERS, columns=(replace(USERS.columns[0], altered_before=2150),)))]
    assert lost_tables(tables, (), 2150) == {USERS.oid}
    assert lost_tables(tables, (), 2151) == set()


def test_what_a_capture_of_the_same_server_may_still_publish_counts(world: FakeWorld) -> None:
    """It was not stopped, so it may have records in its queue of all that the server had sent."""
    world.register(replace(BEGUN, holder="other", published_lsn=1999, history=TimelineHistory(1)))
    same = Connection(1, wal_lsn=2600)
    world.wal_ends_at = 2700
    world.capture(same)
    assert source_entry(world).published_lsn == 2699
    world.start_again()
    with pytest.raises(SlotError, match="up to 0/A8B was published"):
        world.capture(promoted(switch=2650))


def test_a_twin_whose_wal_is_behind_what_was_published_is_refused(world: FakeWorld) -> None:
    """Also if that were keepalives alone, which no server sends again."""
    history = TimelineHistory(2, ((1, 1500),))
    world.register(replace(BEGUN, history=history, published_lsn=3000))
    twin = promoted(*transaction(2000, 50), switch=1500)
    twin.wal_lsn = world.wal_ends_at = 2900
    with pytest.raises(SlotError, match="the server's WAL ends at 0/B54, but 0/BB8 was published"):
        world.capture(twin)
    assert world.fragments() == []


def test_a_copy_of_the_server_that_is_behind_what_was_published_fences_nobody(world: FakeWorld) -> None:
    """On the same timeline, as a disk's snapshot: it is refused before it claims the source."""
    world.register(replace(BEGUN, holder="other", published_lsn=3000, history=TimelineHistory(1)))
    copy = Connection(1, transaction(2000, 50), wal_lsn=2900)
    world.wal_ends_at = 2900
    with pytest.raises(SlotError, match="the server's WAL ends at 0/B54, but 0/BB8 was published"):
        world.capture(copy)
    assert (source_entry(world).holder, world.fragments()) == ("other", [])
