"""Checks that the server's WAL continues the published history; otherwise acks of one history would confirm another.

Three things can go wrong. Another client advanced the slot, so the changes in between are in no shape. The server was
restored from a backup, and its WAL ends before the published position. Or it was restored and its WAL has grown past
that position since: the positions look right, but belong to other transactions. A resend reveals the last case: the
last published transaction must arrive at the same LSN, with the same id and timestamp, and none may follow it up to the
last ack. Otherwise the history is a different one.
"""

from dataclasses import dataclass

from flushtracker.errors import PostgresError, ReconnectError, SlotError
from flushtracker.wal.lsn import format_lsn

_NEW_EPOCH = (
    "start with --new-epoch to continue from the slot's position under a new source, with which all shapes begin again"
)


def check_positions(source: str, *, wal_lsn: int, confirmed_lsn: int, safe_lsn: int, published_lsn: int | None) -> None:
    """Check a server's positions before the stream is read.

    ``safe_lsn`` is the greatest LSN up to which everything was acknowledged, or committed before the source began.
    ``published_lsn`` is the commit LSN of the last published fragment, if any.

    Raises:
        SlotError: the server was restored, or another client advanced the slot.
    """
    known_lsn = max(safe_lsn, -1 if published_lsn is None else published_lsn)
    if wal_lsn < known_lsn:
        raise SlotError(
            f"source {source}: the server's WAL ends at {format_lsn(wal_lsn)}, but {format_lsn(known_lsn)} was "
            f"published or acknowledged before: it was probably restored from a copy. If so, {_NEW_EPOCH}"
        )
    if confirmed_lsn > safe_lsn + 1:
        raise SlotError(
            f"source {source}: the slot is at {format_lsn(confirmed_lsn)}, but only changes up to "
            f"{format_lsn(max(safe_lsn, 0))} are acknowledged: another client advanced the slot, and the changes in "
            "between may be in no shape. If the ack table was lost or replaced instead, restore it. Otherwise "
            f"{_NEW_EPOCH}"
        )


@dataclass(frozen=True, slots=True)
class TransactionIdentity:
    """What identifies a transaction: its commit LSN, its id, and its commit timestamp as pgoutput sends it."""

    lsn: int
    xid: int
    commit_timestamp: str

    def __str__(self) -> str:
        return f"transaction {self.xid} at {format_lsn(self.lsn)} ({self.commit_timestamp})"


class ResendCheck:
    """Checks that ``last``, the last transaction published, is resent unchanged, unless the slot was confirmed past it.

    No transaction may come between it and ``acknowledged_lsn``, up to which all were published.

    A transaction that only has logical messages is not sent on a connection without them (``has_messages``). So if
    ``last`` does not arrive on one, a connection with messages is tried.
    """

    def __init__(
        self,
        source: str,
        last: TransactionIdentity,
        confirmed_lsn: int,
        acknowledged_lsn: int | None = None,
        *,
        has_messages: bool = True,
    ) -> None:
        self._source = source
        self._has_messages = has_messages
        self.last = last
        self._acknowledged_lsn = -1 if acknowledged_lsn is None else acknowledged_lsn
        self._expected = confirmed_lsn <= last.lsn

    @property
    def is_pending(self) -> bool:
        """Whether the transaction has not been resent yet."""
        return self._expected

    def is_due(self, transaction: TransactionIdentity) -> bool:
        """Whether this is the transaction that must still be resent."""
        return self._expected and transaction == self.last

    def handle_transaction(self, transaction: TransactionIdentity) -> None:
        """Handle the start of a transaction.

        Raises:
            SlotError: it was not in the published history.
            ReconnectError: this cannot be decided without messages.
        """
        if self.last.lsn < transaction.lsn <= self._acknowledged_lsn:
            acknowledged = format_lsn(self._acknowledged_lsn)
            raise self._error(f"sends {transaction}, although all up to {acknowledged} is acknowledged without it")
        if not self._expected or transaction.lsn < self.last.lsn:
            return
        if transaction.lsn > self.last.lsn:
            raise self._missing(f"sends {transaction} in its place")
        if transaction != self.last:
            raise self._error(f"sends {transaction} in its place")
        self._expected = False

    def handle_keepalive(self, wal_end: int) -> None:
        """Handle that everything up to ``wal_end`` was sent; raises as :meth:`handle_transaction` if ``last``
        was not.
        """
        if self._expected and wal_end > self.last.lsn:
            raise self._missing(f"has sent everything up to {format_lsn(wal_end)} without it")

    def _missing(self, fact: str) -> PostgresError:
        if self._has_messages:
            return self._error(fact)
        return ReconnectError(
            f"{self.last} was published and not sent again, so it may be of messages alone", with_messages=True
        )

    def _error(self, fact: str) -> SlotError:
        return SlotError(
            f"source {self._source}: {self.last} was published before, but the server {fact}: it was probably "
            f"restored from a copy and has diverged since. If so, {_NEW_EPOCH}"
        )
