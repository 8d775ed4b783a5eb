"""The seed rule, an event at a time, and the columns: the same histories through both give the same acks.

``AlignedTracker`` tracks single shapes, an event at a time; ``ShapeGroup`` and ``SourceTrackers`` track groups of
shapes, a micro-batch at a time. Both are production code, and one rule. The columns get each batch shuffled.
"""

from collections.abc import Iterator
from random import Random

from hypothesis import given, note
from hypothesis import strategies as st

from flushtracker.tracking.aligned_tracker import AlignedTracker
from tests.support.ack_rows import AckRows
from tests.support.aligned_orders import handle, random_order
from tests.support.random_wal import RANDOMS, Case, cases
from tests.support.simulated_job import SimulatedJob
from tests.support.wal_history import Event, Keepalive


def random_batches(rng: Random, case: Case, most: int) -> Iterator[list[Event]]:
    """The events in batches of up to ``most``, and at the end nothing is pending."""
    batch, size = list[Event](), rng.randint(1, most)
    for event in random_order(rng, case):
        batch.append(event)
        if len(batch) >= size:
            yield batch
            batch, size = [], rng.randint(1, most)
    yield batch


def confirmed_by(ack_lsn: int, case: Case) -> list[int]:
    """The commits, and the keepalives among the events, that an ack confirms.

    Inside a batch, an open transaction may move the ack of the handlers to anywhere between the commit before and its
    own. That confirms nothing more, but for a keepalive right after which its commit record begins.
    """
    commits = {txn.lsn for txn in case.history.txns}
    keepalives = {event.lsn for event in case.stream if event.lsn + 1 not in commits}
    items = [item.lsn for item in case.history.items if not isinstance(item, Keepalive) or item.lsn in keepalives]
    return [lsn for lsn in items if lsn <= ack_lsn]


@given(cases(writers=("log",)), RANDOMS, st.sampled_from([0, 1, 3, 16]), st.sampled_from([1, 4, 30]))
def test_the_columns_acknowledge_what_the_seed_rule_acknowledges(
    case: Case, rng: Random, shape_groups: int, most: int
) -> None:
    """After every batch: the same is confirmed, and of each pending shape the same aligned flush and the same time."""
    source, seed_rule, table = case.history.source, AlignedTracker(), AckRows()
    job = SimulatedJob(table, shape_groups=shape_groups)
    for now_ms, batch in enumerate(random_batches(rng, case, most)):
        note(f"batch {batch}")
        for event in batch:
            handle(seed_rule, event, now_ms)
            seed_rule.check_invariants()
        job.run_batch(rng.sample(batch, len(batch)), now_ms)
        holders = job.trackers[source].holders if source in job.trackers else ()
        assert {each.shape_id: (each.last_flushed, each.since_ms) for each in holders} == {
            shape_id: (each.last_flushed, each.since_ms) for shape_id, each in seed_rule.pending.items()
        }
        acks = job.ack_lsn(source), seed_rule.ack_lsn
        assert confirmed_by(acks[0], case) == confirmed_by(acks[1], case), acks
        if rng.random() < 0.2:
            job = SimulatedJob(table, job.checkpoint, shape_groups=shape_groups)
    assert seed_rule.is_empty
