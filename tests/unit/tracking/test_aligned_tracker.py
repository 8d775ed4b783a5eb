"""``AlignedTracker`` on the offsets that writers store: the event orders that break trackers, and the exact ack."""

from random import Random

from hypothesis import given, note

from flushtracker.tracking.aligned_tracker import AlignedTracker
from flushtracker.wal.log_offset import LogOffset
from tests.support.aligned_orders import handle, random_order
from tests.support.exact_ack import Delivered
from tests.support.random_wal import RANDOMS, Case, cases

Sent = dict[str, LogOffset | None]


def flush(tracker: AlignedTracker, shape_id: str, op: int, tx: int = 100) -> int | None:
    return tracker.handle_flush_notification(shape_id, LogOffset(tx, op), now_ms=0)


@given(cases(resends=3, writers=("log",)), RANDOMS)
def test_the_ack_is_exact_after_every_event(case: Case, rng: Random) -> None:
    """In any order of raw offsets: all that may be confirmed, nothing else, and no state once all is flushed."""
    tracker, delivered, moved = AlignedTracker(), Delivered(case.history), -1
    for now_ms, event in enumerate(random_order(rng, case)):
        note(f"{event}")
        moved = handle(tracker, event, now_ms) or moved
        delivered.add([event])
        tracker.check_invariants()
        delivered.assert_exact(tracker.ack_lsn)
        assert {(shape_id, "log") for shape_id in tracker.pending} == delivered.pending_shapes()
        assert tracker.ack_lsn == moved
    assert tracker.is_empty


def fragment(tracker: AlignedTracker, op: int, sent: Sent, *, is_commit: bool = False, tx: int = 100) -> int | None:
    return tracker.handle_txn_fragment(LogOffset(tx, op), sent, is_commit=is_commit, now_ms=0)


def test_a_removal_before_the_last_fragments_of_its_transaction_completes_them() -> None:
    """Also what is read later; the next transaction that lists the shape is another incarnation's."""
    tracker = AlignedTracker()
    fragment(tracker, 2, {"users": LogOffset(100, 2)})
    tracker.handle_shape_removed("users", LogOffset(100, 2), now_ms=0)
    assert fragment(tracker, 6, {"users": LogOffset(100, 4)}, is_commit=True) == 100
    assert tracker.is_empty
    assert fragment(tracker, 0, {"users": LogOffset(200, 0)}, is_commit=True, tx=200) == 198


def test_what_an_earlier_run_acknowledged_is_flushed() -> None:
    """After a restart with its last ack, a transaction up to it may be sent again, and is not pending."""
    tracker = AlignedTracker(ack_lsn=100)
    assert fragment(tracker, 4, {"users": LogOffset(100, 2)}, is_commit=True) is None
    assert tracker.is_empty
    assert fragment(tracker, 0, {"users": LogOffset(200, 0)}, is_commit=True, tx=200) == 198


def test_a_first_part_that_is_sent_again_does_not_lower_what_was_sent() -> None:
    """After it, a flush of that part alone is still partial."""
    tracker = AlignedTracker()
    fragment(tracker, 4, {"users": LogOffset(100, 4)})
    fragment(tracker, 2, {"users": LogOffset(100, 2)})
    flush(tracker, "users", 2)
    assert tracker.pending["users"].last_flushed == LogOffset(100, 2)
