"""When a shape may be removed for what it holds: only if that shape holds the slot, and removing it can free it."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import takewhile
from typing import Any, Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import structs

from flushtracker.capture.eviction.config import EvictionRule, RetainedLimit
from flushtracker.capture.eviction.policy import FRESH_MS, HOUR_MS, Decision, EvictionPolicy
from flushtracker.status.capture_status import CaptureStatus, Eviction
from flushtracker.status.job_status import Holder, JobStatus, OpenTransaction
from tests.support.eviction_world import ACK, AFTER_MS, MB, SOURCE, START_MS, TICK_MS, World

GRACE_MS: Final = 5_000
RULE: Final = EvictionRule(AFTER_MS, RetainedLimit(bytes=500 * MB), GRACE_MS, 16 * MB, 1)
_OPEN: Final = OpenTransaction("flushes", 0, 7, 2, START_MS, "etl")


def test_the_shape_that_holds_goes_once_it_is_pending_for_longer_than_remove_after() -> None:
    """Not at the limit, and not the one behind it. Its reason says all that an operator will ask."""
    world = World()
    decision = world.run(2 * AFTER_MS, EvictionPolicy(RULE))
    assert (decision.source, decision.shape_id) == (SOURCE, "dead")
    assert world.now_ms == START_MS + AFTER_MS + TICK_MS
    assert decision.reason == (
        "its writer made no progress for 1.0 min, and it held 81.0 MB of the 81.0 MB of WAL that the slot retained, "
        "over capture.evict.remove_after"
    )


def test_it_goes_earlier_if_the_slot_retains_more_than_the_limit() -> None:
    """As soon as the stall was seen for the grace period."""
    world = World(written_lsn=ACK + 600 * MB)
    decision = world.run(2 * AFTER_MS, EvictionPolicy(RULE))
    assert decision.shape_id == "dead"
    assert world.now_ms == START_MS + GRACE_MS
    assert "over capture.evict.or_when_retained" in decision.reason


def test_a_limit_of_the_server_comes_first() -> None:
    """500 MB would never be reached: the server drops the slot's WAL at 100 MB. And then every shape would end."""
    world = World(written_lsn=ACK + 20 * MB, grows_by=5 * MB)

    def leave_the_rest_safe(world: World) -> None:
        world.slot["safe_wal_bytes"] = 100 * MB - world.held_bytes

    decision = world.run(AFTER_MS, EvictionPolicy(RULE), leave_the_rest_safe)
    assert decision.shape_id == "dead"
    assert "held 85.0 MB" in decision.reason
    assert "over 80 % of the server's max_slot_wal_keep_size" in decision.reason


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"grows_by": 0}, "the server is idle"),
        ({"holder": {"held_bytes": 0}}, "'dead' holds 0 B, less than capture.evict.at_least"),
        ({"holder": {"held_bytes": 15 * MB}}, "'dead' holds 15.0 MB, less than capture.evict.at_least"),
        ({"holders": ()}, "no shape holds the ack"),
        ({"has_job": False}, "there is no current document of the tracking job"),
        ({"job": {"at_ms": START_MS - FRESH_MS - 1}}, "there is no current document of the tracking job"),
        ({"job": {"is_ready": False}}, "the tracking job does not know the source yet"),
        ({"job": {"batch_id": None}}, "the tracking job does not know the source yet"),
        ({"job": {"sources": ()}}, "the tracking job does not know the source yet"),
        ({"job": {"open_transactions": (_OPEN,)}}, "an open transaction hides records from the tracking job"),
        ({"source": {"gap": "no 0/4B0"}}, "the tracking job has set the source aside"),
        ({"batches": 0}, "the job has finished no batch for capture.evict.grace"),
        ({"source": {"last_seen_lsn": ACK + 100}}, "the job is behind: it has not seen what was published before"),
        ({"source": {"ack_lsn": ACK - 1}}, "the job's ack is not the one that capture has read"),
        ({"source": {"ack_lsn": ACK + 1}}, "the job's ack is not the one that capture has read"),
        ({"capture": {"acknowledged_lsn": None}}, "the job's ack is not the one that capture has read"),
        ({"capture": {"is_connected": False}}, "capture is not connected"),
        ({"capture": {"slot": None}}, "the slot's figures are outdated"),
        ({"slot": {"at_ms": START_MS - FRESH_MS - 1}}, "the slot's figures are outdated"),
        ({"slot": {"confirmed_lsn": ACK}}, "the slot is not confirmed up to the ack"),
        ({"slot": {"wal_status": "lost"}}, "the slot is lost"),
    ],
)
def test_nothing_goes_where_it_would_free_nothing_or_the_cause_is_another(change: dict[str, Any], reason: str) -> None:
    """However long it lasts. What is different here is the only thing that is wrong."""
    world = replace(World(written_lsn=ACK + 600 * MB), **change)
    decision = world.run(3 * AFTER_MS, EvictionPolicy(RULE))
    assert (decision.shape_id, decision.reason) == (None, reason)


def test_a_job_that_returns_after_hours_may_first_read_what_it_has_missed() -> None:
    """Its first documents call a shape pending that was flushed long ago: the notification is in its backlog."""
    world = World(has_job=False)
    policy = EvictionPolicy(RULE)
    world.run(10 * AFTER_MS, policy)
    world.has_job = True
    assert world.run(GRACE_MS, policy).reason == "'dead' has not held the ack for capture.evict.grace"
    world.source["last_seen_lsn"] = ACK + 100
    assert "the job is behind" in world.run(GRACE_MS, policy).reason
    world.holders = world.holders[1:]
    assert world.run(GRACE_MS, policy).shape_id is None


def test_a_shape_that_makes_progress_stays_whatever_the_slot_retains() -> None:
    """It catches up after an outage: each flush gives it a new ``since_ms``."""
    world = World(written_lsn=ACK + 600 * MB)

    def flush(world: World) -> None:
        if world.now_ms % (GRACE_MS - TICK_MS) == 0:
            world.holders = (structs.replace(world.holders[0], since_ms=world.now_ms), *world.holders[1:])

    assert world.run(5 * AFTER_MS, EvictionPolicy(RULE), flush).shape_id is None


def test_a_shape_does_not_go_for_what_an_open_transaction_retains() -> None:
    """The slot retains 600 MB, of which the shape holds 20: removing it would free nothing."""
    world = World(slot={"retained_bytes": 600 * MB}, grows_by=1)
    rule = replace(RULE, remove_after_ms=None)
    assert world.run(5 * AFTER_MS, EvictionPolicy(rule)).shape_id is None


def test_a_shape_that_has_just_become_pending_has_its_own_time() -> None:
    """However long all was in order before."""
    world, policy = World(grows_by=1, holders=()), EvictionPolicy(RULE)
    world.run(10 * AFTER_MS, policy)
    pending_ms = world.now_ms
    world.holders = (Holder("new", pending_ms, 1, 0, ACK),)
    assert world.run(2 * AFTER_MS, policy).shape_id == "new"
    assert world.now_ms - pending_ms == AFTER_MS + TICK_MS


def test_shapes_that_stopped_together_stay_unless_the_rule_says_otherwise() -> None:
    """Their writer is down: one after the other would have gone, and none of them freed anything."""
    together = tuple(Holder(name, START_MS + n * 5_000, 5, 0, ACK) for n, name in enumerate(["dead", "too", "three"]))
    for retained in (1, 10**15):
        world = World(holders=together)
        rule = replace(RULE, retained=RetainedLimit(bytes=retained))
        decision = world.run(4 * AFTER_MS, EvictionPolicy(rule))
        assert (decision.shape_id, decision.is_postponed) == (None, True)
        assert decision.reason == (
            "'dead', 'too', 'three' stopped at the same moment, so their writer 'log' is down: start it, or set "
            "capture.evict.if_writer_is_down"
        )
    world = World(holders=together)
    assert world.run(4 * AFTER_MS, EvictionPolicy(replace(RULE, if_writer_is_down=True))).shape_id == "dead"


def test_shapes_of_different_writers_that_stopped_together_are_not_one_writer_down() -> None:
    """Three that stopped within half a minute were called one: the first is alone of its writer, and may go.

    With a second of its own writer the text names that writer, and not the shape of the other between them.
    """
    names, writers = ("dead", "too", "three"), ("log", "own", "other")
    holders = tuple(
        Holder(name, START_MS + n * 5_000, 5, 0, ACK, writer=writer)
        for n, (name, writer) in enumerate(zip(names, writers, strict=True))
    )
    assert World(holders=holders).run(4 * AFTER_MS, EvictionPolicy(RULE)).shape_id == "dead"
    own = (
        structs.replace(holders[0], writer="own"),
        structs.replace(holders[1], writer="log"),
        structs.replace(holders[2], writer="own"),
    )
    decision = World(holders=own).run(4 * AFTER_MS, EvictionPolicy(RULE))
    assert (decision.shape_id, decision.is_postponed) == (None, True)
    assert decision.reason == (
        "'dead', 'three' stopped at the same moment, so their writer 'own' is down: start it, or set "
        "capture.evict.if_writer_is_down"
    )


def test_one_goes_at_a_time_and_the_next_only_after_the_first_has_had_its_effect() -> None:
    """The job must first see the eviction; then the hour must pass."""
    world, policy = World(), EvictionPolicy(RULE)
    assert world.run(2 * AFTER_MS, policy).shape_id == "dead"
    world.evictions = (Eviction("dead", world.now_ms, "…"),)
    decision = world.run(AFTER_MS, policy)
    assert decision.reason == "'dead' is already evicted, but the job has not seen that yet"
    world.holders = world.holders[1:]
    world.capture["acknowledged_lsn"] = ACK - 1
    assert "the job's ack is not the one" in world.run(GRACE_MS, policy).reason, "the ack moves"
    world.capture.clear()
    decision = world.run(AFTER_MS, policy)
    assert (
        decision.reason
        == "'behind-it' must wait: evictions in the last hour: 1, which is capture.evict.at_most_per_hour"
    )
    assert (decision.source, decision.shape_id, decision.is_postponed) == (SOURCE, None, True)
    assert world.run(2 * HOUR_MS, policy).shape_id == "behind-it"
    assert world.now_ms - world.evictions[0].at_ms == HOUR_MS


def test_a_shape_that_began_again_after_its_eviction_may_be_evicted_again() -> None:
    """It was taken for evicted until capture was started again. What it held before may be an old document."""
    world, policy = World(), EvictionPolicy(RULE)
    assert world.run(2 * AFTER_MS, policy).shape_id == "dead"
    world.evictions = (Eviction("dead", world.now_ms, "…"),)
    world.tick()
    world.holders = (Holder("dead", world.now_ms, 5, 0, ACK),)
    decision = world.run(2 * AFTER_MS, policy)
    assert decision.reason == "'dead' must wait: evictions in the last hour: 1, which is capture.evict.at_most_per_hour"
    assert world.run(2 * HOUR_MS, policy).shape_id == "dead"
    assert world.now_ms - world.evictions[0].at_ms == HOUR_MS


@pytest.mark.parametrize("restarted", ["capture", "job"])
def test_a_restart_of_capture_or_of_the_job_starts_the_time_anew(restarted: str) -> None:
    """The hourly limit survives it: evictions are read from the registry."""
    world = World()
    policy = EvictionPolicy(RULE)
    assert world.run(AFTER_MS, policy).reason == "'dead' is within the limits"
    if restarted == "job":
        world.job_started_at_ms = world.now_ms
    else:
        policy = EvictionPolicy(RULE)
    since = world.now_ms
    assert world.run(2 * AFTER_MS, policy).shape_id == "dead"
    assert world.now_ms - since == AFTER_MS + TICK_MS


def _away(world: World, policy: EvictionPolicy) -> None:
    """Capture, or the machine, does not run."""
    del policy
    world.tick(10 * AFTER_MS)


def _without_the_job(world: World, policy: EvictionPolicy) -> None:
    world.has_job = False
    world.run(10 * AFTER_MS, policy)
    world.has_job = True
    world.tick()


def _with_a_job_that_hangs(world: World, policy: EvictionPolicy) -> None:
    """It answers, but a batch does not end."""
    world.batches = 0
    world.run(10 * AFTER_MS, policy)
    world.batches = 1
    world.tick()


def _with_gaps(world: World, policy: EvictionPolicy) -> None:
    """Capture's figures are there only now and then."""
    for _ in range(20):
        world.run(TICK_MS, policy)
        world.tick(FRESH_MS)


@pytest.mark.parametrize("outage", [_away, _without_the_job, _with_a_job_that_hangs, _with_gaps])
def test_a_shape_that_was_in_flight_when_all_stopped_has_the_whole_time_again(
    outage: Callable[[World, EvictionPolicy], None],
) -> None:
    """Its writer was down, too, and ``since_ms`` is from before. It flushes a moment later."""
    world, policy = World(), EvictionPolicy(RULE)
    world.run(GRACE_MS, policy)
    outage(world, policy)
    back_ms, world.grows_by = world.now_ms, 0
    world.written_lsn = ACK + 100 * MB
    world.tick(0)

    def write(world: World) -> None:
        world.grows_by = 1

    assert world.run(AFTER_MS, policy, write).reason == "'dead' is within the limits"
    assert world.run(AFTER_MS, policy, write).shape_id == "dead"
    assert AFTER_MS < world.now_ms - back_ms <= AFTER_MS + 2 * GRACE_MS


def test_a_job_that_has_hung_since_one_batch_is_not_asked() -> None:
    """It had a batch after the first look, and its document is of now; but the shape may be flushed since."""
    rule = replace(RULE, grace_ms=2 * FRESH_MS)
    world = World()
    world.source["last_seen_lsn"] = world.written_lsn + 1_000 * MB
    policy = EvictionPolicy(rule)
    world.run(2 * TICK_MS, policy)
    world.batches = 0
    decision = world.run(2 * FRESH_MS, policy)
    assert (decision.shape_id, decision.reason) == (None, "the job's last batch is outdated")


_EVENTS: Final = ("gap", "long gap", "back", "no job", "not ready", "late", "job restarts", "capture restarts", "flush")
_STEPS = st.lists(
    st.tuples(
        st.sampled_from([1, 2, 5, 10]),
        st.sampled_from([TICK_MS, GRACE_MS, GRACE_MS, FRESH_MS // 2, FRESH_MS]),
        st.sampled_from([MB, MB, 100 * MB, 0]),
        st.sampled_from([1, 1, 0]),
        st.sampled_from(["", *_EVENTS]),
        st.sampled_from([{}, {}, {}, {"held_bytes": 0}, {"held_bytes": 17 * MB}]),
    ),
    min_size=2,
    max_size=12,
)
"""How many looks, and how far apart; the WAL and the batches in between; what happens first; what the shape holds."""


def _story(*steps: tuple[int, int, int, str], grace_ms: int = GRACE_MS) -> dict[str, Any]:
    drawn: list[tuple[int, int, int, int, str, dict[str, int]]] = [
        (looks, ms, MB, batches, event, {}) for looks, ms, batches, event in steps
    ]
    return {"steps": drawn, "written": 20, "at_most_per_hour": 1, "grace_ms": grace_ms, "are_seen": False}


@given(
    steps=_STEPS,
    written=st.integers(0, 700),
    at_most_per_hour=st.integers(1, 3),
    grace_ms=st.sampled_from([GRACE_MS, 2 * FRESH_MS]),
    are_seen=st.booleans(),
)
@example(**_story((3, FRESH_MS // 2, 1, ""), (9, FRESH_MS // 2, 0, ""), grace_ms=2 * FRESH_MS)).via("a job that hangs")
@example(**_story((3, TICK_MS, 1, ""), (9, TICK_MS, 1, "long gap"))).via("an outage")
@example(**_story((5, FRESH_MS // 2, 1, ""), (3, GRACE_MS, 1, "job restarts"))).via("a restart")
def test_whatever_happens_only_a_shape_that_holds_the_slot_is_evicted(
    steps: list[tuple[int, int, int, int, str, dict[str, int]]],
    written: int,
    at_most_per_hour: int,
    grace_ms: int,
    are_seen: bool,  # noqa: FBT001  drawn
) -> None:
    """Random clocks, outages, jobs that hang, die and return, idle hours; each eviction is checked against the truth.

    ``are_seen``: the job sees each removal at once; else never.
    """
    world = World(written_lsn=ACK + written * MB)
    rule = replace(RULE, at_most_per_hour=at_most_per_hour, grace_ms=grace_ms)
    policy = EvictionPolicy(rule)
    history: list[tuple[int, CaptureStatus, JobStatus | None]] = []
    looks = ((step, number) for step in steps for number in range(step[0]))
    for (_, ms, world.grows_by, world.batches, event, world.holder), number in looks:
        world.tick(ms)
        _happen(world, "" if number else event)
        if event == "capture restarts" and number == 0:
            policy, history = EvictionPolicy(rule), []
        capture, job = world.capture_status(), world.job_status()
        history.append((world.now_ms, capture, job))
        decision = policy.decide(world.now_ms, capture, job)
        if decision.shape_id is not None:
            _require_right(decision, rule, history)
            world.evictions += (Eviction(decision.shape_id, world.now_ms, decision.reason),)
            if are_seen:
                world.holders = tuple(holder for holder in world.holders if holder.shape_id != decision.shape_id)
                world.holders += (Holder(f"next-{len(world.evictions)}", world.now_ms, 1, 0, ACK),)


def _happen(world: World, event: str) -> None:
    """What lasts for one look, but for restarts and flushes."""
    world.now_ms += {"gap": AFTER_MS, "long gap": HOUR_MS, "back": -GRACE_MS}.get(event, 0)
    if event == "job restarts":
        world.job_started_at_ms = world.now_ms
    elif event == "flush":
        world.holders = (*world.holders[1:], structs.replace(world.holders[0], since_ms=world.now_ms))
    world.has_job = event != "no job"
    jobs: dict[str, dict[str, Any]] = {
        "not ready": {"is_ready": False},
        "late": {"at_ms": world.now_ms - 2 * FRESH_MS},
    }
    world.job = jobs.get(event, {})


def _require_right(
    decision: Decision, rule: EvictionRule, history: list[tuple[int, CaptureStatus, JobStatus | None]]
) -> None:
    now_ms, capture, job = history[-1]
    assert job is not None
    assert capture.slot is not None
    (source,) = job.sources
    holder = source.holders[0]
    assert decision.shape_id == holder.shape_id
    # One that was flushed since may have begun again. Capture knows whether it has, and ends none that is not live.
    assert not any(
        eviction.shape_id == holder.shape_id and eviction.at_ms >= holder.since_ms for eviction in capture.evictions
    )
    assert abs(now_ms - job.at_ms) <= FRESH_MS
    assert job.batch_at_ms is not None
    assert now_ms - job.batch_at_ms <= FRESH_MS, "it hangs"
    assert holder.held_bytes >= rule.at_least_bytes
    assert sum(now_ms - eviction.at_ms < HOUR_MS for eviction in capture.evictions) < rule.at_most_per_hour
    # Since some look that is at least the grace period ago, all looks were alike; and the server has written meanwhile.
    in_order = list(_in_order(history))
    stall = (holder.shape_id, holder.since_ms)
    seen = [(at_ms, written) for at_ms, written, _ in takewhile(lambda look: look[2] == stall, in_order)]
    assert now_ms - seen[-1][0] >= rule.grace_ms
    first_written_lsn = next(written_lsn for at_ms, written_lsn in seen if now_ms - at_ms >= rule.grace_ms)
    assert first_written_lsn < capture.slot.written_lsn
    if decision.reason.endswith("capture.evict.remove_after"):
        assert rule.remove_after_ms is not None
        assert now_ms - holder.since_ms > rule.remove_after_ms
        assert now_ms - in_order[-1][0] > rule.remove_after_ms, "nobody has seen it for so long"


def _in_order(
    history: list[tuple[int, CaptureStatus, JobStatus | None]],
) -> Iterator[tuple[int, int, tuple[str, int]]]:
    """When, back from the last look, all was in order and without a gap; the WAL written then, and who held."""
    later_ms, _, last = history[-1]
    assert last is not None
    for at_ms, capture, job in reversed(history):
        if job is None or not job.is_ready or job.started_at_ms != last.started_at_ms:
            return
        if abs(at_ms - job.at_ms) > FRESH_MS or not 0 <= later_ms - at_ms <= FRESH_MS:
            return
        assert capture.slot is not None
        first = job.sources[0].holders[0]
        yield at_ms, capture.slot.written_lsn, (first.shape_id, first.since_ms)
        later_ms = at_ms
