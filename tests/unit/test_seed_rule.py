"""The seed rule, an event at a time, and the columns: the same histories through both give the same acks.

``FlushTracker``'s handlers track single shapes; ``ShapeGroup`` and ``SourceTrackers`` track groups of shapes, a
micro-batch at a time. Both are production code, and where flushes are aligned to transactions, they are one rule.

The handlers need more order than the columns: a flush after its transaction, a removal after the transaction that it is
in, no shape sent twice, and offsets that are aligned, to just before the shape's next transaction. The columns get the
same events shuffled, with resends, and with the offsets that writers report.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

from hypothesis import given, note
from hypothesis import strategies as st

from flushtracker.events.stream_events import FlushNotification, FragmentEvent
from flushtracker.tracking.flush_tracker import FlushTracker
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.shape_list import is_list, listed_at
from tests.support.ack_rows import AckRows
from tests.support.random_wal import RANDOMS, Case, cases
from tests.support.simulated_job import SimulatedJob
from tests.support.wal_history import Event, History, Keepalive


@dataclass
class SeedRule:
    """A ``FlushTracker`` over shapes, and what aligning a flush takes: the transactions that each shape was sent."""

    history: History
    tracker: FlushTracker = field(default_factory=FlushTracker)
    cursor: LogOffset = field(default_factory=LogOffset.before_all)
    sent: dict[str, list[int]] = field(default_factory=dict)

    def handle(self, event: Event, now_ms: int) -> None:
        """An event whose offset is of a whole transaction that was sent, or a fragment, resent or not."""
        if isinstance(event, FragmentEvent):
            self._fragment(event, now_ms)
        elif event.type == "removed":
            self.tracker.handle_shape_removed(event.shape_id)
        else:
            aligned = self.aligned(event.shape_id, event.offset.tx_offset)
            self.tracker.handle_flush_notification(event.shape_id, aligned, now_ms=now_ms)
        self.tracker.check_invariants()

    def _fragment(self, event: FragmentEvent, now_ms: int) -> None:
        is_commit = event.commit is not None
        reached = event.last_log_offset.reached(is_commit=is_commit)
        # Of what was sent before, only a commit may be new: that of a keepalive which the run before left out. While a
        # transaction's list is being sent, the shapes that are yet to be listed take all of its fragments as new.
        is_listing = is_list(self.cursor.op_offset) and self.cursor.tx_offset == event.lsn
        shapes = [
            shape.shape_id
            for shape in event.shapes
            if (listed_at(shape.shape_id) > self.cursor.op_offset if is_listing else reached > self.cursor)
        ]
        self.cursor = max(self.cursor, reached)
        for shape_id in shapes:
            sent = self.sent.setdefault(shape_id, [])
            if sent[-1:] != [event.lsn]:
                sent.append(event.lsn)
        self.tracker.handle_txn_fragment(event.last_log_offset, shapes, is_commit=is_commit, now_ms=now_ms)

    def aligned(self, shape_id: str, lsn: int) -> LogOffset:
        """The flush of the transaction at ``lsn``: just before the shape's next one, if that was sent."""
        later = [each for each in self.sent[shape_id] if each > lsn]
        return LogOffset.just_before(later[0]) if later else LogOffset.last_of(lsn)

    def flushes(self, rng: Random) -> Iterator[FlushNotification]:
        """Of some shapes what a writer may report now: that a transaction is flushed, or again that an older one is."""
        for shape_id, lsns in self.sent.items():
            committed = [lsn for lsn in lsns if LogOffset.last_of(lsn) <= self.cursor]
            if committed and rng.random() < 0.3:
                lsn = rng.choice(committed)
                (txn,) = [txn for txn in self.history.txns if txn.lsn == lsn]
                last = txn.last_written[shape_id]
                reported = [last, max(last, txn.boundary), LogOffset.last_of(lsn)]
                yield FlushNotification(self.history.source, "flushed", shape_id, rng.choice(reported))

    def removals(self, rng: Random) -> Iterator[FlushNotification]:
        """Of some removed shapes that they are removed, once the transaction of the removal has ended.

        The handlers know no later incarnation, so they are not told once one was sent something.
        """
        for shape_id, offset in self.history.removals.items():
            is_sent_again = any(lsn > offset.tx_offset for lsn in self.sent.get(shape_id, ()))
            if LogOffset.last_of(offset.tx_offset) <= self.cursor and not is_sent_again and rng.random() < 0.4:
                yield self.history.removal(shape_id)


def random_batches(rng: Random, case: Case, most: int) -> Iterator[list[Event]]:
    """The stream with flushes and removals after what they concern, in batches of up to ``most`` events."""
    seed_rule, batch = SeedRule(case.history), list[Event]()
    size = rng.randint(1, most)
    for fragment in case.stream:
        seed_rule.handle(fragment, now_ms=0)
        events: list[Event] = [fragment, *seed_rule.flushes(rng), *seed_rule.removals(rng)]
        for event in events:
            batch.append(event)
            if len(batch) >= size:
                yield batch
                batch, size = [], rng.randint(1, most)
    yield [*batch, *case.history.last_flushes()]


def keepalives_at_a_commit(history: History) -> set[int]:
    """The keepalives right after which a commit record begins."""
    lsns = {txn.lsn for txn in history.txns}
    return {item.lsn for item in history.items if isinstance(item, Keepalive) and item.lsn + 1 in lsns}


@given(cases(), RANDOMS, st.sampled_from([0, 1, 3, 16]), st.sampled_from([1, 4, 30]))
def test_the_columns_acknowledge_what_the_seed_rule_acknowledges(
    case: Case, rng: Random, shape_groups: int, most: int
) -> None:
    """After every batch: the same ack, and of each pending shape the same aligned flush and the same time."""
    source, seed_rule, table = case.history.source, SeedRule(case.history), AckRows()
    ends = keepalives_at_a_commit(case.history)
    job = SimulatedJob(table, shape_groups=shape_groups)
    for now_ms, batch in enumerate(random_batches(rng, case, most)):
        note(f"batch {batch}")
        for event in batch:
            seed_rule.handle(event, now_ms)
        job.run_batch(rng.sample(batch, len(batch)), now_ms)
        pending = seed_rule.tracker.pending
        holders = job.trackers[source].holders
        assert {each.shape_id: (each.last_flushed, each.since_ms) for each in holders} == {
            shape_id: (each.last_flushed, each.since_ms) for shape_id, each in pending.items()
        }
        ack_lsn = seed_rule.tracker.ack_lsn
        # Between two events of a batch, the handlers acknowledge such a keepalive, which confirms nothing more.
        assert job.ack_lsn(source) in ({ack_lsn, ack_lsn - 1} if ack_lsn in ends else {ack_lsn})
        if rng.random() < 0.2:
            job = SimulatedJob(table, job.checkpoint, shape_groups=shape_groups)
    assert not pending
