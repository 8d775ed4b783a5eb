"""``PendingTxns``: the committed transactions that shapes have not flushed, as columns of numbers.

A shape is a number here, its ``index`` among the shapes of the caller. Two transactions of shape 0, the first of them
merged from three, and one of shape 1::

    index      0    0    1
    first tx   100  400  400   the commit LSN of the first merged transaction, else that of this one
    tx         300  400  400
    last op    4    2    7     the last operation that the shape writes for it; 7 is the insert of a split update
    op         6    6    6     the transaction's last operation
"""

from typing import Final

import numpy as np

from flushtracker.tracking.offset_columns import NO_TX, OffsetColumns, ends_of_runs, starts_of_runs
from flushtracker.tracking.packed_columns import Bools, Ints

_INDEX, _FIRST_TX, _TX, _LAST_OP, _OP = range(5)

NO_TXNS: Final[Ints] = np.empty((5, 0), np.int64)
NO_HEADS: Final[Ints] = np.array([[NO_TX, NO_TX, 0, 0]], np.int64).T
"""The heads of a shape without transactions; see :meth:`PendingTxns.heads`."""

COUNT: Final = 3
"""The row of the heads with the number of transactions."""


class PendingTxns:
    """Transactions sorted by shape, and within a shape by commit.

    A shape may have earlier transactions elsewhere, which stay unchanged; ``behind`` has their heads.
    """

    __slots__ = ("behind", "columns")

    def __init__(self, behind: Ints, columns: Ints = NO_TXNS) -> None:
        self.columns = columns
        self.behind = behind

    @property
    def indexes(self) -> Ints:
        indexes: Ints = self.columns[_INDEX]
        return indexes

    @property
    def last_offsets(self) -> OffsetColumns:
        """The last offset that the shape writes for each."""
        return self.columns[_TX], self.columns[_LAST_OP]

    def heads(self, shapes: int) -> Ints:
        """The part of all transactions that the report needs, including those ``behind``: one column per shape.

        Its rows: the commit LSN of the first transaction, the offset up to which the shape was sent (two rows), and the
        number of transactions.
        """
        heads: Ints = self.behind.copy()
        first, last = starts_of_runs(self.indexes), ends_of_runs(self.indexes)
        indexes = self.indexes[first]
        first_tx = np.where(heads[0, indexes] == NO_TX, self.columns[_FIRST_TX, first], heads[0, indexes])
        sent_op = np.maximum(self.columns[_LAST_OP, last], self.columns[_OP, last])
        heads[:COUNT, indexes] = first_tx, self.columns[_TX, last], sent_op
        heads[COUNT] += self.counts(shapes)
        return heads

    def counts(self, shapes: int) -> Ints:
        """The number of transactions of each shape, without those ``behind``."""
        return np.bincount(self.indexes, minlength=shapes).astype(np.int64)

    def add(self, indexes: Ints, last_offsets: OffsetColumns, boundary_ops: Ints) -> None:
        """Add transactions, in commit order, each later than all others of its shape."""
        tx, last_ops = last_offsets
        columns = np.concatenate([self.columns, np.stack([indexes, tx, tx, last_ops, boundary_ops])], axis=1)
        self.columns = sorted_by_shape(columns)

    def keep(self, kept: Bools) -> None:
        """Drop all but the transactions that ``kept`` marks."""
        if not kept.all():
            self.columns = self.columns[:, kept]

    def merge_neighbours(self, counts: Ints, most: int) -> None:
        """Merge adjacent pairs of the shapes that have more than ``most``, until at most ``most // 2`` (or one) remain.

        Merging down to half keeps merges rare. A merged transaction is flushed when its last one is: safe, but less
        exact.
        """
        # In a shape that is halved n times, the transactions with the same ``position >> n`` become one.
        halvings = np.zeros(len(counts), np.int64)
        remaining = counts.copy()
        while len(over := np.flatnonzero((counts > most) & (remaining > max(1, most // 2)))):
            halvings[over] += 1
            remaining[over] = (remaining[over] + 1) // 2
        indexes = self.indexes
        position = np.arange(len(indexes)) - (np.cumsum(counts) - counts)[indexes]
        block = position >> halvings[indexes]
        first_tx = self.columns[_FIRST_TX, starts_of_runs(indexes, block)]
        self.columns = self.columns[:, ends_of_runs(indexes) | ends_of_runs(block)]
        self.columns[_FIRST_TX] = first_tx


def sorted_by_shape(columns: Ints) -> Ints:
    """The columns sorted by shape; those of one shape keep their order."""
    return columns[:, np.argsort(columns[_INDEX], kind="stable")]
