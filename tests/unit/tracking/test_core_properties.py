"""Random histories through the simulated job: every ack is compared with what may be acknowledged by definition."""

from collections.abc import Iterable
from random import Random

from hypothesis import given, note
from hypothesis import strategies as st

from flushtracker.events.stream_events import FlushNotification
from tests.support.ack_rows import AckRows, acks_of
from tests.support.exact_ack import Delivered
from tests.support.random_wal import RANDOMS, Case, cases, random_batches, several_sources
from tests.support.simulated_job import SimulatedJob, run_job
from tests.support.wal_history import Event, Txn, last_sent

SHAPE_GROUPS = st.sampled_from([0, 1, 3, 16])


@given(several_sources(), RANDOMS, SHAPE_GROUPS)
def test_acknowledges_what_is_safe_and_nothing_else(sources: list[Case], rng: Random, shape_groups: int) -> None:
    """After every batch, the ack confirms exactly the transactions that may be confirmed; keepalives too when idle.

    They are those that have been seen, and flushed or removed for each of their shapes.
    """
    delivered = [Delivered(case.history) for case in sources]
    job = SimulatedJob(AckRows(), shape_groups=shape_groups)
    flushes = [flush for case in sources for flush in case.flushes]
    for batch in random_batches(rng, [case.stream for case in sources], flushes):
        note(f"batch {batch}")
        job.run_batch(batch)
        for case, oracle in zip(sources, delivered, strict=True):
            oracle.add(batch)
            oracle.assert_exact(job.ack_lsn(case.history.source))


@given(cases(), RANDOMS, SHAPE_GROUPS)
def test_ends_at_the_last_commit_once_everything_is_flushed(case: Case, rng: Random, shape_groups: int) -> None:
    """Once every event has arrived, in any order, nothing is pending and the ack is the last commit or keepalive."""
    job = run_job(random_batches(rng, [case.stream], case.all_flushed), shape_groups)
    source = case.history.source
    assert job.ack_lsn(source) == max(f.lsn for f in case.stream if f.commit)
    assert job.is_caught_up(source)


@given(cases(), RANDOMS, RANDOMS, SHAPE_GROUPS)
def test_outcome_depends_only_on_the_set_of_events(case: Case, one: Random, other: Random, shape_groups: int) -> None:
    """Two cuts and interleavings of the same events confirm the same, with some flushes missing and with all."""
    history = case.history
    for flushes in (case.flushes, case.all_flushed):
        first = run_job(random_batches(one, [case.stream], flushes), shape_groups).ack_lsn(history.source)
        second = run_job(random_batches(other, [case.stream], flushes), shape_groups).ack_lsn(history.source)
        assert Delivered(history).confirmed_by(first) == Delivered(history).confirmed_by(second)
    assert first == second


@given(cases(), RANDOMS)
def test_number_of_shape_groups_changes_no_ack(case: Case, rng: Random) -> None:
    """The same batches give the same rows in the ack table with 0, 1, 3 and 16 groups."""
    batches = random_batches(rng, [case.stream], case.flushes)
    rows = [run_job(batches, shape_groups).table.rows for shape_groups in (0, 1, 3, 16)]
    assert rows[1:] == rows[:-1]


@given(cases(), RANDOMS)
def test_delivering_everything_twice_changes_nothing(case: Case, rng: Random) -> None:
    """Duplicates of fragments and flushes, in the same batch or later, register nothing twice."""
    batches = random_batches(rng, [case.stream], case.flushes)
    twice = [batch + rng.sample(batch, len(batch)) for batch in batches] + batches
    assert run_job(twice).table.rows == run_job(batches).table.rows


@given(cases(), RANDOMS, st.integers(1, 3))
def test_merged_transactions_are_safe_and_end_at_the_last_commit(case: Case, rng: Random, max_pending: int) -> None:
    """With few pending transactions kept per shape the ack is less exact, never unsafe, and complete in the end."""
    job = SimulatedJob(AckRows(), max_pending=max_pending)
    oracle = Delivered(case.history)
    batches = random_batches(rng, [case.stream], case.flushes)
    for batch in [*batches, list[Event](case.history.last_flushes())]:
        job.run_batch(batch)
        oracle.add(batch)
        oracle.assert_safe(job.ack_lsn(case.history.source))
    oracle.assert_exact(job.ack_lsn(case.history.source))


@given(several_sources(), RANDOMS)
def test_sources_do_not_affect_each_other(sources: list[Case], rng: Random) -> None:
    """Interleaved with another source, each source gets the acks that it gets alone."""
    batches = random_batches(rng, [c.stream for c in sources], [flush for c in sources for flush in c.flushes])
    together = run_job(batches).table
    for case in sources:
        source = case.history.source
        alone = run_job([[event for event in batch if event.source == source] for batch in batches]).table
        assert acks_of(alone, source) == acks_of(together, source)


@given(cases(), RANDOMS, st.sampled_from([1, 3, 16]))
def test_caught_up_shapes_leave_nothing_behind(case: Case, rng: Random, shape_groups: int) -> None:
    """Once all is flushed and every group's cursor has passed, no group keeps a shape and the tracker is empty."""
    source = case.history.source
    # Past the flushes of strangers, too, which are kept until then.
    last_lsn = max([case.history.items[-1].lsn, *(flush.offset.tx_offset for flush in case.all_flushed)])
    job = run_job(random_batches(rng, [case.stream], case.all_flushed), shape_groups)
    # A transaction that reaches every group.
    shapes = {job.group_of(f"{number}"): f"{number}" for number in range(200)}.values()
    job.run_batch(closing_transaction(case, last_lsn + 100, shapes))
    assert job.kept_shapes() == set()
    assert job.is_caught_up(source)
    assert all(len(packed) < 64 for packed, _ in job.checkpoint.groups())


def closing_transaction(case: Case, lsn: int, shapes: Iterable[str]) -> list[Event]:
    """A last transaction with each of ``shapes``, and the flushes of all of them."""
    source = case.history.source
    txn = Txn(lsn, 999, (dict.fromkeys(shapes, 0),))
    fragments = txn.fragments([], last_sent(case.stream), start=False, source=source)
    flushes = [
        FlushNotification(source, "flushed", shape_id, last, "log") for shape_id, last in txn.last_written.items()
    ]
    return [*fragments, *flushes]
