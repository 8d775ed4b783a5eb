"""``ShapeTable``: turns the raw storage offsets that writers report into transaction-aligned ones, for many shapes.

All of it is columns of numbers, and each step is one for all shapes: no object is made for a shape, a transaction or an
event. What it computes is written plainly, a shape and an event at a time, in ``tests/support/plain_group.py``.

**State.** Of each shape: its pending transactions (:class:`PendingTxns`); the last offset of its open transaction,
whose commit has not arrived yet; the highest flush reported so far; its removal; and since when it is pending.

**Rule.** A transaction is flushed when the reported flush is at or past the last offset that the shape writes for it,
whichever of the two arrives first. The aligned ``last_flushed`` is one before the first transaction still pending
(everything earlier is done, whether or not it concerned the shape), or the partial flush inside that transaction, if
greater. A removal at R completes all transactions of the shape up to and including R's, open or not, seen or not.

**Retention.** Flushes and fragments have no common order. A flush must be kept until its transaction arrives, and a
flush between two fragments of a transaction must still count when the commit has no change for the shape. A flush or a
removal is dropped only when the group's cursor has passed it and the shape has no transaction left that it could
complete. For a removal, the cursor must pass the end of its transaction, because a resend may cut the rest differently.
"""

from typing import Final

import numpy as np

from flushtracker.tracking.offset_columns import (
    NO_TX,
    OffsetColumns,
    at_most,
    ends_of_runs,
    greater_of,
    starts_of_runs,
)
from flushtracker.tracking.packed_columns import Bools, Ints
from flushtracker.tracking.pending_txns import NO_HEADS, PendingTxns
from flushtracker.tracking.shape_events import FLUSHED, REMOVED, SENT_WITH_COMMIT
from flushtracker.wal.log_offset import OP_INFINITY, LogOffset

# The rows of `shapes`. Of a pair the first is the tx_offset, NO_TX if there is no offset, and the second the op_offset.
OPEN: Final = slice(0, 2)
FLUSH: Final = slice(2, 4)
REMOVAL: Final = slice(4, 6)
SINCE_MS: Final = 6
HEADS: Final = slice(7, 11)
"""What the pending transactions say: the commit LSN of the first, how far the shape was sent, and their number."""
FIRST_TX: Final = 7
SENT_TO: Final = slice(8, 10)
TXNS: Final = 10
ALIGNED: Final = slice(11, 13)
"""The aligned ``last_flushed``, :data:`NO_TX` if the shape is caught up."""
ROWS: Final = 13
STORED_ROWS: Final = 7
"""The others follow from these and the transactions: :func:`derive`."""

_NONE: Final[Ints] = np.array([[NO_TX, 0]], np.int64).T
NEW_SHAPE: Final[Ints] = np.concatenate([*[_NONE] * 3, np.zeros((1, 1), np.int64), NO_HEADS, _NONE])


class ShapeTable:
    """Some shapes, each a column of ``shapes``, and its place the ``slot`` of its transactions in ``txns``."""

    def __init__(self, shapes: Ints, txns: PendingTxns) -> None:
        self.shapes = shapes
        self.txns = txns

    def apply(self, slots: Ints, events: Ints, sent: Bools, *, now_ms: int, max_pending: int) -> None:
        """Apply the flushes and removals among ``events``, and the parts of fragments that ``sent`` marks.

        ``slots`` has the shape of each event. The shapes that are flushed or removed have all their transactions in
        ``txns``. What only the group's cursor makes superfluous stays, for :func:`drop_passed`.
        """
        known = self.shapes[ALIGNED].copy()
        kind, tx, op, _ = events
        for change, rows in ((FLUSHED, FLUSH), (REMOVED, REMOVAL)):
            changed = kind == change
            self._raise(rows, slots[changed], (tx[changed], op[changed]))
        self._drop_removed()
        if sent.any():
            self._add_sent(slots[sent], *events[:, sent])
        self._drop_flushed(max_pending)
        derive(self.shapes, self.txns.heads(self.shapes.shape[1]))
        # Since when: the shapes that have become pending, or have flushed more.
        tx, op = self.shapes[ALIGNED]
        self.shapes[SINCE_MS, (tx != NO_TX) & ~at_most((tx, op), (known[0], known[1]))] = now_ms

    def _raise(self, rows: slice, slots: Ints, offsets: OffsetColumns) -> None:
        """Raise the shapes' offsets in ``rows`` to those given, where these are greater."""
        tx, op = offsets
        order = np.lexsort((op, tx, slots))
        last = order[ends_of_runs(slots[order])]
        before = self.shapes[rows, slots[last]]
        self.shapes[rows, slots[last]] = greater_of((before[0], before[1]), (tx[last], op[last]))

    def _drop_removed(self) -> None:
        """Drop what a removal completes."""
        opened, removed_tx = self.shapes[OPEN], self.shapes[REMOVAL][0]
        opened[:, opened[0] <= removed_tx] = NEW_SHAPE[OPEN]
        tx, _ = self.txns.last_offsets
        self.txns.keep(tx > removed_tx[self.txns.slots])

    def _add_sent(self, slots: Ints, kind: Ints, tx: Ints, op: Ints, boundary_op: Ints) -> None:
        """Add the shapes' parts of fragments to what is open and pending."""
        opened = self.shapes[OPEN]
        op = np.where(tx <= self.shapes[REMOVAL][0, slots], -1, op)
        is_commit = kind == SENT_WITH_COMMIT
        # What was open is a part, too: its transaction continues, or a later one ends it.
        is_reached = np.zeros(opened.shape[1], np.bool_)
        is_reached[slots] = True
        was_open = np.flatnonzero(is_reached & (opened[0] != NO_TX))
        none = np.full(len(was_open), -1)
        slots, tx = np.concatenate([slots, was_open]), np.concatenate([tx, opened[0, was_open]])
        op, boundary_op = np.concatenate([op, opened[1, was_open]]), np.concatenate([boundary_op, none])
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
        opened[:, was_open] = NEW_SHAPE[OPEN]
        opened[:, slots[is_open]] = tx[is_open], op[is_open]
        ends = np.where(is_commit, boundary_op, op)
        self.txns.add(slots[is_closed], (tx[is_closed], op[is_closed]), ends[is_closed])

    def _drop_flushed(self, max_pending: int) -> None:
        """Drop the transactions that a flush completes, and merge some where there are too many."""
        flushed = self.shapes[FLUSH, self.txns.slots]
        self.txns.keep(~at_most(self.txns.last_offsets, (flushed[0], flushed[1])))
        counts = self.txns.counts(self.shapes.shape[1])
        if (counts > max_pending).any():
            self.txns.merge_neighbours(counts, max_pending)


def drop_passed(shapes: Ints, cursor: LogOffset) -> Ints:
    """Drop flushes and removals that nothing can need after ``cursor``; returns the shapes that have no state left."""
    flushed, removed = shapes[FLUSH], shapes[REMOVAL]
    idle = np.flatnonzero((shapes[FIRST_TX] == NO_TX) & (shapes[OPEN.start] == NO_TX))
    flushed[:, idle[at_most((flushed[0, idle], flushed[1, idle]), cursor)]] = NEW_SHAPE[FLUSH]
    # A resend may cut the rest of the removal's transaction differently and list the shape's changes again.
    removed[:, idle[at_most((removed[0, idle], OP_INFINITY), cursor)]] = NEW_SHAPE[REMOVAL]
    empty: Ints = idle[(flushed[0, idle] == NO_TX) & (removed[0, idle] == NO_TX)]
    return empty


def derive(shapes: Ints, heads: Ints) -> None:
    """Set the rows that are not stored; ``heads`` is what the transactions say."""
    shapes[HEADS] = heads
    pending_tx = shapes[FIRST_TX].copy()
    slots, (open_tx, _) = open_unflushed(shapes)
    pending_tx[slots] = np.where(pending_tx[slots] == NO_TX, open_tx, pending_tx[slots])
    # Above all before the first pending transaction, or the flush, where that is greater.
    flushed_tx, flushed_op = shapes[FLUSH]
    is_partial = flushed_tx >= pending_tx - 1
    tx = np.where(is_partial, flushed_tx, pending_tx - 1)
    shapes[ALIGNED] = np.where(pending_tx == NO_TX, NEW_SHAPE[ALIGNED], (tx, np.where(is_partial, flushed_op, 0)))


def open_unflushed(shapes: Ints) -> tuple[Ints, OffsetColumns]:
    """The shapes with an open transaction that is not flushed, and the last offset of each in it."""
    opened, flushed = shapes[OPEN], shapes[FLUSH]
    slots = np.flatnonzero(opened[0] != NO_TX)
    is_flushed = at_most((opened[0, slots], opened[1, slots]), (flushed[0, slots], flushed[1, slots]))
    slots = slots[~is_flushed]
    return slots, (opened[0, slots], opened[1, slots])
