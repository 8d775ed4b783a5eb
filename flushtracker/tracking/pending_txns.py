"""``PendingTxns``: the committed transactions that the shapes of a group have not flushed, as columns of numbers.

A stalled shape has thousands, and each micro-batch goes through all of its group: so there is no object for any.
"""

from typing import Final

import numpy as np

from flushtracker.tracking.offset_columns import OffsetColumns, ends_of_runs, starts_of_runs
from flushtracker.tracking.packed_columns import Bools, Ints, pack_ints, unpack_ints

_SLOT, _FIRST_TX, _TX, _LAST_OP, _OP = range(5)
_ROWS: Final = 5


class PendingTxns:
    """Transactions by shape, and of each shape in the order of their commits; a shape is its number, ``slot``.

    ``columns`` has a row each for the slot; the commit LSN of the first of the transactions that were merged into this
    one, else its own; its commit LSN; the last operation that the shape writes for it; and its boundary's. An update
    that splits is written one past the boundary.
    """

    __slots__ = ("columns",)

    def __init__(self, columns: Ints | None = None) -> None:
        self.columns = np.empty((_ROWS, 0), np.int64) if columns is None else columns

    def __len__(self) -> int:
        return int(self.columns.shape[1])

    @property
    def slots(self) -> Ints:
        slots: Ints = self.columns[_SLOT]
        return slots

    @property
    def last_offsets(self) -> OffsetColumns:
        """The last offset that the shape writes for each."""
        return self.columns[_TX], self.columns[_LAST_OP]

    def sent_offsets(self) -> OffsetColumns:
        """How far the shape was sent with each."""
        return self.columns[_TX], np.maximum(self.columns[_LAST_OP], self.columns[_OP])

    def first_of_each(self) -> tuple[Ints, Ints]:
        """The shapes that have transactions, and the commit LSN of the first of each."""
        first = starts_of_runs(self.slots)
        return self.columns[_SLOT, first], self.columns[_FIRST_TX, first]

    def counts(self, shapes: int) -> Ints:
        """How many each of ``shapes`` shapes has."""
        return np.bincount(self.slots, minlength=shapes).astype(np.int64)

    def add(self, slots: Ints, last_offsets: OffsetColumns, boundary_ops: Ints) -> None:
        """Add transactions, each after all others of its shape, and in order. O(all)."""
        tx, last_ops = last_offsets
        columns = np.concatenate([self.columns, np.stack([slots, tx, tx, last_ops, boundary_ops])], axis=1)
        self.columns = columns[:, np.argsort(columns[_SLOT], kind="stable")]

    def keep(self, kept: Bools) -> None:
        """Drop the others."""
        self.columns = self.columns[:, kept]

    def renumber(self, slots: Ints) -> None:
        """Give each shape the number that ``slots`` has for it, in the same order."""
        self.columns[_SLOT] = slots[self.columns[_SLOT]]

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

    def pack(self, shapes: int) -> bytes:
        """The transactions of ``shapes`` shapes as bytes; the inverse of :meth:`unpack`."""
        _, first_tx, tx, last_op, op = self.columns
        return pack_ints([self.counts(shapes)]) + pack_ints([tx, tx - first_tx, last_op, op])

    @classmethod
    def unpack(cls, packed: bytes, start: int) -> tuple["PendingTxns", int]:
        """Read the output of :meth:`pack`, which is at ``start``; also return where it ends."""
        (counts,), start = unpack_ints(packed, start, 1)
        (tx, span, last_op, op), end = unpack_ints(packed, start, 4)
        return cls(np.stack([np.repeat(np.arange(len(counts)), counts), tx - span, tx, last_op, op])), end
