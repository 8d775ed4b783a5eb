"""``MvccSnapshot``: which transactions a PostgreSQL snapshot sees."""

import re
from bisect import bisect_left
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

from flushtracker.wal.xid import XIDS, is_before

"""Lower xids mark rows that every transaction sees."""
_TEXT: Final = re.compile(r"(\d{1,20}):(\d{1,20}):((?:\d{1,20}(?:,\d{1,20})*)?)", re.ASCII)


class CatalogRow(NamedTuple):
    """A version of a catalog row: the object's name, and the 32-bit xid that wrote it, which may be a subtransaction's.

    A frozen row keeps its xid, which is reused after 2**32 transactions.
    """

    name: str
    xid: int


@dataclass(frozen=True, slots=True)
class MvccSnapshot:
    """A snapshot as ``pg_current_snapshot()`` writes it; ids have 64 bits. ``parse`` and ``str`` are inverses.

    When it was taken, all transactions below ``xmin`` had ended, those in ``xip`` (ascending) were in progress, and
    none from ``xmax`` on had ended.

    >>> snapshot = MvccSnapshot.parse("100:105:100,103")
    >>> [snapshot.sees(xid) for xid in (99, 100, 102, 103, 105, 106)]
    [True, False, True, False, False, False]
    >>> str(snapshot)
    '100:105:100,103'

    Raises:
        ValueError: the ids are not in this order.
    """

    xmin: int
    xmax: int
    xip: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        ids = (self.xmin - 1, *self.xip, self.xmax)
        is_ascending = all(one < other for one, other in pairwise(ids))
        if not 0 < self.xmin <= self.xmax < 2**64 or not is_ascending:
            raise ValueError(f"snapshot {self!s:.80} is not of the form xmin:xmax:xid,xid with ascending ids")

    @classmethod
    def parse(cls, text: str) -> "MvccSnapshot":
        """Read ``100:105:100,103``; raises ``ValueError`` on anything else."""
        match = _TEXT.fullmatch(text)
        if match is None:
            raise ValueError(f"snapshot {text!r:.80} is not of the form xmin:xmax:xid,xid")
        return cls(int(match[1]), int(match[2]), tuple(int(xid) for xid in match[3].split(",") if xid))

    def __str__(self) -> str:
        return f"{self.xmin}:{self.xmax}:{','.join(map(str, self.xip))}"

    def sees(self, xid: int) -> bool:
        """Whether the snapshot contains the effects of the top-level transaction ``xid``, unless it was rolled back.

        ``xid`` has 32 bits, as in the stream, and is within 2**31 of ``xmax``: it stands for the 64-bit id nearest to
        that.

        >>> snapshot = MvccSnapshot.parse("4294967290:4294967300:4294967297")
        >>> [snapshot.sees(xid) for xid in (4294967295, 0, 1, 3, 4)]
        [True, True, False, True, False]
        """
        full = self.xmax + (xid - self.xmax + XIDS // 2) % XIDS - XIDS // 2
        if full >= self.xmax:
            return False
        index = bisect_left(self.xip, full)
        return index == len(self.xip) or self.xip[index] != full

    def is_after(self, xid: int) -> bool:
        """Whether every transaction with an xid up to ``xid`` had ended, including the parent of ``xid``.

        Unlike :meth:`sees`, this is right for subtransactions. ``xid`` has 32 bits and is within 2**31 of ``xmin``.

        >>> snapshot = MvccSnapshot.parse("4294967298:4294967310:4294967298")
        >>> [snapshot.is_after(xid) for xid in (4294967295, 1, 2, 3)]
        [True, True, True, False]
        """
        return is_before(xid, self.xmin)
