"""``TxnStore``: the pending transactions of all shapes of a group, of which a micro-batch takes out those it reaches.

Of a shape that has many, because its writer is out, the first ones are kept packed, apart from the others. A
micro-batch without a flush for the shape reads none of them.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from flushtracker.tracking.packed_columns import Bools, Ints, cut_off, pack_ints, unpack_ints
from flushtracker.tracking.pending_txns import COUNT, NO_HEADS, PendingTxns

MANY: Final = 32
"""More pending transactions of a shape than this are packed."""

_HEAD: Final = 6


class _Queue(NamedTuple):
    """The first transactions of one shape, packed, after their heads, which are those of :meth:`PendingTxns.heads`."""

    first_tx: int
    sent_tx: int
    sent_op: int
    length: int
    packed: bytes


class TxnStore:
    """Transactions by shape; a shape is its number in the group, ``slot``."""

    __slots__ = ("_apart", "_runs")

    def __init__(self) -> None:
        self._runs: list[Ints] = []
        """Columns of :class:`PendingTxns`, in no order of shapes, but a shape's in that of commits. Taken: slot -1."""
        self._apart: dict[int, _Queue] = {}

    def take(self, slots: Ints, heads: Ints, *, parts: Ints, whole: Bools, most: int) -> PendingTxns:
        """Take out the transactions of some of the shapes ``slots``, sorted; ``heads`` says what each has.

        Those are taken that ``whole`` marks, and those that could get more than ``most`` with the ``parts`` that will
        be added, or more than :data:`MANY` that are not packed. The result numbers the shapes by their places in
        ``slots``. What the others have stays here, and what is added to them comes after it.
        """
        counts = heads[COUNT]
        is_taken = whole | (counts + parts > most) | (counts - self._packed_counts(slots) + parts > MANY)
        txns = PendingTxns(behind=np.where(is_taken, NO_HEADS, heads))
        taken = np.flatnonzero(is_taken & (counts > 0))
        if len(taken):
            # Sorting is stable: of each shape, those that were packed stay the first.
            pieces = [*self._take_packed(slots[taken], taken), *self._take_runs(slots[taken], taken)]
            joined = np.concatenate(pieces, axis=1)
            txns.columns = joined[:, np.argsort(joined[0], kind="stable")]
        return txns

    def _take_packed(self, slots: Ints, places: Ints) -> Iterator[Ints]:
        """Take the packed transactions of ``slots``; their numbers are then ``places``."""
        for slot, place in zip(slots.tolist(), places.tolist(), strict=True) if self._apart else ():
            queue = self._apart.pop(slot, None)
            if queue is not None:
                yield _unpack_queue(place, queue)

    def _take_runs(self, slots: Ints, places: Ints) -> Iterator[Ints]:
        """Take the other transactions of ``slots``."""
        # The last is for what was taken before, and for greater ones.
        place_of = np.full(int(slots[-1]) + 2, -1)
        place_of[slots] = places
        for run in self._runs:
            found_at = place_of[np.minimum(run[0], len(place_of) - 1)]
            found = np.flatnonzero(found_at >= 0)
            yield np.concatenate([found_at[np.newaxis, found], run[1:, found]])
            run[0, found] = -1

    def _packed_counts(self, slots: Ints) -> Ints:
        """How many transactions of each of ``slots`` are packed."""
        if not self._apart:
            return np.zeros(len(slots), np.int64)
        queues = map(self._apart.get, slots.tolist())
        return np.array([0 if queue is None else queue.length for queue in queues], np.int64)

    def put(self, txns: PendingTxns, slots: Ints) -> None:
        """Put transactions back, or others of the shapes ``slots``; each shape's are after those that are here."""
        counts = txns.counts(len(slots))
        # Those of a shape that has others here stay behind them.
        is_packed = counts > MANY if txns.behind is None else (counts > MANY) & (txns.behind[COUNT] == 0)
        starts = np.cumsum(counts) - counts
        for place in np.flatnonzero(is_packed).tolist():
            first = int(starts[place])
            self._apart[int(slots[place])] = _pack_queue(txns.columns[:, first : first + int(counts[place])])
        txns.keep(~is_packed[txns.slots])
        txns.columns[0] = slots[txns.slots]
        self._runs.append(txns.columns)
        # Each run is more than twice as long as the next, so that a transaction is moved seldom.
        while len(self._runs) > 1 and self._runs[-2].shape[1] <= 2 * self._runs[-1].shape[1]:
            last = self._runs.pop()
            self._runs[-1] = _kept(np.concatenate([self._runs[-1], last], axis=1))

    def heads(self, shapes: int) -> Ints:
        """See :meth:`PendingTxns.heads`."""
        behind = np.repeat(NO_HEADS, shapes, axis=1)
        if self._apart:
            behind[:, list(self._apart)] = np.array([queue[:-1] for queue in self._apart.values()], np.int64).T
        joined = self._joined()
        return PendingTxns(joined[:, np.argsort(joined[0], kind="stable")], behind).heads(shapes)

    def pack(self, numbers: Ints) -> bytes:
        """The transactions as bytes, the inverse of :meth:`unpack`; ``numbers`` has the new number of each shape."""
        rows = [(numbers[slot], *queue[:-1], len(queue.packed)) for slot, queue in self._apart.items()]
        heads = pack_ints(np.array(rows, np.int64).reshape(-1, _HEAD).T)
        joined = self._joined()
        slots = numbers[joined[0]]
        order = np.argsort(slots, kind="stable")
        counts = np.bincount(slots, minlength=int(numbers.max(initial=-1)) + 1).astype(np.int64)
        others = _pack_columns(joined[:, order])
        return b"".join([pack_ints([counts]), others, heads, *[queue.packed for queue in self._apart.values()]])

    @classmethod
    def unpack(cls, packed: bytes, start: int) -> tuple["TxnStore", int]:
        """Read the output of :meth:`pack`, which is at ``start``; also return where it ends."""
        store = cls()
        (counts,), start = unpack_ints(packed, start, 1)
        columns, start = _unpack_columns(packed, start)
        store._runs = [np.concatenate([np.repeat(np.arange(len(counts)), counts)[np.newaxis], columns])]
        heads, end = unpack_ints(packed, start, _HEAD)
        for slot, first_tx, sent_tx, sent_op, length, size in heads.T.tolist():
            start, end = end, end + size
            store._apart[slot] = _Queue(first_tx, sent_tx, sent_op, length, packed[start:end])
        if end > len(packed):
            raise cut_off()
        return store, end

    def _joined(self) -> Ints:
        """Those that are not packed, of a shape in the order of their commits, in one."""
        return _kept(np.concatenate([PendingTxns().columns, *self._runs], axis=1))


def _kept(columns: Ints) -> Ints:
    """Those that have not been taken."""
    is_kept = columns[0] >= 0
    return columns if is_kept.all() else columns[:, is_kept]


def _pack_queue(columns: Ints) -> _Queue:
    _, first_tx, tx, last_op, op = columns
    return _Queue(int(first_tx[0]), int(tx[-1]), int(max(last_op[-1], op[-1])), len(tx), _pack_columns(columns))


def _unpack_queue(slot: int, queue: _Queue) -> Ints:
    columns, _ = _unpack_columns(queue.packed, 0)
    return np.concatenate([np.full((1, columns.shape[1]), slot), columns])


def _pack_columns(columns: Ints) -> bytes:
    _, first_tx, tx, last_op, op = columns
    return pack_ints([tx, tx - first_tx, last_op, op])


def _unpack_columns(packed: bytes, start: int) -> tuple[Ints, int]:
    (tx, span, last_op, op), end = unpack_ints(packed, start, 4)
    return np.stack([tx - span, tx, last_op, op]), end
