"""The transaction that the router is in the middle of, and whether a fragment goes on with it.

Fragments follow each other: a transaction's in order, from its first, and without another's between them. What does
not is an error, never a guess.
"""

from dataclasses import dataclass, field
from typing import Final

from flushtracker.errors import GapError
from flushtracker.wal.changes import TableName, TransactionFragment
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.lsn import format_lsn

_REMEDY: Final = "connect again, so that the server sends the transaction from its start"


@dataclass(slots=True)
class OpenTransaction:
    """A transaction up to ``last_log_offset``: which shapes took part, and which of those were removed since."""

    xid: int
    lsn: int
    last_log_offset: LogOffset
    shapes: set[str] = field(default_factory=set)
    removed: set[str] = field(default_factory=set)
    empty: dict[str, frozenset[TableName]] = field(default_factory=dict)
    """For each shape with partitions, those that the transaction has emptied."""

    def __str__(self) -> str:
        return f"transaction {self.xid} at {format_lsn(self.lsn)}, routed up to {self.last_log_offset}"


def followed_transaction(
    current: OpenTransaction | None, fragment: TransactionFragment, routed_up_to: LogOffset | None
) -> OpenTransaction | None:
    """The transaction that ``fragment`` belongs to, not yet changed by it; ``None`` for a keepalive.

    ``current`` is the one that is open, and ``routed_up_to`` the greatest offset that was routed, if any.

    Raises:
        GapError: the fragment does not follow what came before.
    """
    if fragment.xid is None:
        _check_keepalive(current, fragment)
        return None
    if current is None:
        if not fragment.has_begin:
            last = "nothing was routed before" if routed_up_to is None else f"the last was {routed_up_to}"
            raise GapError(f"{_subject(fragment)} is not its first, but no transaction is open and {last}; {_REMEDY}")
        return OpenTransaction(fragment.xid, fragment.lsn, LogOffset.just_before(fragment.lsn))
    if fragment.has_begin or (fragment.xid, fragment.lsn) != (current.xid, current.lsn):
        verb = " begins" if fragment.has_begin else ""
        raise GapError(f"{_subject(fragment)}{verb}, but open is {current}; {_REMEDY}")
    if fragment.last_log_offset <= current.last_log_offset:
        raise GapError(f"{_subject(fragment)} is out of order, open is {current}; {_REMEDY}")
    return current


def _check_keepalive(current: OpenTransaction | None, keepalive: TransactionFragment) -> None:
    if current is not None:
        raise GapError(f"keepalive {keepalive.last_log_offset} came inside {current}; {_REMEDY}")
    if keepalive.changes or keepalive.commit is None:
        raise GapError(f"keepalive {keepalive.last_log_offset} has changes or no commit; {_REMEDY}")


def _subject(fragment: TransactionFragment) -> str:
    return f"fragment {fragment.last_log_offset} of transaction {fragment.xid}"
