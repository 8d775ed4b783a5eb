"""Shapes with many pending transactions: exact as any, and not read by a batch that does not reach them."""

from typing import Any

import numpy as np
import pytest

from flushtracker.tracking import txn_store
from flushtracker.tracking.flush_tracker import Pending
from flushtracker.tracking.packed_columns import Ints
from flushtracker.tracking.pending_txns import PendingTxns
from flushtracker.tracking.shape_group import ShapeGroup
from flushtracker.tracking.txn_store import MANY, TxnStore
from flushtracker.wal.log_offset import LogOffset
from tests.support.group_view import ShapeFlush, ShapeFragment, apply_batch, check_group, shapes_of

TXNS = 3 * MANY


def stalled(shapes: int) -> ShapeGroup:
    """Every shape has many transactions pending, at the LSNs 200, 400, …."""
    group = ShapeGroup(LogOffset.before_all())
    lsns = range(200, 200 * TXNS + 1, 200)
    rows = [
        ShapeFragment(f"s{n}", LogOffset(lsn, 2), LogOffset(lsn, 4), is_commit=True)
        for lsn in lsns
        for n in range(shapes)
    ]
    apply_batch(group, rows, [], now_ms=1, max_pending=4096)
    return group


@pytest.fixture
def unpacked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How far the shapes were sent whose queues are read, in order."""
    sent: list[int] = []
    unpack_queue = txn_store._unpack_queue

    def noted(index: int, queue: txn_store._Queue) -> Ints:
        sent.append(queue.sent_tx)
        return unpack_queue(index, queue)

    monkeypatch.setattr(txn_store, "_unpack_queue", noted)
    return sent


def test_a_batch_reads_only_the_stalled_shapes_that_it_reaches(unpacked: list[int]) -> None:
    """One flush costs one shape, however many are stalled beside it; their report is that of their heads."""
    packed = stalled(50).pack()
    group = ShapeGroup.unpack(packed)
    last = 200 * TXNS
    other = ShapeFragment("other", LogOffset(last + 200, 0), LogOffset(last + 200, 0), is_commit=True)
    apply_batch(group, [other], [], now_ms=2, max_pending=4096)
    assert group.report().pending == Pending(LogOffset(last + 200, 0), LogOffset(199, 0), since_ms=1)
    assert unpacked == []
    apply_batch(group, [], [ShapeFlush("s7", LogOffset(400, 2))], now_ms=3, max_pending=4096)
    assert (unpacked, group.report().pending_shapes) == ([last], 51)
    check_group(group)
    assert shapes_of(group)["s7"].txns[0] == [600, 600, 2, 4]
    assert len(shapes_of(group)["s8"].txns) == TXNS


def test_stalled_shapes_catch_up_and_are_forgotten() -> None:
    """Read and stored at each step: flushed in parts, down to few transactions and to none; one is removed."""
    group = stalled(3)
    for lsn in (200, 200 * (TXNS - MANY), 200 * (TXNS - 1)):
        flushes = [ShapeFlush("s0", LogOffset(lsn, 2)), ShapeFlush("s1", LogOffset(lsn, 2))]
        apply_batch(group, [], flushes, now_ms=lsn, max_pending=4096)
        group = ShapeGroup.unpack(group.pack())
        check_group(group)
        assert len(shapes_of(group)["s1"].txns) == TXNS - lsn // 200
    last = LogOffset(200 * TXNS, 2)
    apply_batch(
        group, [], [ShapeFlush("s0", last), ShapeFlush("s2", last, is_removal=True)], now_ms=9, max_pending=4096
    )
    group = ShapeGroup.unpack(group.pack())
    assert group.labels == ["s1"]
    assert group.report().pending == Pending(LogOffset(200 * TXNS, 4), LogOffset(200 * TXNS - 1, 0), 200 * (TXNS - 1))


def test_a_stalled_shape_keeps_its_queue_when_others_are_forgotten() -> None:
    """Shapes are numbered anew then."""
    group = ShapeGroup(LogOffset.before_all())
    apply_batch(group, [], [ShapeFlush("early", LogOffset(100, 0))], now_ms=0, max_pending=4096)
    for lsn in range(50, 50 + 2 * (MANY + 1), 2):
        row = ShapeFragment("late", LogOffset(lsn, 0), LogOffset(lsn, 0), is_commit=True)
        apply_batch(group, [row], [], now_ms=0, max_pending=4096)
        group = ShapeGroup.unpack(group.pack())
    assert {shape_id: len(view.txns) for shape_id, view in shapes_of(group).items()} == {"late": MANY + 1}


def test_a_stalled_shape_is_sent_more_without_being_read(unpacked: list[int]) -> None:
    """What it has is read again only when it has many more, a flush, or as many as it may have."""
    group = stalled(1)
    last = 200 * TXNS
    for number in range(1, 2 * MANY + 1):
        lsn = last + 200 * number
        row = ShapeFragment("s0", LogOffset(lsn, 2), LogOffset(lsn, 4), is_commit=True)
        apply_batch(group, [row], [], now_ms=number, max_pending=TXNS + 2 * MANY - 1)
        group = ShapeGroup.unpack(group.pack())
        assert group.report().pending == Pending(LogOffset(lsn, 4), LogOffset(199, 0), since_ms=1)
    assert len(unpacked) == 2
    assert len(shapes_of(group)["s0"].txns) == (TXNS + 2 * MANY) // 4
    check_group(group)


def test_a_stalled_shape_whose_commit_does_not_list_it_keeps_all_it_was_sent() -> None:
    """Its open transaction closes with the next one: it gets two of one fragment, on top of as many as fit."""
    group = ShapeGroup(LogOffset.before_all())
    lsns = range(100, 100 * (2 * MANY + 1), 100)
    for part in (lsns[: MANY + 1], lsns[MANY + 1 :]):
        rows = [ShapeFragment("s", LogOffset(lsn, 2), LogOffset(lsn, 4), is_commit=True) for lsn in part]
        apply_batch(group, rows, [], now_ms=0, max_pending=4096)
        group = ShapeGroup.unpack(group.pack())
    for number, is_commit in ((1, False), (2, True)):
        lsn = lsns[-1] + 100 * number
        row = ShapeFragment("s", LogOffset(lsn, 2), LogOffset(lsn, 4), is_commit=is_commit)
        apply_batch(group, [row], [], now_ms=0, max_pending=4096)
        group = ShapeGroup.unpack(group.pack())
    assert group.report().pending == Pending(LogOffset(lsns[-1] + 200, 4), LogOffset(99, 0), since_ms=0)
    assert len(shapes_of(group)["s"].txns) == len(lsns) + 2


def test_a_miscount_of_what_a_shape_gets_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Should more come back than the shape was counted for, it joins what is packed, and replaces nothing."""
    group = stalled(1)
    take = TxnStore.take

    def none_expected(self: TxnStore, indexes: Ints, heads: Ints, **counts: Any) -> PendingTxns:
        return take(self, indexes, heads, **{**counts, "parts": np.zeros(len(indexes), np.int64)})

    monkeypatch.setattr(TxnStore, "take", none_expected)
    lsns = range(200 * TXNS + 200, 200 * (TXNS + MANY) + 401, 200)
    rows = [ShapeFragment("s0", LogOffset(lsn, 2), LogOffset(lsn, 4), is_commit=True) for lsn in lsns]
    apply_batch(group, rows, [], now_ms=0, max_pending=4096)
    monkeypatch.undo()
    check_group(group)
    assert len(shapes_of(group)["s0"].txns) == TXNS + len(lsns)
