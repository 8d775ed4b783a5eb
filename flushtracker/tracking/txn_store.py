"""``TxnStore``: the pending transactions of all shapes of a group, from which a micro-batch takes those that it needs.

The cost of a micro-batch depends on the shapes that it reaches, not on everything pending. So a shape's transactions
are in two places, the earlier ones first:

- ``_apart``: those of a shape that has many, because its writer is down, packed as bytes. A micro-batch without a flush
  or a removal for the shape does not read them; their heads are enough for a report.
- ``_runs``: all others, as arrays of the rows of :class:`PendingTxns`. :meth:`TxnStore.put` appends an array, and
  merges it with the one before unless that is more than twice as long. So a transaction is moved O(log n) times.
  :meth:`TxnStore.take` marks what it takes with index -1, which the next merge drops.

A shape's ``index`` is that in the group. The transactions taken out number the shapes from 0, by position among those
that the micro-batch reaches.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from flushtracker.tracking.packed_columns import Bools, Ints, cut_off, pack_ints, unpack_ints
from flushtracker.tracking.pending_txns import COUNT, NO_HEADS, NO_TXNS, PendingTxns, sorted_by_shape

MANY: Final = 32
"""A shape's transactions are packed if it has more than this."""

_MOST: Final = 1 << 32
"""No column has more numbers than this, so the sum of the counts fits 63 bits."""

_QUEUE_ROWS: Final = 6
"""The numbers stored for each queue: its shape's index, the four heads, and the size in bytes."""


class _Queue(NamedTuple):
    """The first transactions of one shape, packed, and their heads (:meth:`PendingTxns.heads`)."""

    first_tx: int
    sent_tx: int
    sent_op: int
    length: int
    packed: bytes


class TxnStore:
    """Transactions by shape: the first ones of some in ``_apart``, the later ones in ``_runs``."""

    __slots__ = ("_apart", "_runs")

    def __init__(self) -> None:
        self._runs: list[Ints] = []
        """Not sorted by shape, but each shape's transactions are in commit order, within a run and across runs."""
        self._apart: dict[int, _Queue] = {}

    def take(self, indexes: Ints, heads: Ints, *, parts: Ints, whole: Bools, most: int) -> PendingTxns:
        """Take out all transactions of some of the shapes ``indexes``, which are sorted; ``heads`` summarizes those of
        each.

        A shape is taken if ``whole`` marks it, or if it could exceed ``most`` with the ``parts`` to be added. So is one
        that would have more than :data:`MANY` that are not packed. The others' transactions stay here; new ones are
        appended later.
        """
        counts = heads[COUNT]
        is_taken = whole | (counts + parts > most) | (counts - self._packed_counts(indexes) + parts > MANY)
        txns = PendingTxns(np.where(is_taken, NO_HEADS, heads))
        taken = np.flatnonzero(is_taken & (counts > 0))
        if len(taken):
            # The sort is stable, so a shape's packed transactions stay first.
            pieces = [*self._take_packed(indexes[taken], taken), *self._take_runs(indexes[taken], taken)]
            txns.columns = sorted_by_shape(np.concatenate(pieces, axis=1))
        return txns

    def _take_packed(self, indexes: Ints, positions: Ints) -> Iterator[Ints]:
        """Take the packed transactions of the shapes ``indexes``, and number the shapes by ``positions``."""
        for index, position in zip(indexes.tolist(), positions.tolist(), strict=True) if self._apart else ():
            queue = self._apart.pop(index, None)
            if queue is not None:
                yield _unpack_queue(position, queue)

    def _take_runs(self, indexes: Ints, positions: Ints) -> Iterator[Ints]:
        """Take the unpacked transactions of these shapes."""
        # The last element, -1, is for greater indexesand for the index -1 of those taken before.
        position_of = np.full(int(indexes[-1]) + 2, -1)
        position_of[indexes] = positions
        for run in self._runs:
            found_at = position_of[np.minimum(run[0], len(position_of) - 1)]
            found = np.flatnonzero(found_at >= 0)
            yield np.concatenate([found_at[np.newaxis, found], run[1:, found]])
            run[0, found] = -1

    def _packed_counts(self, indexes: Ints) -> Ints:
        if not self._apart:
            return np.zeros(len(indexes), np.int64)
        queues = map(self._apart.get, indexes.tolist())
        return np.array([0 if queue is None else queue.length for queue in queues], np.int64)

    def put(self, txns: PendingTxns, indexes: Ints) -> None:
        """Put back transactions of the shapes ``indexes``, each later than all of its shape in the store."""
        counts = txns.counts(len(indexes))
        # Transactions behind others in the store are not packed: a shape has one queue, which comes first.
        is_packed = (counts > MANY) & (txns.behind[COUNT] == 0)
        starts = np.cumsum(counts) - counts
        for position in np.flatnonzero(is_packed).tolist():
            first = int(starts[position])
            self._apart[int(indexes[position])] = _pack_queue(txns.columns[:, first : first + int(counts[position])])
        txns.keep(~is_packed[txns.indexes])
        txns.columns[0] = indexes[txns.indexes]
        self._runs.append(txns.columns)
        while len(self._runs) > 1 and self._runs[-2].shape[1] <= 2 * self._runs[-1].shape[1]:
            last = self._runs.pop()
            self._runs[-1] = _kept(np.concatenate([self._runs[-1], last], axis=1))

    def heads(self, shapes: int) -> Ints:
        behind = np.repeat(NO_HEADS, shapes, axis=1)
        if self._apart:
            behind[:, list(self._apart)] = np.array([queue[:-1] for queue in self._apart.values()], np.int64).T
        return PendingTxns(behind, sorted_by_shape(self._joined())).heads(shapes)

    def pack(self, numbers: Ints) -> bytes:
        """The transactions as bytes, the inverse of :meth:`unpack`; ``numbers`` has the new index of each shape.

        First each shape's count in the runs, and the runs; then the numbers of each queue, and the queues.
        """
        joined = self._joined()
        joined[0] = numbers[joined[0]]
        counts = np.bincount(joined[0], minlength=int(numbers.max(initial=-1)) + 1).astype(np.int64)
        rows = [(numbers[index], *queue[:-1], len(queue.packed)) for index, queue in self._apart.items()]
        queues = pack_ints(np.array(rows, np.int64).reshape(-1, _QUEUE_ROWS).T)
        packed = (queue.packed for queue in self._apart.values())
        return b"".join([pack_ints([counts]), _pack_columns(sorted_by_shape(joined)), queues, *packed])

    @classmethod
    def unpack(cls, packed: bytes, start: int, shapes: int) -> tuple["TxnStore", int]:
        """Read the output of :meth:`pack` at ``start``, for this number of shapes; also return where it ends.

        Raises:
            StateError: the bytes are damaged.
        """
        store = cls()
        (counts,), start = unpack_ints(packed, start, 1, most=shapes)
        if (counts < 0).any() or (counts > _MOST).any():
            raise cut_off()
        columns, start = _unpack_columns(packed, start, int(counts.sum()))
        store._runs = [np.concatenate([np.repeat(np.arange(len(counts)), counts)[np.newaxis], columns])]
        queues, end = unpack_ints(packed, start, _QUEUE_ROWS, most=shapes)
        for index, first_tx, sent_tx, sent_op, length, size in queues.T.tolist():
            if not 0 <= index < shapes or size < 0:
                raise cut_off()
            start, end = end, end + size
            store._apart[index] = _Queue(first_tx, sent_tx, sent_op, length, packed[start:end])
        if end > len(packed):
            raise cut_off()
        return store, end

    def _joined(self) -> Ints:
        """All runs in one new array, without the taken ones."""
        return _kept(np.concatenate([NO_TXNS, *self._runs], axis=1))


def _kept(columns: Ints) -> Ints:
    is_kept = columns[0] >= 0
    return columns if is_kept.all() else columns[:, is_kept]


def _pack_queue(columns: Ints) -> _Queue:
    _, first_tx, tx, last_op, op = columns
    return _Queue(int(first_tx[0]), int(tx[-1]), int(max(last_op[-1], op[-1])), len(tx), _pack_columns(columns))


def _unpack_queue(index: int, queue: _Queue) -> Ints:
    columns, _ = _unpack_columns(queue.packed, 0, queue.length)
    return np.concatenate([np.full((1, columns.shape[1]), index), columns])


def _pack_columns(columns: Ints) -> bytes:
    """The rows but the index. The first commit LSN is stored as its distance to the last, which mostly is 0."""
    _, first_tx, tx, last_op, op = columns
    return pack_ints([tx, tx - first_tx, last_op, op])


def _unpack_columns(packed: bytes, start: int, count: int) -> tuple[Ints, int]:
    (tx, span, last_op, op), end = unpack_ints(packed, start, 4, most=count)
    if len(tx) != count:
        raise cut_off()
    return np.stack([tx - span, tx, last_op, op]), end
