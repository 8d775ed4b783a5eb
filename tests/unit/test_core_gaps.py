"""A missing fragment may be a transaction that nobody has seen: the job stops before it acknowledges past it."""

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import assume, given

from flushtracker.errors import GapError
from flushtracker.events.stream_events import FragmentEvent
from flushtracker.wal.log_offset import LogOffset
from tests.support.exact_ack import Delivered
from tests.support.in_memory_job import AckTable, Event, InMemoryJob
from tests.support.random_wal import RANDOMS, Case, cases, random_batches


@given(cases(resends=0), RANDOMS)
def test_a_missing_fragment_is_a_gap_and_no_ack_passes_it(case: Case, rng: Random) -> None:
    """Without any fragment but the last, the batch with the next one fails, and so does every run of it again."""
    assume(len(case.stream) > 1)
    missing = rng.randrange(len(case.stream) - 1)
    stream = case.stream[:missing] + case.stream[missing + 1 :]
    job, oracle = InMemoryJob(AckTable()), Delivered(case.history)
    failed = run_until_gap(job, oracle, random_batches(rng, [stream], case.all_flushed))
    assert failed is not None
    assert case.stream[missing + 1] in failed
    assert job.ack_lsn(case.history.source) < case.stream[missing].lsn
    again = InMemoryJob(job.table, job.checkpoint)
    with pytest.raises(GapError, match=f"of source {case.history.source} "):
        again.run_batch(failed)


@given(cases(bare_commits=False), RANDOMS)
def test_a_missing_fragment_is_a_gap_or_was_sent_again_in_time(case: Case, rng: Random) -> None:
    """With resends about, the job stops, or what is missing has come by another fragment: then every ack is exact.

    Of one producer, that is: where one sends a commit without a change after an offset that another's commit has, the
    offset alone does not tell whether the commit was seen.
    """
    # A start says that all before it is confirmed, and must be believed.
    confirmed = max(fragment.follows.tx_offset for fragment in case.stream if fragment.start)
    missing = rng.choice([index for index, fragment in enumerate(case.stream) if fragment.lsn > confirmed] or [-1])
    assume(missing >= 0)
    stream = case.stream[:missing] + case.stream[missing + 1 :]
    job, oracle = InMemoryJob(AckTable()), Delivered(case.history)
    batches = [list[Event]([fragment]) for fragment in stream] + [list[Event](case.all_flushed)]
    failed = run_until_gap(job, oracle, batches)
    assert (failed is not None) == has_gap(stream)
    if failed is None:
        oracle.assert_exact(job.ack_lsn(case.history.source))


@given(cases(resends=0), RANDOMS)
def test_a_gap_filled_in_the_same_batch_is_none(case: Case, rng: Random) -> None:
    """Inside a batch there is no order, so a fragment that comes late, or twice, in its batch is not missing."""
    events: list[Event] = [*case.stream, *case.all_flushed]
    job, oracle = InMemoryJob(AckTable()), Delivered(case.history)
    batch = [*rng.sample(events, len(events)), rng.choice(case.stream)]
    assert run_until_gap(job, oracle, [batch]) is None
    oracle.assert_exact(job.ack_lsn(case.history.source))


def run_until_gap(job: InMemoryJob, oracle: Delivered, batches: Sequence[list[Event]]) -> list[Event] | None:
    """Run batches, comparing each ack with the definition; returns the one with the gap, which must change nothing."""
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
    """The definition: in the order sent, a fragment follows more than what has come."""
    reached: LogOffset | None = None
    for fragment in stream:
        if (reached is None and not fragment.start) or (reached is not None and fragment.follows > reached):
            return True
        reached = fragment.last_log_offset if reached is None else max(reached, fragment.last_log_offset)
    return False
