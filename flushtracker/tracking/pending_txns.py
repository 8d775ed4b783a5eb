"""``PendingTxns``: the committed transactions that some shapes have not flushed, as columns of numbers."""

from typing import Final

import numpy as np

from flushtracker.tracking.offset_columns import NO_TX, OffsetColumns, ends_of_runs, starts_of_runs
from flushtracker.tracking.packed_columns import Bools, Ints

_SLOT, _FIRST_TX, _TX, _LAST_OP, _OP = range(5)
_ROWS: Final = 5

NO_HEADS: Final[Ints] = np.array([[NO_TX, NO_TX, 0, 0]], np.int64).T
"""Of a shape without transactions; see :meth:`PendingTxns.heads`."""

COUNT: Final = 3
"""The row of the heads that has the number of transactions."""


class PendingTxns:
    """Transactions by shape, and of each shape in the order of their commits; a shape is its number, ``slot``.

    ``columns`` has a row each for the slot; the commit LSN of the first of the transactions that were merged into this
    one, else its own; its commit LSN; the last operation that the shape writes for it; and its boundary's. An update
    that splits is written one past the boundary. ``behind`` has the heads of those that precede them, where there are.
    """

    __slots__ = ("behind", "columns")

    def __init__(self, columns: Ints | None = None, behind: Ints | None = None) -> None:
        self.columns = np.empty((_ROWS, 0), np.int64) if columns is None else columns
        self.behind = behind

    @property
    def slots(self) -> Ints:
        slots: Ints = self.columns[_SLOT]
        return slots

    @property
    def last_offsets(self) -> OffsetColumns:
        """The last offset that the shape writes for each."""
        return self.columns[_TX], self.columns[_LAST_OP]

    def heads(self, shapes: int) -> Ints:
        """A column for each of ``shapes`` shapes.

        Its rows: the commit LSN of the first transaction, how far the shape was sent (two), and the number of them.
        """
        heads = np.repeat(NO_HEADS, shapes, axis=1) if self.behind is None else self.behind.copy()
        first, last = starts_of_runs(self.slots), ends_of_runs(self.slots)
        slots = self.slots[first]
        first_tx = np.where(heads[0, slots] == NO_TX, self.columns[_FIRST_TX, first], heads[0, slots])
        sent_op = np.maximum(self.columns[_LAST_OP, last], self.columns[_OP, last])
        heads[:COUNT, slots] = first_tx, self.columns[_TX, last], sent_op
        heads[COUNT] += self.counts(shapes)
        return heads

    def counts(self, shapes: int) -> Ints:
        """How many each of ``shapes`` shapes has."""
        return np.bincount(self.slots, minlength=shapes).astype(np.int64)

    def add(self, slots: Ints, last_offsets: OffsetColumns, boundary_ops: Ints) -> None:
        """Add transactions, each after all others of its shape, and in order."""
        tx, last_ops = last_offsets
        columns = np.concatenate([self.columns, np.stack([slots, tx, tx, last_ops, boundary_ops])], axis=1)
        self.columns = columns[:, np.argsort(columns[_SLOT], kind="stable")]

    def keep(self, kept: Bools) -> None:
        """Drop the others."""
        if not kept.all():
            self.columns = self.columns[:, kept]

    def merge_neighbours(self, counts: Ints, most: int) -> None:
        """Merge adjacent pairs of the shapes that have more than ``most``, until half as many remain, so seldom.

        A merged transaction is flushed when the last one is: never unsafe, only less exact.
        """
        halvings = np.zeros(len(counts), np.int64)
        remaining = counts.copy()
        while len(over := np.flatnonzero((counts > most) & (remaining > max(1, most // 2)))):
            halvings[over] += 1
            remaining[over] = (remaining[over] + 1) // 2
        slots = self.slots
        place = np.arange(len(slots)) - (np.cumsum(counts) - counts)[slots]
        block = place >> halvings[slots]
        first_tx = self.columns[_FIRST_TX, starts_of_runs(slots, block)]
        self.columns = self.columns[:, ends_of_runs(slots) | ends_of_runs(block)]
        self.columns[_FIRST_TX] = first_tx
