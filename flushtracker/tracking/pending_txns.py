"""``PendingTxns``: the committed transactions that the shapes of a group have not flushed, as columns of numbers.

There is no object for a transaction. Those of a shape that has many, because its writer is out, are stored apart, and a
micro-batch that does not reach the shape reads no more of them than the head.
"""

from typing import Final, NamedTuple

import numpy as np

from flushtracker.tracking.offset_columns import OffsetColumns, ends_of_runs, starts_of_runs
from flushtracker.tracking.packed_columns import Bools, Ints, cut_off, pack_ints, unpack_ints

MANY: Final = 128
"""A shape with more pending transactions than this has them stored apart."""

_SLOT, _FIRST_TX, _TX, _LAST_OP, _OP = range(5)
_ROWS: Final = 5


class _Queue(NamedTuple):
    """The transactions of one shape, packed: how far it was sent with the last of them, and where the first begins."""

    first_tx: int
    sent_tx: int
    sent_op: int
    packed: bytes


class PendingTxns:
    """Transactions by shape, and of each shape in the order of their commits; a shape is its number, ``slot``.

    ``columns`` has a row each for the slot; the commit LSN of the first of the transactions that were merged into this
    one, else its own; its commit LSN; the last operation that the shape writes for it; and its boundary's. An update
    that splits is written one past the boundary. It lacks the shapes that are stored apart, until :meth:`bring`.
    """

    __slots__ = ("_apart", "columns")

    def __init__(self, columns: Ints | None = None) -> None:
        self.columns = np.empty((_ROWS, 0), np.int64) if columns is None else columns
        self._apart: dict[int, _Queue] = {}

    @property
    def slots(self) -> Ints:
        slots: Ints = self.columns[_SLOT]
        return slots

    @property
    def last_offsets(self) -> OffsetColumns:
        """The last offset that the shape writes for each."""
        return self.columns[_TX], self.columns[_LAST_OP]

    def bring(self, slots: Ints) -> None:
        """Have the transactions of these shapes in ``columns``."""
        if self._apart:
            brought = [_unpack_queue(slot, self._apart.pop(slot)) for slot in self._apart.keys() & set(slots.tolist())]
            if brought:
                self._extend(*brought)

    def put_apart(self, shapes: int) -> None:
        """Store the transactions of the shapes that have many apart again."""
        counts = self.counts(shapes)
        if not (counts > MANY).any():
            return
        starts = np.cumsum(counts) - counts
        for slot in np.flatnonzero(counts > MANY).tolist():
            first = int(starts[slot])
            self._apart[slot] = _pack_queue(self.columns[:, first : first + int(counts[slot])])
        self.keep(counts[self.slots] <= MANY)

    def sent_offsets(self) -> OffsetColumns:
        """How far the shapes were sent."""
        tx, op = self.columns[_TX], np.maximum(self.columns[_LAST_OP], self.columns[_OP])
        apart = np.array([(queue.sent_tx, queue.sent_op) for queue in self._apart.values()], np.int64).reshape(-1, 2)
        return np.concatenate([tx, apart[:, 0]]), np.concatenate([op, apart[:, 1]])

    def first_of_each(self) -> tuple[Ints, Ints]:
        """The shapes that have transactions, and the commit LSN of the first of each."""
        first = starts_of_runs(self.slots)
        apart = np.array([(slot, queue.first_tx) for slot, queue in self._apart.items()], np.int64).reshape(-1, 2)
        slots, first_tx = self.columns[_SLOT, first], self.columns[_FIRST_TX, first]
        return np.concatenate([slots, apart[:, 0]]), np.concatenate([first_tx, apart[:, 1]])

    def counts(self, shapes: int) -> Ints:
        """How many each of ``shapes`` shapes has in ``columns``."""
        return np.bincount(self.slots, minlength=shapes).astype(np.int64)

    def exist(self, shapes: int) -> Bools:
        """Which of ``shapes`` shapes have any."""
        found = np.zeros(shapes, np.bool_)
        found[self.slots] = True
        found[list(self._apart)] = True
        return found

    def add(self, slots: Ints, last_offsets: OffsetColumns, boundary_ops: Ints) -> None:
        """Add transactions, each after all others of its shape, and in order. O(all)."""
        tx, last_ops = last_offsets
        self._extend(np.stack([slots, tx, tx, last_ops, boundary_ops]))

    def keep(self, kept: Bools) -> None:
        """Drop the others."""
        self.columns = self.columns[:, kept]

    def renumber(self, slots: Ints) -> None:
        """Give each shape the number that ``slots`` has for it, in the same order."""
        self.columns[_SLOT] = slots[self.columns[_SLOT]]
        self._apart = {int(slots[slot]): queue for slot, queue in self._apart.items()}

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
        rows = [(slot, *queue[:3], len(queue.packed)) for slot, queue in self._apart.items()]
        heads = pack_ints(np.array(rows, np.int64).reshape(-1, 5).T)
        queues = [queue.packed for queue in self._apart.values()]
        return b"".join([pack_ints([self.counts(shapes)]), _pack_columns(self.columns), heads, *queues])

    @classmethod
    def unpack(cls, packed: bytes, start: int) -> tuple["PendingTxns", int]:
        """Read the output of :meth:`pack`, which is at ``start``; also return where it ends."""
        (counts,), start = unpack_ints(packed, start, 1)
        columns, start = _unpack_columns(packed, start)
        txns = cls(np.concatenate([np.repeat(np.arange(len(counts)), counts)[np.newaxis], columns]))
        heads, end = unpack_ints(packed, start, 5)
        for slot, first_tx, sent_tx, sent_op, size in heads.T.tolist():
            start, end = end, end + size
            txns._apart[slot] = _Queue(first_tx, sent_tx, sent_op, packed[start:end])
        if end > len(packed):
            raise cut_off()
        return txns, end

    def _extend(self, *columns: Ints) -> None:
        extended = np.concatenate([self.columns, *columns], axis=1)
        self.columns = extended[:, np.argsort(extended[_SLOT], kind="stable")]


def _pack_queue(columns: Ints) -> _Queue:
    _, first_tx, tx, last_op, op = columns
    return _Queue(int(first_tx[0]), int(tx[-1]), int(max(last_op[-1], op[-1])), _pack_columns(columns))


def _unpack_queue(slot: int, queue: _Queue) -> Ints:
    columns, _ = _unpack_columns(queue.packed, 0)
    return np.concatenate([np.full((1, columns.shape[1]), slot), columns])


def _pack_columns(columns: Ints) -> bytes:
    _, first_tx, tx, last_op, op = columns
    return pack_ints([tx, tx - first_tx, last_op, op])


def _unpack_columns(packed: bytes, start: int) -> tuple[Ints, int]:
    (tx, span, last_op, op), end = unpack_ints(packed, start, 4)
    return np.stack([tx - span, tx, last_op, op]), end
