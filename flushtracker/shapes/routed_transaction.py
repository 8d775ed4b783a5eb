"""The router's open transaction, and the check that a fragment continues it.

A transaction's fragments arrive in order, starting with its first, and no other transaction's fragments in between.
Anything else is an error, never a guess.
"""

from dataclasses import dataclass, field
from typing import Final

from flushtracker.errors import GapError
from flushtracker.shapes.truncation import Truncation
from flushtracker.wal.changes import TransactionFragment
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.lsn import format_lsn

_REMEDY: Final = "reconnect, so that the server resends the transaction from its start"


@dataclass(slots=True)
class RoutedTransaction:
    """A transaction routed up to ``last_log_offset``: the shapes that take part, and those among them removed since."""

    xid: int
    lsn: int
    last_log_offset: LogOffset
    shapes: set[str] = field(default_factory=set)
    removed: dict[str, str] = field(default_factory=dict)
    """The writer of each removed shape; its next incarnation may have another."""
    truncations: dict[str, Truncation] = field(default_factory=dict)
    """For each shape with partitions, which of them the transaction has truncated."""

    def __str__(self) -> str:
        return f"transaction {self.xid} at {format_lsn(self.lsn)}, routed up to {self.last_log_offset}"


def continued_transaction(
    current: RoutedTransaction | None, fragment: TransactionFragment, routed_up_to: LogOffset | None
) -> RoutedTransaction | None:
    """The transaction that ``fragment`` belongs to, not yet updated with it; ``None`` for a keepalive.

    ``current`` is the open transaction, and ``routed_up_to`` the greatest offset routed so far, if any.

    Raises:
        GapError: the fragment does not follow the previous one.
    """
    if fragment.xid is None:
        _check_keepalive(current, fragment)
        return None
    if current is None:
        if not fragment.has_begin:
            last = "nothing was routed before" if routed_up_to is None else f"the last offset routed was {routed_up_to}"
            raise GapError(f"{_subject(fragment)} is not its first, but no transaction is open and {last}; {_REMEDY}")
        return RoutedTransaction(fragment.xid, fragment.lsn, LogOffset.just_before(fragment.lsn))
    if fragment.has_begin or (fragment.xid, fragment.lsn) != (current.xid, current.lsn):
        relation = "begins inside" if fragment.has_begin else "does not belong to"
        raise GapError(f"{_subject(fragment)} {relation} the open {current}; {_REMEDY}")
    if fragment.last_log_offset <= current.last_log_offset:
        raise GapError(f"{_subject(fragment)} is out of order in the open {current}; {_REMEDY}")
    return current


def _check_keepalive(current: RoutedTransaction | None, keepalive: TransactionFragment) -> None:
    if current is not None:
        raise GapError(f"keepalive {keepalive.last_log_offset} arrived inside the open {current}; {_REMEDY}")
    if keepalive.changes or keepalive.commit is None:
        raise GapError(f"keepalive {keepalive.last_log_offset} has changes or no commit; {_REMEDY}")


def _subject(fragment: TransactionFragment) -> str:
    return f"fragment {fragment.last_log_offset} of transaction {fragment.xid}"
