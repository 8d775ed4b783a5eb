"""``ShapeGroup``: the unit of Spark state, the shapes that share a grouping key.

A group applies its part of a micro-batch in one call and reports one row to the driver, a :class:`GroupReport`: the
number of pending shapes, the greatest ``last_sent``, and the shapes with the least ``last_flushed``. A minimum of
minima is the minimum, so the driver tracks groups as if they were shapes; and the first ten of all shapes are among
the first ten of each group. The rule is that of :class:`ShapeTable`, which gets the shapes that the micro-batch
reaches, and no others.

The ``cursor`` is the greatest offset that has reached the group, ``(tx, ∞)`` after a commit. A fragment at or below it
is a resend and is ignored, so nothing is registered twice. The cursor must outlive the shapes, so a group's state is
never removed.
"""

from collections.abc import Sequence
from heapq import nsmallest
from itertools import repeat
from struct import Struct
from typing import Final

import numpy as np

from flushtracker.tracking.group_report import HOLDERS, GroupReport, PendingShape
from flushtracker.tracking.offset_columns import NO_TX, OffsetColumns, at_most, greatest, least
from flushtracker.tracking.packed_columns import Ints, cut_off, pack_ints, pack_texts, unpack_ints, unpack_texts
from flushtracker.tracking.packed_state import check_version
from flushtracker.tracking.shape_events import SENT_WITH_COMMIT, ShapeEvents
from flushtracker.tracking.shape_table import (
    ALIGNED,
    HEADS,
    NEW_SHAPE,
    OPEN,
    ROWS,
    SENT_TO,
    SINCE_MS,
    STORED_ROWS,
    TXNS,
    ShapeTable,
    derive,
    drop_passed,
    open_unflushed,
)
from flushtracker.tracking.txn_store import TxnStore
from flushtracker.wal.log_offset import OP_INFINITY, LogOffset

_VERSION: Final = b"\x03"
_CURSOR: Final = Struct("<qq")


class ShapeGroup:
    """The offset state of some shapes of one source. Fragments up to ``cursor`` count as already applied.

    >>> from flushtracker.tracking.shape_events import FLUSHED, ShapeEvent
    >>> group = ShapeGroup(cursor=LogOffset(99, 0))
    >>> sent = ShapeEvent("users", SENT_WITH_COMMIT, tx=100, op=2, boundary_op=4)
    >>> group.apply(ShapeEvents.of([sent]), now_ms=0, max_pending=4096)
    >>> report = group.report()
    >>> report.pending_shapes, report.blocking_shape, report.pending.last_flushed
    (1, 'users', LogOffset(tx_offset=99, op_offset=0))
    >>> group.apply(ShapeEvents.of([ShapeEvent("users", FLUSHED, tx=100, op=2)]), now_ms=10, max_pending=4096)
    >>> group.report(), group.shape_ids
    (GroupReport(pending_shapes=0, last_sent=None, holders=(), removed=()), [])
    """

    def __init__(self, cursor: LogOffset) -> None:
        self.cursor = cursor
        self._names: list[str | None] = []
        """By slot; ``None`` where no shape is, for the next new one."""
        self._free: list[int] = []
        self._slots: dict[str, int] | None = {}
        """By name; ``None`` until it is needed."""
        self._is_unpacked = False
        self._shapes: Ints = np.empty((ROWS, 0), np.int64)
        self._txns = TxnStore()

    @property
    def shape_ids(self) -> list[str]:
        """The shapes that have state, in the order in which they are stored."""
        return [shape_id for shape_id in self._names if shape_id is not None]

    def apply(self, events: ShapeEvents, *, now_ms: int, max_pending: int) -> None:
        """Apply one micro-batch; ``max_pending`` bounds the transactions kept per shape.

        The outcome does not depend on the order of the events. O(events · log events), and some passes over the shapes.
        """
        kind, tx, _, boundary_op = events.numbers
        reach = (tx, np.where(kind == SENT_WITH_COMMIT, OP_INFINITY, boundary_op))
        sent = (kind <= SENT_WITH_COMMIT) & ~at_most(reach, self.cursor)
        if sent.any():
            self.cursor = max(self.cursor, greatest((reach[0][sent], reach[1][sent])))
        slots, places = np.unique(self._slots_of(events.shape_ids), return_inverse=True)
        # The transactions that each shape may get; what is open may be one more.
        parts = np.bincount(places[sent], minlength=len(slots)) + (self._shapes[OPEN.start, slots] != NO_TX)
        is_flushed = np.bincount(places[kind > SENT_WITH_COMMIT], minlength=len(slots)) > 0
        shapes = self._shapes[:, slots]
        txns = self._txns.take(slots, shapes[HEADS], parts=parts, whole=is_flushed, most=max_pending)
        table = ShapeTable(shapes, txns)
        table.apply(places, events.numbers, sent, now_ms=now_ms, max_pending=max_pending)
        self._shapes[:, slots] = table.shapes
        self._txns.put(table.txns, slots)
        # Shapes without events, too: the cursor may have passed the flush or removal for which they were kept.
        self._forget(drop_passed(self._shapes, self.cursor))

    def report(self) -> GroupReport:
        """Reduce the group to the row for the driver. O(shapes), in passes over columns."""
        flushed_tx, flushed_op = self._shapes[ALIGNED]
        pending = np.flatnonzero(flushed_tx != NO_TX)
        if not len(pending):
            return GroupReport()
        sent = self._shapes[SENT_TO]
        _, opened = open_unflushed(self._shapes)
        if len(opened[0]):
            sent = np.concatenate([sent, opened], axis=1)
        last_sent = greatest((sent[0], sent[1]))
        slots = self._first(pending, (flushed_tx[pending], flushed_op[pending]))
        first = self._shapes[:, slots]
        first[TXNS, open_unflushed(first)[0]] += 1
        columns = np.stack([slots, *first[ALIGNED], first[SINCE_MS], first[TXNS]])
        holders = [
            PendingShape(LogOffset(tx, op), str(self._names[slot]), since_ms, transactions)
            for slot, tx, op, since_ms, transactions in columns.T.tolist()
        ]
        return GroupReport(len(pending), last_sent, tuple(sorted(holders)))

    def _first(self, slots: Ints, offsets: OffsetColumns) -> Ints:
        """The first :data:`HOLDERS` of ``slots`` by their offsets, and of equals the first by id; in any order."""
        below, equal = least(offsets, HOLDERS)
        if len(below) + len(equal) > HOLDERS:
            first = nsmallest(HOLDERS - len(below), slots[equal].tolist(), key=lambda slot: self._names[slot] or "")
            return np.concatenate([slots[below], np.array(first, np.int64)])
        found: Ints = slots[np.concatenate([below, equal])]
        return found

    def pack(self) -> bytes:
        """The whole state as bytes: a version byte, the cursor and the columns; the inverse of :meth:`unpack`."""
        is_used = np.ones(len(self._names), np.bool_)
        is_used[self._free] = False
        columns = self._shapes[:STORED_ROWS]
        if self._free:
            columns = columns[:, is_used]
        head = _VERSION + _CURSOR.pack(self.cursor.tx_offset, self.cursor.op_offset)
        return head + pack_texts(self.shape_ids) + pack_ints(columns) + self._txns.pack(np.cumsum(is_used) - 1)

    @classmethod
    def unpack(cls, packed: bytes) -> "ShapeGroup":
        """Read the output of :meth:`pack`; raises ``StateError`` on another version."""
        check_group_version(packed)
        group = cls(LogOffset(*_CURSOR.unpack_from(packed, len(_VERSION))))
        shape_ids, start = unpack_texts(packed, len(_VERSION) + _CURSOR.size)
        group._names += shape_ids
        group._slots, group._is_unpacked = None, True
        group._shapes = np.empty((ROWS, len(shape_ids)), np.int64)
        group._shapes[:STORED_ROWS], start = unpack_ints(packed, start, STORED_ROWS)
        group._txns, end = TxnStore.unpack(packed, start)
        derive(group._shapes, group._txns.heads(len(shape_ids)))
        if end != len(packed):
            raise cut_off()
        return group

    def _slots_of(self, shape_ids: Sequence[str]) -> Ints:
        """The number of each event's shape; a shape that is new gets one."""
        known = self._known(shape_ids)
        slots = np.array(list(map(known.get, shape_ids, repeat(-1))), np.int64)
        for place in np.flatnonzero(slots < 0).tolist():
            slot = known.get(shape_ids[place])
            if slot is None:
                slot = known[shape_ids[place]] = self._add(shape_ids[place])
            slots[place] = slot
        more = len(self._names) - self._shapes.shape[1]
        if more:
            self._shapes = np.concatenate([self._shapes, np.repeat(NEW_SHAPE, more, axis=1)], axis=1)
        return slots

    def _known(self, shape_ids: Sequence[str]) -> dict[str, int]:
        """The numbers of all shapes, or of those among ``shape_ids``."""
        if self._is_unpacked:
            # For one batch, which is all that the job has for it, a pass over the names costs less than a dictionary.
            self._is_unpacked = False
            wanted = np.fromiter(map(set(shape_ids).__contains__, self._names), np.bool_, len(self._names))
            return {name: slot for slot in np.flatnonzero(wanted).tolist() if (name := self._names[slot]) is not None}
        if self._slots is None:
            self._slots = {name: slot for slot, name in enumerate(self._names) if name is not None}
        return self._slots

    def _add(self, shape_id: str) -> int:
        slot = self._free.pop() if self._free else len(self._names)
        self._names[slot : slot + 1] = [shape_id]
        return slot

    def _forget(self, slots: Ints) -> None:
        """Forget the shapes that have nothing left to keep."""
        self._shapes[:, slots] = NEW_SHAPE
        for slot in slots.tolist():
            name = self._names[slot]
            if name is not None:
                if self._slots is not None:
                    del self._slots[name]
                self._names[slot] = None
                self._free.append(slot)


def check_group_version(packed: bytes) -> None:
    """Raise ``StateError`` unless packed state, of which the first byte is enough, is a group's of this format."""
    check_version(packed, _VERSION)
