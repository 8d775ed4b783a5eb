"""``TxnStore``: the pending transactions of all shapes of a group, of which a micro-batch takes out those it reaches.

Of a shape that has many, because its writer is out, the first ones are kept packed, apart from the others. A
micro-batch without a flush for the shape reads no more of them than the head.
"""

from typing import Final, NamedTuple

import numpy as np

from flushtracker.tracking.packed_columns import Bools, Ints, cut_off, pack_ints, unpack_ints
from flushtracker.tracking.pending_txns import NO_HEADS, PendingTxns

MANY: Final = 32
"""More pending transactions of a shape than this are packed."""

_MOST_RUNS: Final = 8
_HEAD: Final = 6


class _Queue(NamedTuple):
    """The first transactions of one shape, packed: their heads, as those of :meth:`PendingTxns.heads`, and number."""

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
        """Columns of :class:`PendingTxns`, in no order of shapes, but a shape's are together. Taken ones: slot -1."""
        self._apart: dict[int, _Queue] = {}

    def take(self, slots: Ints, shapes: int, *, parts: Ints, whole: Bools, most: int) -> PendingTxns:
        """Take out the transactions of some of ``shapes`` shapes: ``slots``, sorted.

        The result numbers them by their places in ``slots``. What is packed stays here, unless ``whole`` marks the
        shape, or the ``parts`` that it will get could be more than ``most`` with what it has, or than :data:`MANY`.
        """
        # The last is for what was taken before.
        place = np.full(shapes + 1, -1)
        place[slots] = np.arange(len(slots))
        taken = [PendingTxns().columns]
        for run in self._runs:
            places = place[run[0]]
            found = np.flatnonzero(places >= 0)
            taken.append(np.concatenate([places[np.newaxis, found], run[1:, found]]))
            run[0, found] = -1
        behind = np.repeat(NO_HEADS, len(slots), axis=1)
        first: list[Ints] = []
        if self._apart:
            more = parts + np.bincount(np.concatenate([each[0] for each in taken]), minlength=len(slots))
            for slot in self._apart.keys() & set(slots.tolist()):
                at, queue = int(place[slot]), self._apart[slot]
                if whole[at] or more[at] > min(MANY, most - queue.length):
                    first.append(_unpack_queue(at, self._apart.pop(slot)))
                else:
                    behind[:, at] = queue[:3]
        # Sorting is stable: of each shape, those that were packed stay the first.
        joined = np.concatenate(first + taken, axis=1)
        return PendingTxns(joined[:, np.argsort(joined[0], kind="stable")], behind)

    def put(self, txns: PendingTxns, slots: Ints) -> None:
        """Put transactions back, or others of the shapes ``slots``."""
        counts = txns.counts(len(slots))
        starts = np.cumsum(counts) - counts
        for place in np.flatnonzero(counts > MANY).tolist():
            slot, first = int(slots[place]), int(starts[place])
            columns = txns.columns[:, first : first + int(counts[place])]
            if slot in self._apart:
                columns = np.concatenate([_unpack_queue(place, self._apart[slot]), columns], axis=1)
            self._apart[slot] = _pack_queue(columns)
        txns.keep(counts[txns.slots] <= MANY)
        txns.columns[0] = slots[txns.slots]
        self._runs.append(txns.columns)
        if len(self._runs) > _MOST_RUNS:
            self._runs = [self._joined()]

    def heads(self, shapes: int) -> Ints:
        """See :meth:`PendingTxns.heads`."""
        behind = np.repeat(NO_HEADS, shapes, axis=1)
        if self._apart:
            behind[:, list(self._apart)] = np.array([queue[:3] for queue in self._apart.values()], np.int64).T
        return PendingTxns(self._joined(), behind).heads(shapes)

    def counts(self, slots: Ints, shapes: int) -> Ints:
        """How many transactions each of ``slots`` has, of ``shapes`` shapes; merged ones count as one."""
        # The last is for what was taken. Most transactions are passed over here, at little cost.
        is_wanted = np.zeros(shapes + 1, np.bool_)
        is_wanted[slots] = True
        found = [run[0, is_wanted[run[0]]] for run in self._runs]
        counts: Ints = np.bincount(np.concatenate([np.arange(0), *found]), minlength=shapes)[slots]
        for place, slot in enumerate(slots.tolist()):
            if slot in self._apart:
                counts[place] += self._apart[slot].length
        return counts

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
        """Those that are not kept apart, in one."""
        joined = np.concatenate([PendingTxns().columns, *self._runs], axis=1)
        return joined[:, joined[0] >= 0]


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
