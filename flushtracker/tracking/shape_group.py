"""``ShapeGroup``: the unit of Spark state, the shapes that share a grouping key, as columns of numbers.

It turns the raw storage offsets that writers report into transaction-aligned ones, for all of its shapes at once: no
object is made for a shape, a transaction or an event, and the state is stored as it is kept.

**State.** Of each shape: its pending transactions (:class:`PendingTxns`); the last offset of its open transaction,
whose commit has not arrived yet; the highest flush reported so far; its removal; and since when it is pending. The
``cursor`` is the greatest offset that has reached the group, ``(tx, ∞)`` after a commit. A fragment at or below it is a
resend and is ignored, so nothing is registered twice. The cursor must outlive the shapes, so a group's state is never
removed.

**Rule.** A transaction is flushed when the reported flush is at or past the last offset that the shape writes for it,
whichever of the two arrives first. The aligned ``last_flushed`` is one before the first transaction still pending
(everything earlier is done, whether or not it concerned the shape), or the partial flush inside that transaction, if
greater. A removal at R completes all transactions of the shape up to and including R's, open or not, seen or not.

**Retention.** Flushes and fragments have no common order. A flush must be kept until its transaction arrives, and a
flush between two fragments of a transaction must still count when the commit has no change for the shape. A flush or a
removal is dropped only when the group's cursor has passed it and the shape has no transaction left that it could
complete. For a removal, the cursor must pass the end of its transaction, because a resend may cut the rest differently.
"""

from collections.abc import Sequence
from itertools import compress
from struct import Struct
from typing import Final

import numpy as np

from flushtracker.tracking.flush_tracker import Pending
from flushtracker.tracking.offset_columns import (
    NO_TX,
    OffsetColumns,
    at_most,
    ends_of_runs,
    greater_of,
    greatest,
    starts_of_runs,
)
from flushtracker.tracking.packed_columns import Ints, cut_off, pack_ints, pack_texts, unpack_ints, unpack_texts
from flushtracker.tracking.packed_state import check_version
from flushtracker.tracking.pending_txns import PendingTxns
from flushtracker.tracking.shape_events import FLUSHED, REMOVED, SENT_WITH_COMMIT, ShapeEvents
from flushtracker.tracking.source_tracker import GroupReport
from flushtracker.wal.log_offset import OP_INFINITY, LogOffset

_VERSION: Final = b"\x03"
_CURSOR: Final = Struct("<qq")

# The rows of `_shapes`; of each pair the first is the tx_offset, the second the op_offset.
_OPEN: Final = slice(0, 2)
_FLUSHED: Final = slice(2, 4)
_REMOVED: Final = slice(4, 6)
_SINCE_MS: Final = 6
_ROWS: Final = 7
_NEW: Final = np.array([[NO_TX, 0, NO_TX, 0, NO_TX, 0, 0]], np.int64).T


class ShapeGroup:
    """The offset state of some shapes of one source. Fragments up to ``cursor`` count as already applied.

    >>> from flushtracker.tracking.shape_events import ShapeEvent
    >>> group = ShapeGroup(cursor=LogOffset(99, 0))
    >>> sent = ShapeEvent("users", SENT_WITH_COMMIT, tx=100, op=2, boundary_op=4)
    >>> group.apply(ShapeEvents.of([sent]), now_ms=0, max_pending=4096)
    >>> report = group.report()
    >>> report.pending_shapes, report.blocking_shape, report.pending.last_flushed
    (1, 'users', LogOffset(tx_offset=99, op_offset=0))
    >>> group.apply(ShapeEvents.of([ShapeEvent("users", FLUSHED, tx=100, op=2)]), now_ms=10, max_pending=4096)
    >>> group.report(), group.shape_ids
    (GroupReport(pending_shapes=0, pending=None, blocking_shape=None), [])
    """

    def __init__(self, cursor: LogOffset) -> None:
        self.cursor = cursor
        self._slots: dict[str, int] = {}
        self._shapes: Ints = np.empty((_ROWS, 0), np.int64)
        self._txns = PendingTxns()

    @property
    def shape_ids(self) -> list[str]:
        """The shapes that have state."""
        return list(self._slots)

    def apply(self, events: ShapeEvents, *, now_ms: int, max_pending: int) -> None:
        """Apply one micro-batch; ``max_pending`` bounds the transactions kept per shape.

        The outcome does not depend on the order of the events. O(events · log events + shapes + transactions).
        """
        known = self._last_flushed()
        slots = self._slots_of(events.shape_ids)
        self._txns.bring(slots)
        kind, tx, op, boundary_op = events.numbers
        for change, rows in ((FLUSHED, _FLUSHED), (REMOVED, _REMOVED)):
            changed = kind == change
            self._raise(rows, slots[changed], (tx[changed], op[changed]))
        self._drop_removed()
        reach = (tx, np.where(kind == SENT_WITH_COMMIT, OP_INFINITY, boundary_op))
        unseen = np.flatnonzero((kind <= SENT_WITH_COMMIT) & ~at_most(reach, self.cursor))
        if len(unseen):
            self._add_sent(slots[unseen], *events.numbers[:, unseen])
            self.cursor = max(self.cursor, greatest((reach[0][unseen], reach[1][unseen])))
        self._settle(max_pending)
        self._note_progress(known, now_ms)
        self._drop_empty()
        self._txns.put_apart(len(self._slots))

    def report(self) -> GroupReport:
        """Reduce the group to the row for the driver. O(shapes + transactions)."""
        tx, op = self._last_flushed()
        pending = np.flatnonzero(tx != NO_TX)
        if not len(pending):
            return GroupReport()
        least_tx = tx[pending].min()
        pending_there = pending[tx[pending] == least_tx]
        least_op = op[pending_there].min()
        shape_ids = self.shape_ids
        blocking = min(pending_there[op[pending_there] == least_op].tolist(), key=shape_ids.__getitem__)
        sent, opened = self._txns.sent_offsets(), self._open_unflushed()
        last_sent = greatest((np.concatenate([sent[0], opened[0]]), np.concatenate([sent[1], opened[1]])))
        last_flushed = LogOffset(int(least_tx), int(least_op))
        since_ms = int(self._shapes[_SINCE_MS, blocking])
        return GroupReport(len(pending), Pending(last_sent, last_flushed, since_ms), shape_ids[blocking])

    def pack(self) -> bytes:
        """The whole state as bytes: a version byte, the cursor and the columns; the inverse of :meth:`unpack`."""
        head = _VERSION + _CURSOR.pack(self.cursor.tx_offset, self.cursor.op_offset)
        return head + pack_texts(self.shape_ids) + pack_ints(self._shapes) + self._txns.pack(len(self._slots))

    @classmethod
    def unpack(cls, packed: bytes) -> "ShapeGroup":
        """Read the output of :meth:`pack`; raises ``StateError`` on another version."""
        check_group_version(packed)
        group = cls(LogOffset(*_CURSOR.unpack_from(packed, len(_VERSION))))
        shape_ids, start = unpack_texts(packed, len(_VERSION) + _CURSOR.size)
        group._slots = {shape_id: slot for slot, shape_id in enumerate(shape_ids)}
        group._shapes, start = unpack_ints(packed, start, _ROWS)
        group._txns, end = PendingTxns.unpack(packed, start)
        if end != len(packed):
            raise cut_off()
        return group

    def _slots_of(self, shape_ids: Sequence[str]) -> Ints:
        """The number of each event's shape; a shape that is new gets the next one."""
        slots = self._slots
        before = len(slots)
        found = np.array([slots.setdefault(shape_id, len(slots)) for shape_id in shape_ids], np.int64)
        self._shapes = np.concatenate([self._shapes, np.repeat(_NEW, len(slots) - before, axis=1)], axis=1)
        return found

    def _raise(self, rows: slice, slots: Ints, offsets: OffsetColumns) -> None:
        """Raise the shapes' offsets in ``rows`` to those given, where these are greater."""
        tx, op = offsets
        order = np.lexsort((op, tx, slots))
        last = order[ends_of_runs(slots[order])]
        self._shapes[rows, slots[last]] = greater_of(tuple(self._shapes[rows, slots[last]]), (tx[last], op[last]))

    def _drop_removed(self) -> None:
        """Drop what a removal completes."""
        open_tx, open_op = self._shapes[_OPEN]
        removed_tx = self._shapes[_REMOVED][0]
        is_removed = (open_tx <= removed_tx) & (open_tx != NO_TX)
        open_tx[is_removed], open_op[is_removed] = NO_TX, 0
        tx, _ = self._txns.last_offsets
        is_done = tx <= removed_tx[self._txns.slots]
        if is_done.any():
            self._txns.keep(~is_done)

    def _add_sent(self, slots: Ints, kind: Ints, tx: Ints, op: Ints, boundary_op: Ints) -> None:
        """Add the shapes' parts of fragments to what is open and pending."""
        open_tx, open_op = self._shapes[_OPEN]
        op = np.where(tx <= self._shapes[_REMOVED][0, slots], -1, op)
        is_commit = kind == SENT_WITH_COMMIT
        # What was open is a part, too: its transaction continues, or a later one ends it.
        is_reached = np.zeros(len(open_tx), np.bool_)
        is_reached[slots] = True
        was_open = np.flatnonzero(is_reached & (open_tx != NO_TX))
        none = np.full(len(was_open), -1)
        slots, tx = np.concatenate([slots, was_open]), np.concatenate([tx, open_tx[was_open]])
        op, boundary_op = np.concatenate([op, open_op[was_open]]), np.concatenate([boundary_op, none])
        is_commit = np.concatenate([is_commit, none > 0])
        # The parts of each shape's transactions become one.
        order = np.lexsort((tx, slots))
        slots, tx = slots[order], tx[order]
        starts = np.flatnonzero(starts_of_runs(slots, tx))
        slots, tx = slots[starts], tx[starts]
        op = np.maximum.reduceat(op[order], starts)
        boundary_op = np.maximum.reduceat(boundary_op[order], starts)
        is_commit = np.logical_or.reduceat(is_commit[order], starts)
        is_sent, is_last = op >= 0, ends_of_runs(slots)
        # If the shape's next transaction has begun, this one's commit did not list the shape, but it must flush what it
        # was sent.
        is_closed = is_sent & (is_commit | ~is_last)
        is_open = is_sent & ~is_closed
        open_tx[was_open], open_op[was_open] = NO_TX, 0
        open_tx[slots[is_open]], open_op[slots[is_open]] = tx[is_open], op[is_open]
        ends = np.where(is_commit, boundary_op, op)
        self._txns.add(slots[is_closed], (tx[is_closed], op[is_closed]), ends[is_closed])

    def _settle(self, max_pending: int) -> None:
        """Drop completed transactions, and flushes and removals that nothing can need after the cursor."""
        txns, flushed = self._txns, self._shapes[_FLUSHED]
        is_done = at_most(txns.last_offsets, tuple(flushed[:, txns.slots]))
        if is_done.any():
            txns.keep(~is_done)
        counts = txns.counts(len(self._slots))
        if (counts > max_pending).any():
            txns.merge_neighbours(counts, max_pending)
        open_tx, removed = self._shapes[_OPEN][0], self._shapes[_REMOVED]
        is_idle = ~txns.exist(len(counts)) & (open_tx == NO_TX)
        flushed[:, is_idle & at_most(tuple(flushed), self.cursor)] = _NEW[_FLUSHED]
        # A resend may cut the rest of the removal's transaction differently and list the shape's changes again.
        removed[:, is_idle & at_most((removed[0], OP_INFINITY), self.cursor)] = _NEW[_REMOVED]

    def _note_progress(self, known: OffsetColumns, now_ms: int) -> None:
        """Note the time for the shapes that have become pending, or flushed more than was ``known``."""
        after = self._last_flushed()
        more = len(self._slots) - len(known[0])
        before = np.concatenate([known, np.full((2, more), NO_TX)], axis=1)
        self._shapes[_SINCE_MS, (after[0] != NO_TX) & ~at_most(after, (before[0], before[1]))] = now_ms

    def _drop_empty(self) -> None:
        """Forget the shapes for which nothing is left to keep."""
        is_kept = (self._shapes[[0, 2, 4]] != NO_TX).any(axis=0) | self._txns.exist(len(self._slots))
        if not is_kept.all():
            self._slots = {shape_id: slot for slot, shape_id in enumerate(compress(self._slots, is_kept.tolist()))}
            self._shapes = self._shapes[:, is_kept]
            self._txns.renumber(np.cumsum(is_kept) - 1)

    def _last_flushed(self) -> OffsetColumns:
        """Each shape's aligned ``last_flushed``, :data:`NO_TX` if it is caught up; after :meth:`_settle`."""
        before_tx = self._open_unflushed()[0]
        slots, first_tx = self._txns.first_of_each()
        before_tx[slots] = first_tx
        tx, op = greater_of((before_tx - 1, np.zeros_like(before_tx)), tuple(self._shapes[_FLUSHED]))
        return np.where(before_tx == NO_TX, NO_TX, tx), op

    def _open_unflushed(self) -> OffsetColumns:
        """Each shape's last offset of its open transaction, :data:`NO_TX` if it is flushed, or there is none."""
        (open_tx, open_op), flushed = self._shapes[_OPEN], self._shapes[_FLUSHED]
        is_flushed = at_most((open_tx, open_op), tuple(flushed))
        return np.where(is_flushed, NO_TX, open_tx), open_op


def check_group_version(packed: bytes) -> None:
    """Raise ``StateError`` unless packed state, of which the first byte is enough, is a group's of this format."""
    check_version(packed, _VERSION)
