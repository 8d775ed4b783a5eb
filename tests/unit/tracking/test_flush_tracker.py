"""The tracker on aligned offsets: its handlers against a ``min`` over a plain dict, and its bulk form against them."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from flushtracker.tracking.flush_tracker import FlushTracker, Pending
from flushtracker.wal.log_offset import LogOffset

SHAPES = ("users", "orders", "items", "audit")


class DictTracker:
    """The seed rule, written out: a dict of shape → (last sent, last flushed), and a ``min`` over all of it."""

    def __init__(self) -> None:
        self.ranges: dict[str, tuple[LogOffset, LogOffset]] = {}
        self.last_seen = LogOffset.before_all()
        self.global_flushed = LogOffset.before_all()
        self.ack_lsn = -1

    def fragment(self, last: LogOffset, shapes: Iterable[str], *, is_commit: bool) -> int | None:
        for shape_id in shapes:
            flushed = self.ranges[shape_id][1] if shape_id in self.ranges else LogOffset(last.tx_offset - 1, 0)
            self.ranges[shape_id] = last, flushed
        if is_commit:
            self.last_seen = last
        return self.ack()

    def flush(self, shape_id: str, offset: LogOffset) -> int | None:
        if shape_id in self.ranges:
            sent, flushed = self.ranges.pop(shape_id)
            if offset < sent:
                self.ranges[shape_id] = sent, max(flushed, offset)
        return self.ack()

    def remove(self, shape_id: str) -> int | None:
        self.ranges.pop(shape_id, None)
        return self.ack()

    def ack(self) -> int | None:
        if self.ranges:
            self.global_flushed = max(self.global_flushed, min(flushed for _, flushed in self.ranges.values()))
            ack_lsn = self.global_flushed.tx_offset - 1
        else:
            self.global_flushed = self.last_seen
            ack_lsn = self.last_seen.tx_offset
        if ack_lsn <= self.ack_lsn:
            return None
        self.ack_lsn = ack_lsn
        return ack_lsn


class TrackerComparison(RuleBasedStateMachine):
    """Any sequence of events gives the same acks as the dict, and leaves the same ranges."""

    def __init__(self) -> None:
        super().__init__()
        self.tracker, self.model = FlushTracker(), DictTracker()
        self.lsn, self.op, self.is_open = 1000, 0, False

    @rule(shapes=st.sets(st.sampled_from(SHAPES)), gap=st.integers(24, 60), is_commit=st.booleans())
    def fragment(self, shapes: set[str], gap: int, *, is_commit: bool) -> None:
        self.lsn, self.op = (self.lsn, self.op + 2) if self.is_open else (self.lsn + gap, 0)
        self.is_open = not is_commit
        last = LogOffset(self.lsn, self.op)
        moved = self.tracker.handle_txn_fragment(last, shapes, is_commit=is_commit, now_ms=0)
        assert moved == self.model.fragment(last, shapes, is_commit=is_commit)

    @rule(shape_id=st.sampled_from(SHAPES), part=st.integers(0, 3))
    def flush(self, shape_id: str, part: int) -> None:
        """Flush everything sent to the shape, or only part of it."""
        sent, flushed = self.model.ranges.get(shape_id, (LogOffset(self.lsn, self.op), LogOffset.before_all()))
        offset = [sent, flushed, LogOffset(sent.tx_offset, 0), LogOffset(flushed.tx_offset + 1, 2)][part]
        moved = self.tracker.handle_flush_notification(shape_id, offset, now_ms=0)
        assert moved == self.model.flush(shape_id, offset)

    @rule(shape_id=st.sampled_from(SHAPES))
    def remove(self, shape_id: str) -> None:
        assert self.tracker.handle_shape_removed(shape_id) == self.model.remove(shape_id)

    @precondition(lambda self: self.model.ranges)
    @rule()
    def flush_all(self) -> None:
        for shape_id, (sent, _) in list(self.model.ranges.items()):
            moved = self.tracker.handle_flush_notification(shape_id, sent, now_ms=0)
            assert moved == self.model.flush(shape_id, sent)
        assert not self.tracker.pending

    @invariant()
    def agrees(self) -> None:
        self.tracker.check_invariants()
        pending = self.tracker.pending.items()
        assert {s: (p.last_sent, p.last_flushed) for s, p in pending} == self.model.ranges
        assert self.tracker.ack_lsn == self.model.ack_lsn
        assert self.tracker.last_seen_offset == self.model.last_seen


TestTrackerComparison = TrackerComparison.TestCase

EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("fragment"), st.sets(st.sampled_from(SHAPES)), st.booleans()),
        st.tuples(st.just("flush"), st.sets(st.sampled_from(SHAPES)), st.booleans()),
        st.tuples(st.just("cut"), st.just(set[str]()), st.just(value=False)),
    ),
    max_size=40,
)


@given(EVENTS)
def test_bulk_confirms_what_the_handlers_confirm(events: list[tuple[str, set[str], bool]]) -> None:
    """Entries replaced once per batch confirm the same commits as one event at a time, whatever the batches."""
    one_by_one, in_bulk = FlushTracker(), FlushTracker()
    commits: list[int] = []
    touched: set[str] = set()
    lsn, op, is_open = 1000, 0, False
    for kind, shapes, flag in [*events, ("cut", set[str](), False)]:
        if kind == "fragment":
            lsn, op = (lsn, op + 2) if is_open else (lsn + 24, 0)
            is_open = not flag
            one_by_one.handle_txn_fragment(LogOffset(lsn, op), shapes, is_commit=flag, now_ms=0)
            commits += [lsn] if flag else []
        elif kind == "flush":
            for shape_id in shapes & one_by_one.pending.keys():
                sent = one_by_one.pending[shape_id].last_sent
                offset = sent if flag else LogOffset(sent.tx_offset, max(sent.op_offset - 2, 0))
                one_by_one.handle_flush_notification(shape_id, offset, now_ms=0)
        touched |= shapes
        if kind == "cut":
            in_bulk.apply({s: one_by_one.pending.get(s) for s in touched}, one_by_one.last_seen_offset)
            in_bulk.check_invariants()
            touched = set()
            confirmed = [[commit for commit in commits if commit <= t.ack_lsn] for t in (one_by_one, in_bulk)]
            assert confirmed[0] == confirmed[1]
    assert dict(in_bulk.pending) == dict(one_by_one.pending)


def pending(sent: tuple[int, int], flushed: tuple[int, int], since_ms: int = 0) -> Pending:
    return Pending(LogOffset(*sent), LogOffset(*flushed), since_ms)


def test_ack_waits_for_the_slowest_shape() -> None:
    """The first flush of two shapes of a transaction moves nothing, the second acknowledges it."""
    tracker = FlushTracker()
    tracker.handle_txn_fragment(LogOffset(100, 4), {"users", "orders"}, is_commit=True, now_ms=0)
    assert tracker.handle_flush_notification("users", LogOffset(100, 4), now_ms=0) is None
    assert not tracker.is_empty
    assert tracker.handle_flush_notification("orders", LogOffset(100, 4), now_ms=0) == 100
    assert tracker.is_empty
    assert not tracker.pending


def test_apply_replaces_an_entry_even_by_a_lower_one() -> None:
    """A group has a partial flush in T, then a shape new in T: the entry goes down, the ack does not."""
    tracker = FlushTracker()
    tracker.apply({"0": pending((100, 6), (100, 5))}, LogOffset(50, 0))
    assert tracker.ack_lsn == 99
    assert tracker.apply({"0": pending((100, 8), (99, 0))}, LogOffset(100, 8)) is None
    tracker.check_invariants()
    assert tracker.pending["0"].last_flushed == LogOffset(99, 0)
    assert tracker.apply({"0": None}) == 100


def test_apply_without_a_commit_keeps_the_last_seen() -> None:
    """A batch of flushes alone acknowledges what was seen before; an older commit does not lower it."""
    tracker = FlushTracker()
    tracker.apply({"0": pending((100, 0), (99, 0))}, LogOffset(100, 0))
    tracker.apply({}, LogOffset(50, 0))
    assert tracker.last_seen_offset == LogOffset(100, 0)
    assert tracker.apply({"0": None}, None) == 100


def test_nothing_below_the_first_ack_is_returned_again() -> None:
    """A tracker that starts from a table's last ack returns only greater ones."""
    tracker = FlushTracker(ack_lsn=150)
    assert tracker.apply({}, LogOffset(100, 0)) is None
    assert tracker.apply({"0": pending((200, 0), (99, 0))}) is None
    assert tracker.apply({"0": None}, LogOffset(200, 0)) == 200


def test_shapes_are_pending_since_their_last_progress() -> None:
    """A partial flush is progress, a further transaction is not."""
    tracker = FlushTracker()
    tracker.handle_txn_fragment(LogOffset(100, 4), ["users", "orders", "items"], is_commit=True, now_ms=1_000)
    tracker.handle_txn_fragment(LogOffset(200, 0), ["users"], is_commit=True, now_ms=30_000)
    tracker.handle_flush_notification("orders", LogOffset(100, 2), now_ms=20_000)
    since_ms = {shape_id: each.since_ms for shape_id, each in tracker.pending.items()}
    assert since_ms == {"users": 1_000, "orders": 20_000, "items": 1_000}


def test_a_repeated_flush_is_no_progress() -> None:
    """A writer that reports the same partial flush again and again stays stalled since the first."""
    tracker = FlushTracker()
    tracker.handle_txn_fragment(LogOffset(100, 4), ["users"], is_commit=True, now_ms=1_000)
    for now_ms in (2_000, 3_000):
        tracker.handle_flush_notification("users", LogOffset(100, 2), now_ms=now_ms)
    assert tracker.pending["users"].since_ms == 2_000


def test_a_resent_fragment_does_not_lower_what_was_sent() -> None:
    """After a resend of a transaction's first part, a flush of that part alone does not complete the transaction."""
    tracker = FlushTracker()
    tracker.handle_txn_fragment(LogOffset(100, 4), ["users"], is_commit=True, now_ms=0)
    tracker.handle_txn_fragment(LogOffset(100, 2), ["users"], is_commit=False, now_ms=0)
    assert tracker.handle_flush_notification("users", LogOffset(100, 2), now_ms=0) == 99
    assert tracker.handle_flush_notification("users", LogOffset(100, 4), now_ms=0) == 100


def test_offsets_seen_and_flushed_never_go_back() -> None:
    """Neither an older commit nor an entry that moves down lowers them."""
    tracker = FlushTracker()
    tracker.apply({"0": pending((100, 6), (100, 5))}, LogOffset(50, 0))
    tracker.apply({"0": pending((100, 8), (99, 0))}, LogOffset(40, 0))
    assert tracker.last_seen_offset == LogOffset(50, 0)
    assert tracker.last_global_flushed_offset == LogOffset(100, 5)


def test_an_empty_pending_range_is_refused() -> None:
    """A shape flushed as far as it was sent is not pending; the message has both offsets."""
    with pytest.raises(ValueError, match=r"pending range is empty: flushed 0/64\+4, sent 0/64\+4"):
        pending((100, 4), (100, 4))


def test_check_invariants_detects_a_tree_that_differs_from_the_mapping() -> None:
    """The check that other tests rely on fails on a mapping changed without the tree."""
    tracker = FlushTracker()
    tracker.handle_txn_fragment(LogOffset(100, 4), ["users"], is_commit=True, now_ms=0)
    tracker._pending["users"] = pending((100, 4), (100, 2))
    with pytest.raises(AssertionError, match="differs from the mapping's"):
        tracker.check_invariants()


def test_check_invariants_detects_an_ack_that_lags() -> None:
    """With nothing pending, the last commit must be acknowledged."""
    tracker = FlushTracker()
    tracker.last_seen_offset = LogOffset(100, 4)
    with pytest.raises(AssertionError, match="ack -1 is below the 100 that may be acknowledged"):
        tracker.check_invariants()
