"""``ContainedTransactions``: which transactions a snapshot contains, in a form that any program can evaluate.

A transaction's commit LSN and its 32-bit xid, both in the stream, are enough.
"""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from flushtracker.wal.mvcc_snapshot import MvccSnapshot
from flushtracker.wal.xid import XIDS


@dataclass(frozen=True, slots=True)
class ContainedTransactions:
    """All transactions that commit at or below ``lsn``, except those with an xid in one of the ranges ``unseen``.

    ``lsn`` is the end of the WAL after the snapshot was taken: a transaction that commits above it is not in the
    snapshot. ``unseen`` has inclusive ranges of 32-bit xids, ascending: those in progress, and those assigned before
    ``lsn`` was read.

    >>> contained = ContainedTransactions.of(MvccSnapshot.parse("100:105:102"), lsn=900, next_xid=108)
    >>> contained
    ContainedTransactions(lsn=900, unseen=((102, 102), (105, 107)))
    >>> contained.contains(800, 101), contained.contains(800, 102), contained.contains(901, 101)
    (True, False, False)

    Raises:
        ValueError: the ranges are not ascending, or not of 32 bits.
    """

    lsn: int
    unseen: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        is_ascending = all(before[1] < after[0] for before, after in pairwise(self.unseen))
        if not is_ascending or not all(0 <= first <= last < XIDS for first, last in self.unseen):
            raise ValueError(f"unseen is {self.unseen!s:.80}, expected ascending ranges of 32-bit xids")

    @classmethod
    def of(cls, visible: MvccSnapshot, lsn: int, next_xid: int) -> "ContainedTransactions":
        """The transactions that ``visible`` sees. ``next_xid`` (64 bits) was read after ``lsn``.

        So every transaction that commits at or below ``lsn`` has a lower xid.

        Raises:
            ValueError: a later transaction could not be distinguished from an earlier one.
        """
        if not 0 <= next_xid - visible.xmax < XIDS:
            raise ValueError(f"next is {next_xid}, expected {visible.xmax}, xmax, or a little more")
        return cls(lsn, _unseen(visible, next_xid))

    def contains(self, tx_offset: int, xid: int) -> bool:
        """Whether the snapshot's rows have the effects of the transaction that commits at ``tx_offset``.

        ``xid`` has 32 bits, as in the stream. The transaction may be of any age.
        """
        place = bisect_right(self.unseen, (xid, XIDS)) - 1
        is_unseen = place >= 0 and xid <= self.unseen[place][1]
        return 0 < tx_offset <= self.lsn and not is_unseen


def _unseen(visible: MvccSnapshot, next_xid: int) -> tuple[tuple[int, int], ...]:
    """The ranges of :attr:`ContainedTransactions.unseen`: xids in progress, and those from xmax up to ``next_xid``.

    >>> _unseen(MvccSnapshot(2**32 - 3, 2**32 - 1, (2**32 - 3,)), 2**32 + 4)
    ((0, 3), (4294967293, 4294967293), (4294967295, 4294967295))
    """
    spans = [(xid, xid + 1) for xid in visible.xip]
    if next_xid > visible.xmax:
        spans.append((visible.xmax, next_xid))
    return tuple(sorted(part for span in _joined(spans) for part in _with_32_bits(*span)))


def _joined(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Merge adjacent half-open spans, which are ascending."""
    found = list[tuple[int, int]]()
    for first, end in spans:
        begin = found.pop()[0] if found and found[-1][1] == first else first
        found.append((begin, end))
    return found


def _with_32_bits(first: int, end: int) -> list[tuple[int, int]]:
    """The 32-bit xids of a half-open span as inclusive ranges: two if they wrap around."""
    low, high = first % XIDS, (end - 1) % XIDS
    return [(low, high)] if low <= high else [(low, XIDS - 1), (0, high)]
