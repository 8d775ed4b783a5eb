"""``TxnStore``: the pending transactions of all shapes of a group, of which a micro-batch takes out those it reaches.

Those of a shape that has many, because its writer is out, are kept packed, apart from the others, and a micro-batch
that does not reach the shape reads no more of them than the head.
"""

from typing import Final, NamedTuple

import numpy as np

from flushtracker.tracking.packed_columns import Ints, cut_off, pack_ints, unpack_ints
from flushtracker.tracking.pending_txns import PendingTxns

MANY: Final = 128
"""A shape with more pending transactions than this has them kept apart."""

_MOST_RUNS: Final = 8
_HEAD: Final = 5


class _Queue(NamedTuple):
    """The transactions of one shape, packed: the commit LSN of the first, and how far the shape was sent."""

    first_tx: int
    sent_tx: int
    sent_op: int
    packed: bytes


class TxnStore:
    """Transactions by shape; a shape is its number in the group, ``slot``."""

    __slots__ = ("_apart", "_runs")

    def __init__(self) -> None:
        self._runs: list[Ints] = []
        """Columns of :class:`PendingTxns`, in no order of shapes, but a shape's are together. Taken ones: slot -1."""
        self._apart: dict[int, _Queue] = {}

    def take(self, slots: Ints, shapes: int) -> PendingTxns:
        """Take out the transactions of the shapes ``slots``, sorted; they are numbered by their places in it."""
        # The last is for what was taken before.
        place = np.full(shapes + 1, -1)
        place[slots] = np.arange(len(slots))
        taken = [PendingTxns().columns]
        for run in self._runs:
            places = place[run[0]]
            found = np.flatnonzero(places >= 0)
            taken.append(np.concatenate([places[np.newaxis, found], run[1:, found]]))
            run[0, found] = -1
        queues = self._apart.keys() & set(slots.tolist()) if self._apart else ()
        taken += [_unpack_queue(int(place[slot]), self._apart.pop(slot)) for slot in queues]
        joined = np.concatenate(taken, axis=1)
        return PendingTxns(joined[:, np.argsort(joined[0], kind="stable")])

    def put(self, txns: PendingTxns, slots: Ints) -> None:
        """Put transactions back, or others of the same shapes, which have none here."""
        counts = txns.counts(len(slots))
        starts = np.cumsum(counts) - counts
        for place in np.flatnonzero(counts > MANY).tolist():
            first = int(starts[place])
            self._apart[int(slots[place])] = _pack_queue(txns.columns[:, first : first + int(counts[place])])
        txns.keep(counts[txns.slots] <= MANY)
        txns.columns[0] = slots[txns.slots]
        self._runs.append(txns.columns)
        if len(self._runs) > _MOST_RUNS:
            self._runs = [self._joined()]

    def heads(self) -> tuple[Ints, Ints]:
        """See :meth:`PendingTxns.heads`."""
        slots, heads = PendingTxns(self._joined()).heads()
        apart = np.array([queue[:3] for queue in self._apart.values()], np.int64).reshape(-1, 3).T
        return np.concatenate([slots, list(self._apart)]).astype(np.int64), np.concatenate([heads, apart], axis=1)

    def pack(self, numbers: Ints) -> bytes:
        """The transactions as bytes, the inverse of :meth:`unpack`; ``numbers`` has the new number of each shape."""
        rows = [(numbers[slot], *queue[:3], len(queue.packed)) for slot, queue in self._apart.items()]
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
        for slot, first_tx, sent_tx, sent_op, size in heads.T.tolist():
            start, end = end, end + size
            store._apart[slot] = _Queue(first_tx, sent_tx, sent_op, packed[start:end])
        if end > len(packed):
            raise cut_off()
        return store, end

    def _joined(self) -> Ints:
        """Those that are not kept apart, in one."""
        joined = np.concatenate([PendingTxns().columns, *self._runs], axis=1)
        return joined[:, joined[0] >= 0]


def _pack_queue(columns: Ints) -> _Queue:
    _, head = PendingTxns(columns).heads()
    first_tx, sent_tx, sent_op = head[:, 0].tolist()
    return _Queue(first_tx, sent_tx, sent_op, _pack_columns(columns))


def _unpack_queue(slot: int, queue: _Queue) -> Ints:
    columns, _ = _unpack_columns(queue.packed, 0)
    return np.concatenate([np.full((1, columns.shape[1]), slot), columns])


def _pack_columns(columns: Ints) -> bytes:
    _, first_tx, tx, last_op, op = columns
    return pack_ints([tx, tx - first_tx, last_op, op])


def _unpack_columns(packed: bytes, start: int) -> tuple[Ints, int]:
    (tx, span, last_op, op), end = unpack_ints(packed, start, 4)
    return np.stack([tx - span, tx, last_op, op]), end
