"""Random histories with a restart after any batch: the acks are those of a job that never stopped.

A restart finds the ack table intact, and the checkpoint intact, older, or gone.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from flushtracker.events.stream_events import FlushNotification, FragmentEvent
from tests.support.ack_rows import AckRows, acks_of
from tests.support.exact_ack import Delivered
from tests.support.random_wal import RANDOMS, Case, cases, items_after, random_batches, random_run
from tests.support.sample_source import SampleSource
from tests.support.simulated_job import Checkpoint, KilledError, SimulatedJob
from tests.support.wal_history import Event, History

SHAPE_GROUPS = st.sampled_from([0, 1, 3, 16])


@dataclass
class WatchedJob:
    """A job that can be restarted; after each batch its ack is checked by definition, and never decreases."""

    case: Case
    shape_groups: int
    table: AckRows = field(default_factory=AckRows)
    checkpoints: list[Checkpoint] = field(default_factory=lambda: [Checkpoint()])

    def __post_init__(self) -> None:
        self.oracle = Delivered(self.case.history)
        self.restart(self.checkpoints[0])

    @property
    def ack_lsn(self) -> int:
        return self.job.ack_lsn(self.case.history.source)

    @property
    def confirmed(self) -> list[int]:
        """How many transactions the acks confirm, one after the other, each number once.

        A restart from a state that is older than the ack may append a greater LSN that confirms nothing more: it has
        not seen a commit that begins where a keepalive ends, or one after which nothing was pending.
        """
        counts = [len(self.oracle.confirmed_by(ack_lsn)) for _, ack_lsn in self.table.rows]
        return [count for count, before in zip(counts, [0, *counts], strict=False) if count != before]

    def restart(self, checkpoint: Checkpoint) -> None:
        before = self.confirmed
        self.job = SimulatedJob(self.table, checkpoint, shape_groups=self.shape_groups)
        assert self.confirmed == before, "a batch was committed without its ack"

    def run_batch(self, batch: Sequence[Event], *, is_exact: bool = True) -> None:
        """``is_exact`` is false while events that an older state has forgotten are still being redelivered."""
        note(f"batch {batch}")
        before = self.ack_lsn
        self.job.run_batch(batch)
        self.checkpoints.append(self.job.checkpoint)
        self.oracle.add(batch)
        assert self.ack_lsn >= before
        if is_exact:
            self.oracle.assert_exact(self.ack_lsn)
        else:
            self.oracle.assert_safe(self.ack_lsn)

    def run_killed_batch(self, batch: Sequence[Event], kill: str) -> None:
        """Kill the job in a batch, then run the batch again from the state before it."""
        with pytest.raises(KilledError):
            self.job.run_batch(batch, kill=kill)
        before = self.confirmed
        self.restart(self.checkpoints[-1])
        self.run_batch(batch)
        if kill == "before commit":
            assert self.confirmed == before

    def assert_one_row_for_each_advance(self) -> None:
        acks = acks_of(self.table, self.case.history.source)
        assert acks == sorted(set(acks))


@given(cases(), RANDOMS, SHAPE_GROUPS)
def test_restarts_from_the_checkpoint_confirm_the_same(case: Case, rng: Random, shape_groups: int) -> None:
    """Restarted from its checkpoint after every batch, the acks confirm the same transactions as in one run."""
    batches = random_batches(rng, [case.stream], case.all_flushed)
    restarted, steady = WatchedJob(case, shape_groups), WatchedJob(case, shape_groups)
    for batch in batches:
        restarted.restart(restarted.checkpoints[-1])
        restarted.run_batch(batch)
        steady.run_batch(batch)
    assert restarted.confirmed == steady.confirmed


@given(cases(), RANDOMS, SHAPE_GROUPS, st.sampled_from(["before ack", "before commit"]))
def test_a_killed_batch_runs_again_with_the_same_ack(case: Case, rng: Random, shape_groups: int, kill: str) -> None:
    """Killed in every batch, between state and ack, or between ack and Spark's commit: the same acks, each once."""
    batches = random_batches(rng, [case.stream], case.all_flushed)
    killed, steady = WatchedJob(case, shape_groups), WatchedJob(case, shape_groups)
    for batch in batches:
        killed.run_killed_batch(batch, kill)
        steady.run_batch(batch)
    assert killed.confirmed == steady.confirmed


def test_a_restart_may_acknowledge_a_keepalive_right_before_a_pending_commit() -> None:
    """The killed batch saw the commit that begins where the keepalive ends, and its ack was one below the keepalive."""
    source = SampleSource("7301/1/shapes", 1000)
    first, second = source.transaction(1100, "users"), source.keepalive(1150)
    watched = AckRows()
    job = SimulatedJob(watched)
    job.run_batch([first, second])
    killed: list[Event] = [source.transaction(1151, "users"), source.flushed("users", 1100)]
    with pytest.raises(KilledError):
        job.run_batch(killed, kill="before commit")
    assert acks_of(watched, source.name) == [1098, 1149]
    job = SimulatedJob(watched, job.checkpoint)
    assert acks_of(watched, source.name) == [1098, 1149, 1150]
    job.run_batch(killed)
    assert acks_of(watched, source.name) == [1098, 1149, 1150]
    job.run_batch([source.flushed("users", 1151)])
    assert acks_of(watched, source.name) == [1098, 1149, 1150, 1151]


@given(cases(), RANDOMS, SHAPE_GROUPS)
def test_an_old_checkpoint_reverts_no_ack(case: Case, rng: Random, shape_groups: int) -> None:
    """From an older state, the events after it are redelivered in other batches; the table is ahead and stays ahead."""
    batches = random_batches(rng, [case.stream], case.all_flushed)
    watched = WatchedJob(case, shape_groups)
    stop = rng.randrange(len(batches))
    for batch in batches[: stop + 1]:
        watched.run_batch(batch)
    old = rng.randint(0, stop + 1)
    watched.restart(watched.checkpoints[old])
    for batch in in_other_batches(rng, batches[old : stop + 1]):
        watched.run_batch(batch, is_exact=False)
    watched.oracle.assert_exact(watched.ack_lsn)
    for batch in batches[stop + 1 :]:
        watched.run_batch(batch)
    watched.assert_one_row_for_each_advance()
    assert all(watched.job.is_caught_up(source) for source in watched.job.trackers)


@given(cases(), RANDOMS, SHAPE_GROUPS)
def test_a_lost_checkpoint_costs_a_resend_by_capture(case: Case, rng: Random, shape_groups: int) -> None:
    """Without state, capture's resend after the last ack and the flushes still retained lead to the same end."""
    batches = random_batches(rng, [case.stream], case.flushes)
    watched = WatchedJob(case, shape_groups)
    stop = rng.randrange(len(batches))
    for batch in batches[: stop + 1]:
        watched.run_batch(batch)
    watched.restart(Checkpoint())
    acked = watched.ack_lsn if watched.table.rows else case.history.items[0].lsn - 20
    resent = random_run(rng, case.history, case.stream, items_after(case.history, acked), acked)
    earlier = [event for batch in batches[: stop + 1] for event in batch if isinstance(event, FlushNotification)]
    later = [event for batch in batches[stop + 1 :] for event in batch if isinstance(event, FlushNotification)]
    flushes = rng.choice([earlier, compacted(earlier)]) + repeated_flushes(case, earlier)
    for batch in random_batches(rng, [resent], flushes + later):
        watched.run_batch(batch, is_exact=False)
    # A keepalive that was pending when the state was lost may not be sent again.
    watched.oracle.assert_all_confirmed(watched.ack_lsn)
    watched.run_batch(case.history.last_flushes(), is_exact=False)
    watched.oracle.assert_all_confirmed(watched.ack_lsn)
    watched.assert_one_row_for_each_advance()
    assert all(watched.job.is_caught_up(source) for source in watched.job.trackers)


@given(cases(), RANDOMS, SHAPE_GROUPS)
def test_a_lost_checkpoint_is_rebuilt_from_the_retained_streams(case: Case, rng: Random, shape_groups: int) -> None:
    """Without state, and without a restart of capture, rereading the streams from their earliest event is enough."""
    batches = random_batches(rng, [case.stream], case.all_flushed)
    watched = WatchedJob(case, shape_groups)
    stop = rng.randrange(len(batches))
    for batch in batches[: stop + 1]:
        watched.run_batch(batch)
    watched.restart(Checkpoint())
    for batch in random_batches(rng, [from_a_retained_fragment(rng, case.stream, watched.table)], case.all_flushed):
        watched.run_batch(batch, is_exact=False)
    watched.oracle.assert_exact(watched.ack_lsn)
    watched.assert_one_row_for_each_advance()
    assert all(watched.job.is_caught_up(source) for source in watched.job.trackers)


@given(cases(), RANDOMS, SHAPE_GROUPS)
def test_restarts_of_every_kind_in_a_row_end_at_the_last_commit(case: Case, rng: Random, shape_groups: int) -> None:
    """Kills, older checkpoints and restarts after any batch: no unsafe ack, none reverted, and the same end."""
    batches = random_batches(rng, [case.stream], case.all_flushed)
    watched = WatchedJob(case, shape_groups)
    done = 0
    while done < len(batches):
        kind = rng.choice(["run", "before ack", "before commit", "restart", "old checkpoint"])
        if kind == "old checkpoint":
            done = rng.randint(0, done)
            del watched.checkpoints[done + 1 :]
            watched.restart(watched.checkpoints[done])
            batches[done:] = [*in_other_batches(rng, batches[done : done + 2]), *batches[done + 2 :]]
        elif kind == "restart":
            watched.restart(watched.checkpoints[-1])
        elif kind != "run":
            with pytest.raises(KilledError):
                watched.job.run_batch(batches[done], kill=kind)
            watched.restart(watched.checkpoints[-1])
        watched.run_batch(batches[done], is_exact=False)
        done += 1
    watched.assert_one_row_for_each_advance()
    assert watched.ack_lsn == max(fragment.lsn for fragment in case.stream if fragment.commit)


@settings(max_examples=150)
@given(cases().filter(lambda case: bool(case.history.removals)), RANDOMS, SHAPE_GROUPS)
def test_no_ack_waits_for_a_removed_shape_whose_flushes_were_deleted(
    case: Case, rng: Random, shape_groups: int
) -> None:
    """Once a removal is acknowledged, the shape's flushes and its removal may be deleted, read or not.

    So a job that continues from an older state, or from none, or that repeats a batch, never sees them again. No ack is
    unsafe, and in the end everything is acknowledged, as if they were still there.
    """
    batches = random_batches(rng, [case.stream], case.all_flushed)
    watched, deleted = WatchedJob(case, shape_groups), set[str]()
    done = 0
    while done < len(batches):
        kind = rng.choice(["run", "run", "before commit", "old checkpoint", "no checkpoint"])
        if kind == "before commit":
            with pytest.raises(KilledError):
                watched.job.run_batch(batches[done], kill=kind)
            watched.oracle.add(batches[done])
        elif kind != "run":
            done = rng.randint(0, done) if kind == "old checkpoint" else 0
        for shape_id, offset in case.history.removals.items():
            if offset.tx_offset <= watched.ack_lsn and rng.random() < 0.8:
                deleted.add(shape_id)
        batches = [without_flushes_of(case.history, deleted, batch) for batch in batches]
        if kind != "run":
            del watched.checkpoints[done + 1 :]
            watched.restart(watched.checkpoints[done])
        watched.run_batch(batches[done], is_exact=False)
        done += 1
    watched.assert_one_row_for_each_advance()
    last_lsn = max(fragment.lsn for fragment in case.stream if fragment.commit)
    assert watched.ack_lsn == last_lsn
    assert all(watched.job.is_caught_up(source) for source in watched.job.trackers)
    # Nor does one wait where other shapes of the same group are always pending.
    source, others = SampleSource(case.history.source, last_lsn + 1), [f"other-{number}" for number in range(30)]
    watched.job.run_batch([source.transaction(last_lsn + 100, *others), source.transaction(last_lsn + 200, *others)])
    watched.job.run_batch([source.flushed(shape_id, last_lsn + 100) for shape_id in others])
    assert watched.ack_lsn == last_lsn + 198


def without_flushes_of(history: History, shape_ids: Collection[str], batch: Sequence[Event]) -> list[Event]:
    """The batch without the removals of these shapes, and without what they flushed before."""
    return [
        event
        for event in batch
        if isinstance(event, FragmentEvent)
        or event.shape_id not in shape_ids
        or not history.is_removed(event.shape_id, event.offset)
    ]


def in_other_batches(rng: Random, batches: Sequence[Sequence[Event]]) -> list[list[Event]]:
    """The same events in other batches; fragments keep the order of their batches, as a batch itself has none."""
    if not batches:
        return []
    if rng.random() < 0.5:
        return [[event for batch in batches for event in batch]]
    flushes = [event for batch in batches for event in batch if isinstance(event, FlushNotification)]
    fragments: list[list[Event]] = [[e for e in batch if isinstance(e, FragmentEvent)] for batch in batches]
    for flush in flushes:
        fragments[rng.randrange(len(fragments))].append(flush)
    return fragments


def compacted(flushes: Sequence[FlushNotification]) -> list[FlushNotification]:
    """The last flush of each shape, type and writer, as in a compacted topic."""
    return list({(flush.shape_id, flush.type, flush.writer): flush for flush in flushes}.values())


def repeated_flushes(case: Case, flushes: Sequence[FlushNotification]) -> list[FlushNotification]:
    """What a writer reports for resent changes that it already holds: its furthest flush."""
    furthest: dict[tuple[str, str], FlushNotification] = {}
    for flush in flushes:
        if flush.type == "flushed" and flush.source == case.history.source:
            key = flush.shape_id, flush.writer
            furthest[key] = max(flush, furthest.get(key, flush), key=lambda f: f.offset)
    return list(furthest.values())


def from_a_retained_fragment(rng: Random, stream: Sequence[FragmentEvent], table: AckRows) -> list[FragmentEvent]:
    """The stream without a prefix that retention has removed, all of it at or below the last ack."""
    acked = max((ack for _, ack in table.rows), default=-1)
    first = 0
    while first < len(stream) and stream[first].last_log_offset.tx_offset <= acked and rng.random() < 0.7:
        first += 1
    return list(stream[first:])
