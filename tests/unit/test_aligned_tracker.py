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


def test_a_flush_of_the_last_change_of_a_shape_completes_its_transaction() -> None:
    """The commit ends at (100, 4), the shape's last change is (100, 2): more will never be flushed."""
    tracker = AlignedTracker()
    assert fragment(tracker, 4, {"users": LogOffset(100, 2)}, is_commit=True) == 98
    assert flush(tracker, "users", 2) == 100
    assert tracker.is_empty


def test_a_flush_before_its_transaction_counts_when_that_comes() -> None:
    """It completes its own transaction, and lets the ack pass no other shape's."""
    tracker = AlignedTracker()
    assert flush(tracker, "users", 2, tx=200) is None
    assert fragment(tracker, 0, {"orders": LogOffset(100, 0)}, is_commit=True) == 98
    assert fragment(tracker, 4, {"users": LogOffset(200, 2)}, is_commit=True, tx=200) is None
    assert flush(tracker, "orders", 0) == 200
    assert tracker.is_empty


def test_a_flush_between_two_fragments_counts_if_the_commit_has_nothing_for_the_shape() -> None:
    """No further flush will come, so the commit alone completes the transaction."""
    tracker = AlignedTracker()
    fragment(tracker, 2, {"users": LogOffset(100, 0)})
    assert flush(tracker, "users", 0) is None
    assert not tracker.pending
    assert fragment(tracker, 6, {"users": None}, is_commit=True) == 100
    assert tracker.is_empty


def test_a_flush_between_two_fragments_is_partial_if_the_shape_has_more() -> None:
    """The second fragment has another change: the shape is pending from its flush on."""
    tracker = AlignedTracker()
    fragment(tracker, 2, {"users": LogOffset(100, 0)})
    flush(tracker, "users", 0)
    assert fragment(tracker, 6, {"users": LogOffset(100, 4)}, is_commit=True) == 99
    assert tracker.pending["users"].last_flushed == LogOffset(100, 0)
    assert flush(tracker, "users", 4) == 100


def test_a_commit_with_nothing_for_a_shape_leaves_nothing_pending() -> None:
    """A shape that is listed and writes nothing waits for no flush."""
    tracker = AlignedTracker()
    assert fragment(tracker, 4, {"users": None}, is_commit=True) == 100
    assert tracker.is_empty


def test_a_transaction_that_is_sent_again_and_cut_anew_is_not_pending_again() -> None:
    """Its writer has flushed, and says nothing again: neither while the transaction is open, nor after its commit."""
    tracker = AlignedTracker()
    fragment(tracker, 2, {"users": LogOffset(100, 2)})
    flush(tracker, "users", 2)
    assert fragment(tracker, 6, {"users": LogOffset(100, 2)}, is_commit=True) == 100
    assert fragment(tracker, 6, {"users": LogOffset(100, 2)}, is_commit=True) is None
    assert tracker.is_empty


def test_the_ack_is_just_below_the_first_transaction_that_is_not_flushed() -> None:
    """A flush of the first of two transactions counts as one up to the second."""
    tracker = AlignedTracker()
    fragment(tracker, 4, {"users": LogOffset(100, 2)}, is_commit=True)
    fragment(tracker, 4, {"users": LogOffset(2000, 2)}, is_commit=True, tx=2000)
    assert flush(tracker, "users", 2) == 1998


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
