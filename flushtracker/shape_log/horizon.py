"""Retention: when to fold a shape's log, up to which transaction, and what to keep.

The **horizon** is the shape's last transaction older than the history to keep, as are all before it, by the clock of
the job that wrote them. A fold replaces the log up to the horizon by the rows that the shape had there
(:mod:`flushtracker.shape_log.shape_snapshot`). The horizon's own ``commit`` row stays. A writer continues at the end of
the log, and a reader that is behind the horizon recognizes a transaction that it has not read.

A fold rewrites the rows that it keeps, so it must drop at least as many as it writes. Then each appended row costs at
most one rewritten row, however often a log is folded.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from flushtracker.wal.xid import is_before

_KEPT_ROWS: Final = 2
"""The row that ends a fold, and the horizon's ``commit`` row."""


@dataclass(frozen=True, slots=True)
class OldLog:
    """The log up to ``horizon``: its ``old_rows``, and ``live_rows``, an upper bound of the shape's rows there."""

    horizon: int
    old_rows: int
    live_rows: int

    def is_worth_folding(self, snapshot_lsn: int | None, least_dropped: int) -> bool:
        """Whether a fold drops enough. Never at a horizon below ``snapshot_lsn``, where the rows are unknown.

        >>> OldLog(900, old_rows=5_000, live_rows=200).is_worth_folding(None, 100)
        True
        >>> OldLog(900, old_rows=350, live_rows=200).is_worth_folding(None, 100)
        False
        >>> OldLog(900, old_rows=5_000, live_rows=200).is_worth_folding(901, 100)
        False
        """
        dropped = self.old_rows - self.live_rows - _KEPT_ROWS
        return dropped >= max(self.live_rows, least_dropped) and self.horizon >= (snapshot_lsn or 0)


def last_xid(xids: Iterable[int], before: int | None) -> int:
    """The latest of 32-bit ``xids``, which wrap around; they are in commit order, and ``before`` precedes them.

    >>> last_xid([7, 9, 8], None), last_xid([4294967295, 3, 4294967290], 4294967000)
    (9, 3)
    """
    last = before
    for xid in xids:
        if last is None or is_before(last, xid):
            last = xid
    if last is None:
        raise ValueError("no xids, expected those of the transactions of a fold")
    return last
