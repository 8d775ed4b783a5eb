"""``ShapeGroup``: the unit of Spark state, the shapes that share a grouping key.

A group applies its part of a micro-batch in one call and reports one row to the driver, a :class:`GroupReport`: the
number of pending shapes, the greatest ``last_sent``, and the shapes with the least ``last_flushed``. A minimum of
minima is the minimum, so the driver tracks groups as if they were shapes; and the first ten of all shapes are among the
first ten of each group.

A shape is tracked together with its writer, under one label (:func:`~flushtracker.tracking.shape_events.label_of`), so
another writer's flush has no effect. :meth:`ShapeGroup.apply` reports such a flush if the shape is pending and the
flush is past what its own writer has flushed. A shape that is caught up has no state, so the flush goes unnoticed.

Each shape has an ``index``: that of its name and of its column of state. For a micro-batch, the columns of the affected
shapes are copied into a :class:`ShapeTable`, which applies the rule, with the pending transactions that the rule needs,
and are then copied back. Only the report and the removal of idle shapes scan the columns of all shapes.

The ``cursor`` is the greatest offset that has reached the group, ``(tx, ∞)`` after a commit or an ack. A fragment at or
below it is a resend and is ignored, so nothing is registered twice. The cursor must outlive the shapes, so a group's
state is never removed. After a list part (:mod:`~flushtracker.wal.shape_list`) the cursor says which shapes of its
transaction have been listed: these are ignored in all fragments of that transaction, and the others in none.
"""

from collections.abc import Sequence
from functools import partial
from heapq import nsmallest
from itertools import repeat
from struct import Struct, error
from typing import Final

import numpy as np

from flushtracker.tracking.group_report import HOLDERS, GroupReport, PendingShape
from flushtracker.tracking.offset_columns import NO_TX, OffsetColumns, at_most, greatest, least
from flushtracker.tracking.packed_columns import Ints, cut_off, pack_ints, pack_texts, unpack_ints, unpack_texts
from flushtracker.tracking.packed_state import check_version
from flushtracker.tracking.shape_events import (
    FLUSHED,
    REMOVED,
    SENT_WITH_COMMIT,
    ShapeEvent,
    ShapeEvents,
    shape_and_writer,
)
from flushtracker.tracking.shape_table import (
    ALIGNED,
    FIRST_TX,
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
from flushtracker.tracking.stray_flush import StrayFlush, stray_flushes
from flushtracker.tracking.txn_store import TxnStore
from flushtracker.wal.log_offset import OP_INFINITY, LogOffset
from flushtracker.wal.shape_list import is_list, listed_at

_VERSION: Final = b"\x01"
"""The version of the whole state, including the report stored beside the packed group."""
_CURSOR: Final = Struct("<qq")


class ShapeGroup:
    """The offset state of some shapes of one source. Fragments up to ``cursor`` count as already applied.

    >>> from flushtracker.tracking.shape_events import FLUSHED, ShapeEvent
    >>> group = ShapeGroup(cursor=LogOffset(99, 0))
    >>> sent = ShapeEvent("users", SENT_WITH_COMMIT, tx=100, op=2, boundary_op=4)
    >>> group.apply(ShapeEvents.of([sent]), now_ms=0, max_pending=4096)
    ()
    >>> [holder[1:] for holder in group.report().holders], group.report().holders[0].last_flushed
    ([('users', 0, 1, 'log')], LogOffset(tx_offset=99, op_offset=0))
    >>> group.apply(ShapeEvents.of([ShapeEvent("users", FLUSHED, tx=100, op=2)]), now_ms=10, max_pending=4096)
    ()
    >>> group.report(), group.labels
    (GroupReport(pending_shapes=0, last_sent=None, holders=(), removed=()), [])
    """

    def __init__(self, cursor: LogOffset) -> None:
        self.cursor = cursor
        self._names: list[str | None] = []
        """The labels by index; ``None`` where an index is free."""
        self._free: list[int] = []
        self._indexes: dict[str, int] | None = {}
        """Index by label; ``None`` until a second micro-batch needs it, see :meth:`_known`."""
        self._is_unpacked = False
        """Whether no micro-batch has been applied since :meth:`unpack`."""
        self._shapes: Ints = np.empty((ROWS, 0), np.int64)
        self._txns = TxnStore()

    @property
    def labels(self) -> list[str]:
        """The labels of the shapes that have state, in stored order."""
        return [label for label in self._names if label is not None]

    def apply(self, events: ShapeEvents, *, now_ms: int, max_pending: int) -> tuple[StrayFlush, ...]:
        """Apply one micro-batch; ``max_pending`` bounds the transactions kept per shape.

        Returns the flushes notified by a writer that is not the shape's, as far as that is known. The outcome does not
        depend on the order of the events. O(events · log events), and some passes over the shapes.
        """
        kind, tx, _, boundary_op = events.numbers
        reach = (tx, np.where(kind == SENT_WITH_COMMIT, OP_INFINITY, boundary_op))
        sent = (kind <= SENT_WITH_COMMIT) & ~at_most(reach, self.cursor)
        if is_list(self.cursor.op_offset):
            # Some shapes of this transaction are listed and others are not, in whichever fragment they come now.
            again = np.flatnonzero((kind <= SENT_WITH_COMMIT) & (tx == self.cursor.tx_offset))
            sent[again] = _listed_at(events.labels, again) > self.cursor.op_offset
        if sent.any():
            self.cursor = max(self.cursor, greatest((reach[0][sent], reach[1][sent])))
        indexes, positions = np.unique(self._indexes_of(events.labels), return_inverse=True)
        # A shape gains at most this many transactions; an open one may be committed, too.
        parts = np.bincount(positions[sent], minlength=len(indexes)) + (self._shapes[OPEN.start, indexes] != NO_TX)
        is_flushed = np.bincount(positions[kind > SENT_WITH_COMMIT], minlength=len(indexes)) > 0
        shapes = self._shapes[:, indexes]
        txns = self._txns.take(indexes, shapes[HEADS], parts=parts, whole=is_flushed, most=max_pending)
        table = ShapeTable(shapes, txns)
        is_own = (parts > 0) | (shapes[TXNS] > 0)
        table.apply(positions, events.numbers, sent, now_ms=now_ms, max_pending=max_pending)
        self._shapes[:, indexes] = table.shapes
        self._txns.put(table.txns, indexes)
        stray = stray_flushes(
            events,
            (kind == FLUSHED) & ~is_own[positions],
            self._names,
            (self._shapes[ALIGNED][0], self._shapes[ALIGNED][1]),
        )
        # Also for shapes without events: the cursor may have passed the flush or removal that they were kept for.
        self._forget(drop_passed(self._shapes, self.cursor, partial(_listed_at, self._names)))
        return stray

    def complete(self, ack: LogOffset, *, now_ms: int, max_pending: int) -> None:
        """Drop everything up to ``ack``, which ends a transaction. O(shapes).

        Needed when the state is older than the ack: the topic may no longer have the flushes and removals that allowed
        it.
        """
        self.cursor = max(self.cursor, ack)
        first_tx, open_tx = self._shapes[FIRST_TX], self._shapes[OPEN.start]
        is_done = ((first_tx != NO_TX) & (first_tx <= ack.tx_offset)) | (
            (open_tx != NO_TX) & (open_tx <= ack.tx_offset)
        )
        if is_done.any():
            # A removal completes all transactions up to its own, and concerns no later one.
            names = [str(self._names[index]) for index in np.flatnonzero(is_done).tolist()]
            done = ShapeEvents.of(ShapeEvent(name, REMOVED, ack.tx_offset, 0) for name in names)
            self.apply(done, now_ms=now_ms, max_pending=max_pending)

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
        indexes = self._first(pending, (flushed_tx[pending], flushed_op[pending]))
        first = self._shapes[:, indexes]
        first[TXNS, open_unflushed(first)[0]] += 1
        columns = np.stack([indexes, *first[ALIGNED], first[SINCE_MS], first[TXNS]])
        holders = []
        for index, tx, op, since_ms, transactions in columns.T.tolist():
            shape_id, writer = shape_and_writer(str(self._names[index]))
            holders.append(PendingShape(LogOffset(tx, op), shape_id, since_ms, transactions, writer))
        return GroupReport(len(pending), last_sent, tuple(sorted(holders)))

    def _first(self, indexes: Ints, offsets: OffsetColumns) -> Ints:
        """The first :data:`HOLDERS` of ``indexes`` by their offsets, ties broken by id; in any order."""
        below, equal = least(offsets, HOLDERS)
        if len(below) + len(equal) > HOLDERS:
            first = nsmallest(HOLDERS - len(below), indexes[equal].tolist(), key=lambda index: self._names[index] or "")
            return np.concatenate([indexes[below], np.array(first, np.int64)])
        found: Ints = indexes[np.concatenate([below, equal])]
        return found

    def pack(self) -> bytes:
        """The whole state as bytes: a version byte, the cursor and the columns; the inverse of :meth:`unpack`."""
        is_used = np.ones(len(self._names), np.bool_)
        is_used[self._free] = False
        columns = self._shapes[:STORED_ROWS]
        if self._free:
            columns = columns[:, is_used]
        head = _VERSION + _CURSOR.pack(self.cursor.tx_offset, self.cursor.op_offset)
        return head + pack_texts(self.labels) + pack_ints(columns) + self._txns.pack(np.cumsum(is_used) - 1)

    @classmethod
    def unpack(cls, packed: bytes) -> "ShapeGroup":
        """Read the output of :meth:`pack`; raises ``StateError`` on another version, or if it is damaged."""
        check_group_version(packed)
        try:
            return cls._unpack(packed)
        except (ValueError, IndexError, error) as cause:  # inconsistent parts
            raise cut_off() from cause

    @classmethod
    def _unpack(cls, packed: bytes) -> "ShapeGroup":
        group = cls(LogOffset(*_CURSOR.unpack_from(packed, len(_VERSION))))
        labels, start = unpack_texts(packed, len(_VERSION) + _CURSOR.size)
        group._names += labels
        group._indexes, group._is_unpacked = None, True
        stored, start = unpack_ints(packed, start, STORED_ROWS, most=len(labels))
        if stored.shape[1] != len(labels):
            raise cut_off()
        group._shapes = np.empty((ROWS, len(labels)), np.int64)
        group._shapes[:STORED_ROWS] = stored
        group._txns, end = TxnStore.unpack(packed, start, len(labels))
        derive(group._shapes, group._txns.heads(len(labels)))
        if end != len(packed):
            raise cut_off()
        return group

    def _indexes_of(self, labels: Sequence[str]) -> Ints:
        """The index of each event's shape; adds new shapes."""
        known = self._known(labels)
        indexes = np.array(list(map(known.get, labels, repeat(-1))), np.int64)
        for position in np.flatnonzero(indexes < 0).tolist():
            index = known.get(labels[position])
            if index is None:
                index = known[labels[position]] = self._add(labels[position])
            indexes[position] = index
        more = len(self._names) - self._shapes.shape[1]
        if more:
            self._shapes = np.concatenate([self._shapes, np.repeat(NEW_SHAPE, more, axis=1)], axis=1)
        return indexes

    def _known(self, labels: Sequence[str]) -> dict[str, int]:
        """The indexes of at least the shapes among ``labels``."""
        if self._is_unpacked:
            # The job unpacks a group for each micro-batch, and a pass over the names costs less than a dictionary.
            self._is_unpacked = False
            wanted = np.fromiter(map(set(labels).__contains__, self._names), np.bool_, len(self._names))
            found = np.flatnonzero(wanted).tolist()
            return {name: index for index in found if (name := self._names[index]) is not None}
        if self._indexes is None:
            self._indexes = {name: index for index, name in enumerate(self._names) if name is not None}
        return self._indexes

    def _add(self, label: str) -> int:
        """Give the shape the last freed index, or a new one whose column must still be appended."""
        index = self._free.pop() if self._free else len(self._names)
        self._names[index : index + 1] = [label]
        return index

    def _forget(self, indexes: Ints) -> None:
        """Free the indexes of shapes that have no state left."""
        self._shapes[:, indexes] = NEW_SHAPE
        for index in indexes.tolist():
            name = self._names[index]
            if name is not None:
                if self._indexes is not None:
                    del self._indexes[name]
                self._names[index] = None
                self._free.append(index)


def _listed_at(names: Sequence[str | None], indexes: Ints) -> Ints:
    """Where a split shape list lists each of these shapes; ``names`` are labels."""
    return np.array([listed_at(shape_and_writer(names[index] or "")[0]) for index in indexes.tolist()], np.int64)


def check_group_version(packed: bytes) -> None:
    """Raise ``StateError`` unless the first byte of ``packed`` is the version of a group's state."""
    check_version(packed, _VERSION)
