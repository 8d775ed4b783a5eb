"""``ShapeTable``: turns the raw storage offsets that writers report into transaction-aligned ones, for many shapes.

The rule, for one shape. It is executable, an event at a time, in ``tests/support/plain_group.py``::

    flushed, removed = the greatest flush and the greatest removal reported so far
    fragment of tx, while an earlier tx is open:  txns += (open.tx, last_op=open.op, boundary_op=open.op); open = none
    the shape's last operation in it is op:       open = (tx, op), unless tx <= removed.tx
    it has the commit, and ends at boundary_op:   txns += (tx, last_op=open.op, boundary_op), if open; open = none
    it is a list part:                            the same, with boundary_op=open.op
    drop each txn, and open, with tx <= removed.tx
    drop each txn with (tx, last_op) <= flushed
    more than max_pending txns:  merge neighbours in pairs, until at most half of max_pending remain
    pending      = txns, then open unless open <= flushed
    last_flushed = max(flushed, (pending[0].tx - 1, 0))
    last_sent    = the end of pending[-1]
    nothing pending, nothing open:  forget flushed and removed once the group's cursor has passed them; inside a
                                    transaction's list, once it has passed the shape there

So a transaction is flushed when the reported flush is at or past the last operation that the shape writes for it,
whichever of the two arrives first. ``last_flushed`` is one before the first pending transaction, because everything
earlier is done whether or not it concerned the shape, or a partial flush inside that transaction. A removal completes
all transactions up to and including its own, open or not, seen or not.

Flushes and fragments have no common order. A flush is kept until its transaction arrives, and a flush between two
fragments of a transaction must still count when the commit has no change for the shape. A removal is kept until the
cursor passes the end of its transaction, because a resend may cut the rest of it differently.

``ShapeTable`` applies the rule to all shapes at once. Its state is columns of numbers, and no step makes an object for
a shape, a transaction or an event.
"""

from collections.abc import Callable
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
from flushtracker.tracking.shape_events import FLUSHED, REMOVED, SENT, SENT_WITH_COMMIT
from flushtracker.wal.log_offset import OP_INFINITY, LogOffset
from flushtracker.wal.shape_list import FIRST_LISTED, LAST_LISTED, is_list

# The rows of `shapes`. A pair is a tx_offset, NO_TX for none, and an op_offset.
OPEN: Final = slice(0, 2)
FLUSH: Final = slice(2, 4)
REMOVAL: Final = slice(4, 6)
SINCE_MS: Final = 6
HEADS: Final = slice(7, 11)
"""A summary of the pending transactions: the first commit LSN, the last offset sent, and their number."""
FIRST_TX: Final = 7
SENT_TO: Final = slice(8, 10)
TXNS: Final = 10
ALIGNED: Final = slice(11, 13)
"""The aligned ``last_flushed``, :data:`NO_TX` if the shape is caught up."""
ROWS: Final = 13
STORED_ROWS: Final = 7
"""The rows after these are derived from them and the transactions: :func:`derive`."""

_NONE: Final[Ints] = np.array([[NO_TX, 0]], np.int64).T
NEW_SHAPE: Final[Ints] = np.concatenate([*[_NONE] * 3, np.zeros((1, 1), np.int64), NO_HEADS, _NONE])


class ShapeTable:
    """Some shapes, each a column of ``shapes``. The ``index`` of that column is also the shape's number in ``txns``."""

    def __init__(self, shapes: Ints, txns: PendingTxns) -> None:
        self.shapes = shapes
        self.txns = txns

    def apply(self, indexes: Ints, events: Ints, sent: Bools, *, now_ms: int, max_pending: int) -> None:
        """Apply the flushes and removals among ``events``, and the parts of fragments that ``sent`` marks.

        ``indexes`` has the shape of each event. ``txns`` must have all transactions of a shape that is flushed or
        removed. Flushes and removals that the group's cursor has passed stay until :func:`drop_passed`.
        """
        known = self.shapes[ALIGNED].copy()
        kind, tx, op, _ = events
        for change, rows in ((FLUSHED, FLUSH), (REMOVED, REMOVAL)):
            changed = kind == change
            self._raise(rows, indexes[changed], (tx[changed], op[changed]))
        self._drop_removed()
        if sent.any():
            self._add_sent(np.concatenate([indexes[np.newaxis, sent], events[:, sent]]))
        self._drop_flushed(max_pending)
        derive(self.shapes, self.txns.heads(self.shapes.shape[1]))
        # A shape's clock restarts when it becomes pending or flushes more.
        tx, op = self.shapes[ALIGNED]
        self.shapes[SINCE_MS, (tx != NO_TX) & ~at_most((tx, op), (known[0], known[1]))] = now_ms

    def _raise(self, rows: slice, indexes: Ints, offsets: OffsetColumns) -> None:
        """Raise the shapes' offsets in ``rows`` to those given, where they are greater."""
        tx, op = offsets
        order = np.lexsort((op, tx, indexes))
        last = order[ends_of_runs(indexes[order])]
        before = self.shapes[rows, indexes[last]]
        self.shapes[rows, indexes[last]] = greater_of((before[0], before[1]), (tx[last], op[last]))

    def _drop_removed(self) -> None:
        """Drop the transactions that a removal completes."""
        opened, removed_tx = self.shapes[OPEN], self.shapes[REMOVAL][0]
        opened[:, opened[0] <= removed_tx] = NEW_SHAPE[OPEN]
        tx, _ = self.txns.last_offsets
        self.txns.keep(tx > removed_tx[self.txns.indexes])

    def _add_sent(self, parts: Ints) -> None:
        """Add parts of fragments to the open and pending transactions: one column per part, with the rows of
        :func:`_joined`.
        """
        # A list part ends the transaction for its shapes, but its own end is no operation, unlike a commit's.
        is_listed = (parts[4] >= FIRST_LISTED) & (parts[4] <= LAST_LISTED)
        parts[4, is_listed | (parts[1] == SENT)] = -1
        parts[1, is_listed] = SENT_WITH_COMMIT
        # From here on one column for each transaction of each shape, sorted by shape and commit LSN.
        indexes, kind, tx, op, boundary_op = _joined(np.concatenate([parts, self._take_open()], axis=1))
        is_commit = kind == SENT_WITH_COMMIT
        # Without an operation for the shape, or after its removal, the transaction does not concern it.
        is_sent = (op >= 0) & (tx > self.shapes[REMOVAL][0, indexes])
        # If the shape's next transaction has begun, this one's commit did not list the shape, but it must flush what it
        # was sent. So only a shape's last transaction may stay open.
        is_closed = is_sent & (is_commit | ~ends_of_runs(indexes))
        is_open = is_sent & ~is_closed
        self.shapes[OPEN, indexes[is_open]] = tx[is_open], op[is_open]
        ends = np.where(boundary_op >= 0, boundary_op, op)
        self.txns.add(indexes[is_closed], (tx[is_closed], op[is_closed]), ends[is_closed])

    def _take_open(self) -> Ints:
        """Take out the open transactions, as parts: more parts may follow, or a later transaction ends them."""
        opened = self.shapes[OPEN]
        indexes = np.flatnonzero(opened[0] != NO_TX)
        tx, op = opened[:, indexes]
        opened[:, indexes] = NEW_SHAPE[OPEN]
        return np.stack([indexes, np.full_like(tx, SENT), tx, op, np.full_like(tx, -1)])

    def _drop_flushed(self, max_pending: int) -> None:
        """Drop the transactions that a flush completes, and merge those of shapes with more than ``max_pending``."""
        flushed = self.shapes[FLUSH, self.txns.indexes]
        self.txns.keep(~at_most(self.txns.last_offsets, (flushed[0], flushed[1])))
        counts = self.txns.counts(self.shapes.shape[1])
        if (counts > max_pending).any():
            self.txns.merge_neighbours(counts, max_pending)


def _joined(parts: Ints) -> Ints:
    """The parts of each transaction of a shape merged into one; sorted by shape, then by commit LSN.

    The rows: the shape's index, the kind of event, the commit LSN, the shape's last operation (-1 for none), and the
    fragment's. The greatest value among the parts counts, so the result is a commit if any part is.
    """
    parts = parts[:, np.lexsort((parts[2], parts[0]))]
    return np.maximum.reduceat(parts, np.flatnonzero(starts_of_runs(parts[0], parts[2])), axis=1)


def drop_passed(shapes: Ints, cursor: LogOffset, listed_at: Callable[[Ints], Ints]) -> Ints:
    """Drop flushes and removals that are not needed past ``cursor``; return the shapes without state.

    ``listed_at`` maps indexes to the shapes' places in a split list.
    """
    flushed, removed = shapes[FLUSH], shapes[REMOVAL]
    idle = np.flatnonzero((shapes[FIRST_TX] == NO_TX) & (shapes[OPEN.start] == NO_TX))
    is_flush_passed = at_most((flushed[0, idle], flushed[1, idle]), cursor)
    # A resend may cut the rest of the removal's transaction differently and list the shape's changes again.
    is_removal_passed = at_most((removed[0, idle], OP_INFINITY), cursor)
    if is_list(cursor.op_offset):
        # The cursor's transaction has ended for the shapes that are listed, and for no others.
        is_listed = listed_at(idle) <= cursor.op_offset
        is_flush_passed = np.where(flushed[0, idle] == cursor.tx_offset, is_listed, is_flush_passed)
        is_removal_passed = np.where(removed[0, idle] == cursor.tx_offset, is_listed, is_removal_passed)
    flushed[:, idle[is_flush_passed]] = NEW_SHAPE[FLUSH]
    removed[:, idle[is_removal_passed]] = NEW_SHAPE[REMOVAL]
    empty: Ints = idle[(flushed[0, idle] == NO_TX) & (removed[0, idle] == NO_TX)]
    return empty


def derive(shapes: Ints, heads: Ints) -> None:
    """Set the rows that are not stored; ``heads`` summarizes the transactions."""
    shapes[HEADS] = heads
    pending_tx = shapes[FIRST_TX].copy()
    indexes, (open_tx, _) = open_unflushed(shapes)
    pending_tx[indexes] = np.where(pending_tx[indexes] == NO_TX, open_tx, pending_tx[indexes])
    # One before the first pending transaction, or the flush, if that is greater.
    flushed_tx, flushed_op = shapes[FLUSH]
    is_partial = flushed_tx >= pending_tx - 1
    tx = np.where(is_partial, flushed_tx, pending_tx - 1)
    shapes[ALIGNED] = np.where(pending_tx == NO_TX, NEW_SHAPE[ALIGNED], (tx, np.where(is_partial, flushed_op, 0)))


def open_unflushed(shapes: Ints) -> tuple[Ints, OffsetColumns]:
    """The shapes with an open transaction that is not flushed, and each one's last offset in it."""
    opened, flushed = shapes[OPEN], shapes[FLUSH]
    indexes = np.flatnonzero(opened[0] != NO_TX)
    is_flushed = at_most((opened[0, indexes], opened[1, indexes]), (flushed[0, indexes], flushed[1, indexes]))
    indexes = indexes[~is_flushed]
    return indexes, (opened[0, indexes], opened[1, indexes])
