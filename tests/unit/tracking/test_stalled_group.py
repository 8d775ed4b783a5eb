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
