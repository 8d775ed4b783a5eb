"""When the writers of a replay flush, and what they report."""

from collections.abc import Sequence

from flushtracker.events.stream_events import FlushNotification, ShapeChangesEvent
from flushtracker.shapes.definition import FlushPolicy, ShapeDefinition
from flushtracker.wal.changes import LogItem
from flushtracker.wal.log_offset import LogOffset
from tests.support.simulated_writers import SimulatedWriters
from tests.support.tables import COMMIT

ITEM_BYTES = 46
"""The size of one item of these tests as JSON."""


def changes(shape_id: str, lsn: int, ops: Sequence[int], *, commit: bool = True) -> ShapeChangesEvent:
    """Inserts at the operations ``ops`` of the transaction at ``lsn``."""
    items = tuple(LogItem(LogOffset(lsn, op), "insert", f"{op:04}", {"id": f"{op:012}"}) for op in ops)
    return ShapeChangesEvent(
        "s",
        shape_id,
        7,
        LogOffset.just_before(lsn),
        LogOffset(lsn, max(ops, default=0)),
        start=False,
        has_begin=True,
        commit=COMMIT if commit else None,
        items=items,
    )


def writers(**policies: FlushPolicy) -> SimulatedWriters:
    return SimulatedWriters(
        "s", [ShapeDefinition(name, ("public", name), flush=policy) for name, policy in policies.items()]
    )


def flushed(notifications: Sequence[FlushNotification]) -> list[tuple[str, int, int]]:
    assert all((event.source, event.type) == ("s", "flushed") for event in notifications)
    return [(event.shape_id, event.offset.tx_offset, event.offset.op_offset) for event in notifications]


def test_a_writer_flushes_when_enough_bytes_are_buffered() -> None:
    """At the end of the transaction that reaches the limit, with the offset of its last item."""
    shape = writers(a=FlushPolicy(bytes=3 * ITEM_BYTES))
    assert shape.take([changes("a", 10, [0, 2])], 0) == []
    assert flushed(shape.take([changes("a", 20, [4])], 0)) == [("a", 20, 4)]
    assert shape.take([changes("a", 30, [0, 2])], 0) == []


def test_bytes_alone_never_flush_inside_a_transaction() -> None:
    """The commit of a large one does, even if it has nothing more for the shape."""
    shape = writers(a=FlushPolicy(bytes=1))
    assert shape.take([changes("a", 10, [0, 2], commit=False)], 0) == []
    assert flushed(shape.take([changes("a", 10, [])], 0)) == [("a", 10, 2)]


def test_a_writer_flushes_when_its_interval_ends() -> None:
    """The interval runs from the first item buffered, not from the last, and not while nothing is buffered."""
    shape = writers(a=FlushPolicy(interval_ms=100))
    assert shape.advance(1_000) == []
    shape.take([changes("a", 10, [0])], 1_000)
    shape.take([changes("a", 20, [0])], 1_090)
    assert shape.next_due_ms() == 1_100
    assert shape.advance(1_099) == []
    assert flushed(shape.advance(1_100)) == [("a", 20, 0)]
    assert shape.next_due_ms() is None
    assert shape.advance(9_999) == []


def test_an_interval_that_ends_inside_a_transaction_waits_for_its_commit() -> None:
    """Only chunks are flushed in mid-transaction."""
    shape = writers(a=FlushPolicy(interval_ms=100))
    shape.take([changes("a", 10, [0], commit=False)], 0)
    assert shape.advance(500) == []
    shape.take([changes("a", 10, [2])], 500)
    assert flushed(shape.advance(500)) == [("a", 10, 2)]


def test_a_flush_by_bytes_restarts_the_interval() -> None:
    """Items buffered after it wait for a whole interval of their own."""
    shape = writers(a=FlushPolicy(bytes=2 * ITEM_BYTES, interval_ms=100))
    shape.take([changes("a", 10, [0])], 0)
    assert flushed(shape.take([changes("a", 20, [0])], 50)) == [("a", 20, 0)]
    shape.take([changes("a", 30, [0])], 60)
    assert shape.advance(159) == []
    assert flushed(shape.advance(160)) == [("a", 30, 0)]


def test_a_chunk_is_flushed_in_the_middle_of_a_fragment() -> None:
    """At the item that fills it; what follows is buffered until it fills another chunk."""
    shape = writers(a=FlushPolicy(bytes=1_000_000, chunk_bytes=2 * ITEM_BYTES))
    assert flushed(shape.take([changes("a", 10, [0, 2, 4, 6, 8], commit=False)], 0)) == [("a", 10, 2), ("a", 10, 6)]
    assert shape.take([changes("a", 10, [])], 0) == []
    assert flushed(shape.flush_all()) == [("a", 10, 8)]


def test_a_chunk_is_of_one_transaction() -> None:
    """Small transactions never fill one, however many are buffered."""
    shape = writers(a=FlushPolicy(bytes=1_000_000, chunk_bytes=2 * ITEM_BYTES))
    assert [shape.take([changes("a", lsn, [0])], 0) for lsn in (10, 20, 30)] == [[], [], []]


def test_without_a_policy_a_writer_flushes_at_each_commit() -> None:
    """Nothing else would ever flush it."""
    shape = writers(a=FlushPolicy())
    assert shape.take([changes("a", 10, [0], commit=False)], 0) == []
    assert flushed(shape.take([changes("a", 10, [2])], 0)) == [("a", 10, 2)]


def test_a_commit_with_nothing_new_flushes_nothing() -> None:
    """No further notification follows: the tracker has to complete the transaction by the commit alone."""
    shape = writers(a=FlushPolicy(chunk_bytes=1))
    assert flushed(shape.take([changes("a", 10, [0], commit=False)], 0)) == [("a", 10, 0)]
    assert shape.take([changes("a", 10, [])], 0) == []
    assert shape.flush_all() == []


def test_writers_do_not_affect_each_other() -> None:
    """Each has its own buffer and its own interval; the earliest is due first."""
    shapes = writers(fast=FlushPolicy(interval_ms=10), slow=FlushPolicy(interval_ms=1_000))
    shapes.take([changes("slow", 10, [0]), changes("fast", 10, [2])], 0)
    assert flushed(shapes.advance(10)) == [("fast", 10, 2)]
    assert shapes.next_due_ms() == 1_000
    assert flushed(shapes.advance(5_000)) == [("slow", 10, 0)]


def test_some_notifications_are_sent_twice() -> None:
    """Any transport that delivers at least once does so."""
    shape = writers(a=FlushPolicy())
    events = [flushed(shape.take([changes("a", lsn, [0])], 0)) for lsn in range(100)]
    assert {len(event) for event in events} == {1, 2}
    assert all(len(set(event)) == 1 for event in events)


def test_a_restarted_writer_repeats_its_last_flush() -> None:
    """Each shape that has stored something reports it again, and buffered items stay buffered."""
    shapes = writers(a=FlushPolicy(), b=FlushPolicy(bytes=1_000), c=FlushPolicy())
    assert shapes.restart() == []
    shapes.take([changes("a", 10, [0]), changes("b", 10, [2])], 0)
    assert flushed(shapes.restart()) == flushed(shapes.restart()) == [("a", 10, 0)]
    assert flushed(shapes.flush_all()) == [("b", 10, 2)]


def test_after_everything_is_flushed_nothing_is_left() -> None:
    """There is nothing to flush and nothing due."""
    shapes = writers(a=FlushPolicy(interval_ms=10), b=FlushPolicy(bytes=1_000))
    shapes.take([changes("a", 10, [0]), changes("b", 10, [2])], 0)
    assert sorted(flushed(shapes.flush_all())) == [("a", 10, 0), ("b", 10, 2)]
    assert (shapes.flush_all(), shapes.advance(99), shapes.next_due_ms()) == ([], [], None)
