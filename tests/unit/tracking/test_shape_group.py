"""A shape group: its row for the driver, its packed state, its cursor, and how much it keeps."""

import re
import tracemalloc
from contextlib import suppress
from itertools import product

import pytest

from flushtracker.errors import StateError
from flushtracker.tracking.flush_tracker import Pending
from flushtracker.tracking.group_report import GroupReport, PendingShape
from flushtracker.tracking.shape_group import ShapeGroup
from flushtracker.wal.log_offset import OP_INFINITY, LogOffset
from tests.support.group_view import ShapeFlush, ShapeFragment, ShapeView, apply_batch, check_group, group_of, shapes_of


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
    apply_batch(group, fragments, flushes, now_ms=now_ms, max_pending=max_pending)
    check_group(group)


def test_rows_at_or_below_the_cursor_are_dropped_as_resent() -> None:
    """A group that starts at the last ack ignores what was acknowledged."""
    group = ShapeGroup(LogOffset.last_of(100))
    feed(group, commit("users", 100, op=8), commit("orders", 76))
    assert group.labels == []
    feed(group, commit("users", 124))
    assert set(group.labels) == {"users"}


def test_state_is_bounded_by_the_limit_on_pending_transactions() -> None:
    """A shape that never flushes keeps no more than its limit, whatever is sent."""
    group = ShapeGroup(LogOffset.before_all())
    for lsn in range(100, 100_000, 100):
        feed(group, commit("users", lsn), max_pending=16)
        assert len(shapes_of(group)["users"].txns) <= 16
    assert group.report().pending == Pending(LogOffset(99_900, 0), LogOffset(99, 0), since_ms=7)


def test_removal_is_kept_until_its_transaction_has_ended() -> None:
    """Until the commit, a resend may cut the transaction differently and list the shape again."""
    removal = ShapeFlush("users", LogOffset(100, 2), is_removal=True)
    group = group_with(removal, ShapeFragment("orders", LogOffset(100, 4), LogOffset(100, 4), is_commit=False))
    assert shapes_of(group)["users"] == ShapeView(0, None, None, (100, 2), [])
    feed(group, commit("users", 100, op=8), commit("orders", 100, op=8), flush("orders", 100, op=8))
    assert group.labels == []


def test_every_field_of_a_shape_survives_packing() -> None:
    """The shape has every field set, each to a different offset."""
    shapes = {
        "ü": ShapeView(
            1_795_000_000_000, (900, 3), (200, 2), (50, 9), [[100, 200, 5, 4], [300, 300, 7, OP_INFINITY - 1]]
        ),
        "s": ShapeView(0, None, (2**63 - 1, 0), None, []),
    }
    unpacked = ShapeGroup.unpack(group_of(LogOffset(900, 1), shapes).pack())
    assert (unpacked.cursor, shapes_of(unpacked)) == (LogOffset(900, 1), shapes)


def test_bytes_of_another_version_are_refused() -> None:
    """The message has both versions and says what to do."""
    for version in (b"\x00", b"\x02", b"\x05", b"c"):
        message = (
            rf"version {version.hex()}, this job reads version 01; use the release that .* \(with Kafka: --recover\)"
        )
        with pytest.raises(StateError, match=message):
            ShapeGroup.unpack(version + ShapeGroup(LogOffset.first()).pack()[1:])


def test_a_cut_off_state_is_refused() -> None:
    """Wherever it is cut, also between two shapes: without a shape, an ack could pass what it has yet to flush."""
    packed = group_with(*(commit(shape, lsn) for lsn in (100, 200, 90_000) for shape in ("users", "orders"))).pack()
    for size in range(17, len(packed)):
        with pytest.raises(StateError, match=r"state is cut off or damaged; restore it, or restart capture"):
            ShapeGroup.unpack(packed[:size])
    with pytest.raises(StateError, match="cut off"):
        ShapeGroup.unpack(packed + b"x")


def test_a_damaged_state_is_refused_or_read() -> None:
    """Whichever byte differs: no other error, whose message would not say what to do; and little memory is taken.

    Linux may give a process any amount, and kill it when it uses that; on nodes of Kubernetes it does.
    """
    stalled = [commit("orders", 1000 + 100 * number) for number in range(40)]
    packed = group_with(*stalled, commit("users", 6000)).pack()
    tracemalloc.start()
    for at, bits in product(range(1, len(packed)), (1, 0x80, 0xFF)):
        damaged = bytearray(packed)
        damaged[at] ^= bits
        with suppress(StateError):
            ShapeGroup.unpack(bytes(damaged))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20


def test_an_open_offset_does_not_go_back() -> None:
    """A later fragment that names an earlier offset, as no consistent producer does, frees nothing."""
    group = group_with(ShapeFragment("users", LogOffset(100, 4), LogOffset(100, 4), is_commit=False))
    feed(group, ShapeFragment("users", LogOffset(100, 2), LogOffset(100, 6), is_commit=False))
    assert shapes_of(group)["users"].opened == (100, 4)


@pytest.mark.parametrize(
    ("view", "message"),
    [
        (ShapeView(0, None, None, None, [[100, 100, 0, 0]] * 2), "[100, 100, 0, 0] is not before [100"),
        (ShapeView(0, (100, 9), None, None, [[100, 100, 0, 4]]), "open transaction (100, 9) is not"),
        (ShapeView(0, None, (100, 0), None, [[100, 100, 0, 4]]), "is flushed but still kept"),
        (ShapeView(0, None, None, None, []), "shape s is caught up but still kept"),
    ],
)
def test_check_group_detects_what_should_not_be(view: ShapeView, message: str) -> None:
    """The check that other tests rely on fails on a wrong order, and on what is complete."""
    with pytest.raises(AssertionError, match=re.escape(message)):
        check_group(group_of(LogOffset(900, 0), {"s": view}))


def test_what_an_ack_has_confirmed_is_done_and_the_rest_is_as_before() -> None:
    """The state may be older than the ack. Of a shape with later transactions, the time of its progress is the same."""
    open_part = ShapeFragment("open", LogOffset(90, 0), LogOffset(90, 0), is_commit=False)
    events = [commit("users", 100), commit("users", 200), commit("orders", 300), commit("done", 100), open_part]
    group, later = group_with(*events), group_with(commit("orders", 300))
    group.complete(LogOffset.last_of(150), now_ms=50, max_pending=4096)
    check_group(group)
    views = shapes_of(group)
    assert views["orders"] == shapes_of(later)["orders"]
    assert sorted(views) == ["orders", "users"]
    holders = (PendingShape(LogOffset(199, 0), "users", 50, 1), PendingShape(LogOffset(299, 0), "orders", 7, 1))
    assert group.report() == GroupReport(2, LogOffset(300, 0), holders)


def test_nothing_is_left_of_shapes_that_have_come_and_gone() -> None:
    """A thousand at a time, half of them removed while they are pending, until there were 20,000."""
    packed, sizes, lsn = ShapeGroup(LogOffset.before_all()).pack(), list[int](), 1000
    for first in range(0, 20_000, 1000):
        shape_ids = [f"shape {number}" for number in range(first, first + 1000)]
        removed = [ShapeFlush(shape_id, LogOffset(lsn + 10, 0), is_removal=True) for shape_id in shape_ids]
        flushes = [flush(shape_id, lsn) for shape_id in shape_ids[::2]]
        sent = [commit(shape_id, lsn) for shape_id in shape_ids]
        for fragments, others in ((sent, flushes), ([], removed), ([commit("goes on", lsn + 20)], [])):
            group = ShapeGroup.unpack(packed)
            apply_batch(group, fragments, others, now_ms=7, max_pending=4096)
            packed = group.pack()
            sizes.append(len(packed))
        lsn += 100
    assert max(sizes) < 2 * max(sizes[:3])
    assert [view for view in shapes_of(ShapeGroup.unpack(packed)) if view != "goes on"] == []
    assert len(packed) < 400
