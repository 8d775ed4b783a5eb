"""Does this server's WAL go on from what was published and acknowledged? Else acks of one history confirm another.

Three things can have happened. The slot was moved on by somebody else: what lies between is in no shape. The server was
restored from a copy and its WAL ends before what was published. Or it was restored and its WAL has grown past that
since: then the positions look right, but stand for other transactions. The last is told from what is sent again: the
transaction that was published last comes at the same LSN with the same id, or this is another history.
"""

from dataclasses import dataclass

from flushtracker.errors import SlotError
from flushtracker.wal.lsn import format_lsn

_NEW_EPOCH = (
    "start with --new-epoch to go on under a new source from where the slot stands; the shapes' data are then of two "
    "histories, so define them anew, under new ids"
)


def check_positions(source: str, *, wal_lsn: int, confirmed_lsn: int, safe_lsn: int, published_lsn: int | None) -> None:
    """Check a server before anything of it is read.

    ``safe_lsn``: the greatest LSN up to which everything was ever acknowledged, or was before the source began.
    ``published_lsn``: the commit LSN of the last fragment that was published, if any was.

    Raises:
        SlotError: the server was restored, or the slot was moved on by somebody else.
    """
    known_lsn = max(safe_lsn, -1 if published_lsn is None else published_lsn)
    if wal_lsn < known_lsn:
        raise SlotError(
            f"source {source}: the server's WAL ends at {format_lsn(wal_lsn)}, but {format_lsn(known_lsn)} was "
            f"published or acknowledged before: it was restored from a copy. If it was, {_NEW_EPOCH}"
        )
    if confirmed_lsn > safe_lsn + 1:
        raise SlotError(
            f"source {source}: the slot stands at {format_lsn(confirmed_lsn)}, but only what is up to "
            f"{format_lsn(max(safe_lsn, 0))} is acknowledged: somebody else has moved it on, and what lies between "
            f"may be in no shape. Or the ack table is not the one it was: then restore that. Else {_NEW_EPOCH}"
        )


@dataclass(frozen=True, slots=True)
class TransactionIdentity:
    """What a transaction is known by: commit LSN, id, and commit timestamp as pgoutput has it."""

    lsn: int
    xid: int
    commit_timestamp: str

    def __str__(self) -> str:
        return f"transaction {self.xid} at {format_lsn(self.lsn)} of {self.commit_timestamp}"


class ResendCheck:
    """Waits for ``last``, which was published last, to be sent again.

    Nothing is expected where the slot was confirmed past it.
    """

    def __init__(self, source: str, last: TransactionIdentity, confirmed_lsn: int) -> None:
        self._source = source
        self._last = last
        self._expected = confirmed_lsn <= last.lsn

    def handle_transaction(self, transaction: TransactionIdentity) -> None:
        """A transaction begins; raises ``SlotError`` where it is not the one that must come now or later."""
        if not self._expected or transaction.lsn < self._last.lsn:
            return
        if transaction != self._last:
            raise self._error(f"{transaction} comes")
        self._expected = False

    def handle_keepalive(self, wal_end: int) -> None:
        """Everything up to ``wal_end`` has been sent; raises ``SlotError`` where the transaction was not among it."""
        if self._expected and wal_end > self._last.lsn:
            raise self._error(f"nothing comes up to {format_lsn(wal_end)}")

    def _error(self, instead: str) -> SlotError:
        return SlotError(
            f"source {self._source}: {self._last} was published before, but when the server sends again, {instead} "
            f"instead: it was restored from a copy and has another history since. If it was, {_NEW_EPOCH}"
        )
