"""A shape group as tests give it events and look into it: fragments and flushes as objects, its state as lists."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from flushtracker.tracking.offset_columns import NO_TX
from flushtracker.tracking.pending_txns import NO_HEADS, PendingTxns
from flushtracker.tracking.shape_events import (
    FLUSHED,
    REMOVED,
    SENT,
    SENT_WITH_COMMIT,
    ShapeEvent,
    ShapeEvents,
    shape_and_writer,
)
from flushtracker.tracking.shape_group import ShapeGroup
from flushtracker.tracking.shape_table import FLUSH, HEADS, OPEN, REMOVAL, SINCE_MS, STORED_ROWS, derive
from flushtracker.wal.log_offset import OP_INFINITY, LogOffset
from flushtracker.wal.shape_list import is_list, listed_at

Offset = tuple[int, int]


@dataclass(frozen=True, slots=True)
class ShapeFragment:
    """One shape's part of a fragment; ``last_offset`` is ``None`` if the fragment has no change for the shape."""

    shape_id: str
    last_offset: LogOffset | None
    last_log_offset: LogOffset
    is_commit: bool

    def event(self) -> ShapeEvent:
        op = -1 if self.last_offset is None else self.last_offset.op_offset
        kind = SENT_WITH_COMMIT if self.is_commit else SENT
        return ShapeEvent(self.shape_id, kind, self.last_log_offset.tx_offset, op, self.last_log_offset.op_offset)


@dataclass(frozen=True, slots=True)
class ShapeFlush:
    """A writer's ``flushed`` or capture's ``removed``."""

    shape_id: str
    offset: LogOffset
    is_removal: bool = False

    def event(self) -> ShapeEvent:
        return ShapeEvent(self.shape_id, REMOVED if self.is_removal else FLUSHED, *self.offset)


@dataclass(frozen=True, slots=True)
class ShapeView:
    """What a group keeps for a shape; ``txns`` are ``[first commit LSN, commit LSN, last operation, boundary]``."""

    since_ms: int
    opened: Offset | None
    flushed: Offset | None
    removed: Offset | None
    txns: list[list[int]]

    def to_json(self) -> list[Any]:
        offsets = [None if offset is None else list(offset) for offset in (self.opened, self.flushed, self.removed)]
        return [self.since_ms, *offsets, self.txns]


def apply_batch(
    group: ShapeGroup,
    fragments: Iterable[ShapeFragment],
    flushes: Iterable[ShapeFlush],
    *,
    now_ms: int,
    max_pending: int,
) -> None:
    events = [fragment.event() for fragment in fragments] + [flush.event() for flush in flushes]
    group.apply(ShapeEvents.of(events), now_ms=now_ms, max_pending=max_pending)


def shapes_of(group: ShapeGroup) -> dict[str, ShapeView]:
    """What the group keeps, by shape."""
    copy = ShapeGroup.unpack(group.pack())
    count = len(copy.labels)
    txns: dict[int, list[list[int]]] = {}
    whole = np.ones(count, np.bool_)
    taken = copy._txns.take(
        np.arange(count), copy._shapes[HEADS], parts=np.zeros(count, np.int64), whole=whole, most=2**62
    )
    for index, *txn in taken.columns.T.tolist():
        txns.setdefault(index, []).append(txn)
    views = {}
    for index, shape_id in enumerate(copy.labels):
        numbers = copy._shapes[:, index].tolist()
        pairs = (numbers[OPEN], numbers[FLUSH], numbers[REMOVAL])
        opened, flushed, removed = (None if tx == NO_TX else (tx, op) for tx, op in pairs)
        views[shape_id] = ShapeView(numbers[SINCE_MS], opened, flushed, removed, txns.get(index, []))
    return views


def group_of(cursor: LogOffset, shapes: dict[str, ShapeView]) -> ShapeGroup:
    """A group that keeps these."""
    group = ShapeGroup(cursor)
    indexes = group._indexes_of(list(shapes))
    none = (NO_TX, 0)
    for index, view in enumerate(shapes.values()):
        offsets = (*(view.opened or none), *(view.flushed or none), *(view.removed or none))
        group._shapes[:STORED_ROWS, index] = (*offsets, view.since_ms)
    rows = [[index, *txn] for index, view in enumerate(shapes.values()) for txn in view.txns]
    nothing = np.repeat(NO_HEADS, len(shapes), axis=1)
    group._txns.put(PendingTxns(nothing, np.array(rows, np.int64).reshape(-1, 5).T.copy()), indexes)
    derive(group._shapes, group._txns.heads(len(shapes)))
    return group


def rows_of(group: ShapeGroup) -> dict[str, list[int]]:
    """All rows of each shape, those that follow from others included; its transactions say the same of the heads."""
    heads = group._txns.heads(len(group._names))
    rows = {}
    for index, shape_id in enumerate(group._names):
        if shape_id is not None:
            rows[shape_id] = group._shapes[:, index].tolist()
            assert heads[:, index].tolist() == group._shapes[HEADS, index].tolist(), shape_id
    return rows


def check_group(group: ShapeGroup) -> None:
    """Assert what holds after each batch: order, nothing complete, and nothing kept for longer than it is needed."""
    for label, view in shapes_of(group).items():
        for before, after in pairwise(view.txns):
            assert before[1] < after[0], f"{before} is not before {after}"
        if view.txns and view.opened:
            assert view.opened[0] > view.txns[-1][1], f"open transaction {view.opened} is not after {view.txns[-1]}"
        if view.txns and view.flushed:
            assert (view.txns[0][1], view.txns[0][2]) > view.flushed, f"{view.txns[0]} is flushed but still kept"
        if not view.txns and not view.opened:
            assert view.flushed or view.removed, f"shape {label} is caught up but still kept"
            tx = group.cursor.tx_offset
            # In the list of a transaction, the cursor is past that transaction for the shapes up to there.
            is_listed = listed_at(shape_and_writer(label)[0]) <= group.cursor.op_offset
            passed = LogOffset(tx, OP_INFINITY) if is_listed else group.cursor
            is_open = is_list(group.cursor.op_offset) and not is_listed and view.flushed and view.flushed[0] == tx
            assert is_open or not view.flushed or view.flushed > passed, f"the flush of {label} is still kept"
            removal = None if view.removed is None else (view.removed[0], OP_INFINITY)
            assert removal is None or removal > passed, f"the removal of {label} is still kept"
