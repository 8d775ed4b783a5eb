"""A missing fragment may be a transaction that nobody has seen: the job stops before it acknowledges past the gap."""

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import assume, given

from flushtracker.errors import GapError
from flushtracker.events.stream_events import FragmentEvent
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.shape_list import FIRST_LISTED, is_list
from tests.support.ack_rows import AckRows
from tests.support.exact_ack import Delivered
from tests.support.random_wal import RANDOMS, Case, cases, random_batches
from tests.support.simulated_job import SimulatedJob
from tests.support.wal_history import Event


@given(cases(resends=0), RANDOMS)
def test_a_missing_fragment_is_a_gap_and_no_ack_passes_it(case: Case, rng: Random) -> None:
    """If any fragment but the last is missing, the batch with the next one fails, also when it runs again."""
    assume(len(case.stream) > 1)
    missing = rng.randrange(len(case.stream) - 1)
    stream = case.stream[:missing] + case.stream[missing + 1 :]
    job, oracle = SimulatedJob(AckRows()), Delivered(case.history)
    failed = run_until_gap(job, oracle, random_batches(rng, [stream], case.all_flushed))
    assert failed is not None
    assert case.stream[missing + 1] in failed
    assert job.ack_lsn(case.history.source) < case.stream[missing].lsn
    again = SimulatedJob(job.table, job.checkpoint)
    with pytest.raises(GapError, match=f"of source {case.history.source} "):
        again.run_batch(failed)


@given(cases(), RANDOMS)
def test_a_missing_fragment_is_a_gap_or_was_resent_in_time(case: Case, rng: Random) -> None:
    """With resends, either the job stops, or another fragment has covered the missing one and every ack is exact."""
    # A start states that everything before it is confirmed, and is trusted.
    confirmed = max(fragment.follows.tx_offset for fragment in case.stream if fragment.start)
    missing = rng.choice([index for index, fragment in enumerate(case.stream) if fragment.lsn > confirmed] or [-1])
    assume(missing >= 0)
    stream = case.stream[:missing] + case.stream[missing + 1 :]
    job, oracle = SimulatedJob(AckRows()), Delivered(case.history)
    batches = [list[Event]([fragment]) for fragment in stream] + [list[Event](case.all_flushed)]
    failed = run_until_gap(job, oracle, batches)
    assert (failed is not None) == has_gap(stream)
    if failed is None:
        oracle.assert_exact(job.ack_lsn(case.history.source))


@given(cases(resends=0), RANDOMS)
def test_a_gap_filled_in_the_same_batch_is_no_gap(case: Case, rng: Random) -> None:
    """A batch has no order, so a fragment that arrives late or twice within its batch is not missing."""
    events: list[Event] = [*case.stream, *case.all_flushed]
    job, oracle = SimulatedJob(AckRows()), Delivered(case.history)
    batch = [*rng.sample(events, len(events)), rng.choice(case.stream)]
    assert run_until_gap(job, oracle, [batch]) is None
    oracle.assert_exact(job.ack_lsn(case.history.source))


def run_until_gap(job: SimulatedJob, oracle: Delivered, batches: Sequence[list[Event]]) -> list[Event] | None:
    """Run batches, checking each ack by definition; return the one with the gap, which must change nothing."""
    for batch in batches:
        before = list(job.table.rows), job.checkpoint
        try:
            job.run_batch(batch)
        except GapError:
            assert (job.table.rows, job.checkpoint) == before
            return batch
        oracle.add(batch)
        for source in {event.source for event in batch}:
            oracle.assert_exact(job.ack_lsn(source))
    return None


def has_gap(stream: Sequence[FragmentEvent]) -> bool:
    """The definition: in the order sent, a fragment follows more than has been received.

    A list part has none of the operations before it, so what follows an operation must follow one that was received.
    """
    reached: LogOffset | None = None
    operations = LogOffset.before_all()
    for fragment in stream:
        follows = fragment.follows
        if fragment.lsn > follows.tx_offset:
            follows = LogOffset.last_of(follows.tx_offset)
        if reached is None:
            if not fragment.start:
                return True
            reached = operations = follows
        elif follows > reached or (follows > operations and follows.op_offset < FIRST_LISTED):
            return True
        last = fragment.last_log_offset.reached(is_commit=fragment.commit is not None)
        reached = max(reached, last)
        if not is_list(last.op_offset):
            operations = max(operations, last)
    return False
