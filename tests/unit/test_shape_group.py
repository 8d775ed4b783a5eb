"""A shape group: its row for the driver, its packed state, its cursor, and how much it keeps."""

from random import Random

import pytest
from hypothesis import given

from flushtracker.errors import StateError
from flushtracker.tracking.flush_tracker import Pending
from flushtracker.tracking.shape_group import ShapeFlush, ShapeFragment, ShapeGroup
from flushtracker.tracking.shape_offsets import PendingTxn, ShapeOffsets
from flushtracker.tracking.source_tracker import GroupReport
from flushtracker.wal.log_offset import LogOffset
from tests.support.in_memory_job import run_job
from tests.support.random_wal import RANDOMS, Case, cases, random_batches


def commit(shape_id: str, lsn: int, op: int = 0) -> ShapeFragment:
    return ShapeFragment(shape_id, LogOffset(lsn, op), LogOffset(lsn, op), is_commit=True)


def flush(shape_id: str, lsn: int, op: int = 0) -> ShapeFlush:
    return ShapeFlush(shape_id, LogOffset(lsn, op))


def group_with(*events: ShapeFragment | ShapeFlush, max_pending: int = 4096, now_ms: int = 7) -> ShapeGroup:
    """A new group after one batch of these events."""
    group = ShapeGroup(LogOffset.before_all())
    feed(group, *events, max_pending=max_pending, now_ms=now_ms)
    return group


def feed(group: ShapeGroup, *events: ShapeFragment | ShapeFlush, max_pending: int = 4096, now_ms: int = 7) -> None:
    fragments = [event for event in events if isinstance(event, ShapeFragment)]
    flushes = [event for event in events if isinstance(event, ShapeFlush)]
    group.apply(fragments, flushes, now_ms=now_ms, max_pending=max_pending)
    group.check_invariants()


def test_report_is_the_minimum_over_its_shapes() -> None:
    """The number pending, the greatest last sent, and the least last flushed with its shape and since when."""
    group = group_with(commit("users", 200), commit("orders", 100), commit("items", 300), flush("items", 300))
    feed(group, commit("users", 400), now_ms=9)
    pending = Pending(LogOffset(400, 0), LogOffset(99, 0), since_ms=7)
    assert group.report() == GroupReport(2, pending, "orders")


def test_report_names_the_first_of_equals() -> None:
    """Two shapes of one transaction: the name decides, so that a replay reports the same."""
    assert group_with(commit("users", 100), commit("orders", 100)).report().blocking_shape == "orders"


def test_report_of_a_caught_up_group_is_empty() -> None:
    """An empty report counts too: it clears what the driver knew."""
    assert group_with(commit("users", 100), flush("users", 100)).report() == GroupReport()


def test_partial_flush_inside_the_first_pending_transaction_is_reported() -> None:
    """``last_flushed`` is that flush, if it is greater than one before the transaction."""
    group = group_with(commit("users", 100, op=6), flush("users", 100, op=2))
    assert group.report().pending == Pending(LogOffset(100, 6), LogOffset(100, 2), since_ms=7)


def test_split_update_is_pending_past_the_boundary() -> None:
    """The insert half of a split update lies one past the fragment's last offset, and must be flushed too."""
    split = ShapeFragment("users", LogOffset(100, 5), LogOffset(100, 4), is_commit=True)
    group = group_with(split, flush("users", 100, op=4))
    assert group.report().pending == Pending(LogOffset(100, 5), LogOffset(100, 4), since_ms=7)
    feed(group, flush("users", 100, op=5))
    assert group.shapes == {}


def test_rows_at_or_below_the_cursor_are_dropped_as_resent() -> None:
    """A group that starts at the last ack ignores what was acknowledged."""
    group = ShapeGroup(LogOffset.last_of(100))
    feed(group, commit("users", 100, op=8), commit("orders", 76))
    assert group.shapes == {}
    feed(group, commit("users", 124))
    assert set(group.shapes) == {"users"}


def test_commit_not_listing_an_open_shape_leaves_it_pending() -> None:
    """A producer that omits a shape from its commit delays an ack, and loses nothing."""
    group = group_with(ShapeFragment("users", LogOffset(100, 2), LogOffset(100, 2), is_commit=False))
    feed(group, commit("users", 200))
    assert group.report().pending == Pending(LogOffset(200, 0), LogOffset(99, 0), since_ms=7)
    feed(group, flush("users", 100, 2))
    assert group.report().pending == Pending(LogOffset(200, 0), LogOffset(199, 0), since_ms=7)


def test_pending_transactions_merge_beyond_their_limit() -> None:
    """Neighbours merge into one that is flushed with the later; the limit holds after each batch."""
    rows = [commit("users", 100 * number) for number in range(1, 10)]
    group = group_with(*rows, max_pending=8)
    txns = group.shapes["users"].txn_offset_mapping
    assert txns[0] == PendingTxn(100, LogOffset(400, 0), LogOffset(400, 0))
    assert len(txns) == 3
    feed(group, flush("users", 300), max_pending=8)
    # The flush lies inside the merged four: everything before it is done.
    assert group.report().pending == Pending(LogOffset(900, 0), LogOffset(300, 0), since_ms=7)
    feed(group, flush("users", 400), max_pending=8)
    assert group.report().pending == Pending(LogOffset(900, 0), LogOffset(499, 0), since_ms=7)
    feed(group, flush("users", 900), max_pending=8)
    assert group.shapes == {}


def test_state_is_bounded_by_the_limit_on_pending_transactions() -> None:
    """A shape that never flushes keeps no more than its limit, whatever is sent."""
    group = ShapeGroup(LogOffset.before_all())
    for lsn in range(100, 100_000, 100):
        feed(group, commit("users", lsn), max_pending=16)
        assert len(group.shapes["users"].txn_offset_mapping) <= 16
    assert group.report().pending == Pending(LogOffset(99_900, 0), LogOffset(99, 0), since_ms=7)


def test_flush_ahead_of_its_transaction_is_kept_until_the_cursor_passes() -> None:
    """Another shape's transactions move the cursor past it; after that nothing can need it."""
    group = group_with(flush("users", 200, op=4))
    feed(group, commit("orders", 100), flush("orders", 300))
    assert set(group.shapes) == {"users", "orders"}
    feed(group, commit("orders", 300))
    assert group.shapes == {}


def test_removal_is_kept_until_its_transaction_has_ended() -> None:
    """Until the commit, a resend may cut the transaction differently and list the shape again."""
    removal = ShapeFlush("users", LogOffset(100, 2), is_removal=True)
    group = group_with(removal, ShapeFragment("orders", LogOffset(100, 4), LogOffset(100, 4), is_commit=False))
    assert group.shapes["users"] == ShapeOffsets(removed_offset=LogOffset(100, 2))
    feed(group, commit("users", 100, op=8), commit("orders", 100, op=8), flush("orders", 100, op=8))
    assert group.shapes == {}


@given(cases(), RANDOMS)
def test_unpack_reads_what_pack_writes(case: Case, rng: Random) -> None:
    """The state after any history survives a round trip through bytes, and reports the same."""
    job = run_job(random_batches(rng, [case.stream], case.flushes), shape_groups=3)
    for packed, report in job.checkpoint.groups():
        group = ShapeGroup.unpack(packed)
        group.check_invariants()
        assert group.pack() == packed
        assert group.report() == GroupReport.from_json(report)


def test_every_field_of_a_shape_survives_packing() -> None:
    """The shape has every field set, each to a different offset."""
    group = ShapeGroup(LogOffset(900, 1))
    txns = [
        PendingTxn(100, LogOffset(200, 5), LogOffset(200, 4)),
        PendingTxn(300, LogOffset(300, 7), LogOffset(300, 8)),
    ]
    offsets = LogOffset(900, 3), LogOffset(200, 2), LogOffset(50, 9)
    group.shapes["ü"] = ShapeOffsets(txns, *offsets, since_ms=1_795_000_000_000)
    unpacked = ShapeGroup.unpack(group.pack())
    assert (unpacked.cursor, unpacked.shapes) == (group.cursor, group.shapes)


def test_bytes_of_another_version_are_refused() -> None:
    """The message has both versions and says what to do."""
    with pytest.raises(StateError, match=r"version 63, this job reads version 01; use the release that wrote it"):
        ShapeGroup.unpack(b"c" + ShapeGroup(LogOffset.first()).pack()[1:])


def test_check_invariants_detects_what_should_be_gone() -> None:
    """The check that other tests rely on fails on a caught-up shape, and on a complete transaction."""
    group = group_with(commit("users", 100))
    group.shapes["orders"] = ShapeOffsets()
    with pytest.raises(AssertionError, match="shape orders is caught up but still kept"):
        group.check_invariants()
    del group.shapes["orders"]
    group.shapes["users"].handle_flush(LogOffset(100, 0))
    with pytest.raises(AssertionError, match="is completed by the flush"):
        group.check_invariants()
