"""``ChainLinks``: one source's fragments in a micro-batch, as columns."""

from collections.abc import Iterable
from typing import ClassVar, NamedTuple

import numpy as np

from flushtracker.tracking.packed_columns import Ints, LabelledColumns
from flushtracker.wal.log_offset import OP_INFINITY, LogOffset


class Link(NamedTuple):
    """The fields of a fragment that the chain needs. ``place`` is its file, or topic, partition and Kafka offset."""

    follows: LogOffset
    last_log_offset: LogOffset
    start: bool
    is_commit: bool
    place: str

    @property
    def predecessor(self) -> LogOffset:
        """The offset that the chain must have reached before this fragment.

        A start, and the first fragment of a transaction, follow the whole of the one before.
        """
        is_inside = not self.start and self.follows.tx_offset == self.last_log_offset.tx_offset
        return self.follows if is_inside else LogOffset.last_of(self.follows.tx_offset)


class ChainLinks(LabelledColumns):
    """Links in any order, labelled with their places.

    The rows are the numbers of ``follows`` and ``last_log_offset``, and 0 or 1 for ``start`` and ``is_commit``.

    >>> link = Link(LogOffset(99, 0), LogOffset(200, 4), start=True, is_commit=False, place="1.jsonl")
    >>> ChainLinks.unpack(ChainLinks.of([link]).pack())[0] == link
    True
    """

    __slots__ = ()
    rows: ClassVar = 6

    @classmethod
    def of(cls, links: Iterable[Link]) -> "ChainLinks":
        links = list(links)
        rows = [(*link.follows, *link.last_log_offset, link.start, link.is_commit) for link in links]
        return cls([link.place for link in links], np.array(rows, np.int64).reshape(-1, cls.rows).T)

    def __getitem__(self, index: int) -> Link:
        tx, op, last_tx, last_op, start, is_commit = self.numbers[:, index].tolist()
        return Link(LogOffset(tx, op), LogOffset(last_tx, last_op), bool(start), bool(is_commit), self.labels[index])

    def first(self) -> int:
        """The index of the link that follows the least offset; among equals one with ``start``."""
        tx, op, _, _, start, _ = self.numbers
        return int(np.lexsort((1 - start, op, tx))[0])

    def predecessors(self) -> tuple[Ints, Ints]:
        """For each link, the offset that the chain must have reached before it."""
        tx, op, last_tx, _, start, _ = self.numbers
        return tx, np.where((start == 1) | (tx != last_tx), OP_INFINITY, op)

    def reached(self) -> tuple[Ints, Ints]:
        """For each link, how far the stream has been read after it."""
        _, _, tx, op, _, is_commit = self.numbers
        return tx, np.where(is_commit == 1, OP_INFINITY, op)

    def commits(self) -> tuple[Ints, Ints]:
        """The offsets at which transactions end."""
        _, _, tx, op, _, is_commit = self.numbers
        return tx[is_commit == 1], op[is_commit == 1]
