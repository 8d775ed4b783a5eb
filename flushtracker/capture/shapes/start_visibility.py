"""``StartVisibility``: finds out when a shape's start is *visible*.

It is visible when every later MVCC snapshot on the server contains all transactions that commit at or below the shape's
``starts_after``.

A transaction becomes visible after its commit record is in the WAL, and so possibly after capture has received it. It
does so at once, or when a synchronous standby has confirmed it, which may take days. Transactions do not become visible
in LSN order. And transactions confirmed to the server before this connection are not resent, but may still be
invisible.

The state, of one connection:

- ``received_lsn``: every transaction that commits at or below it was received, or confirmed before.
- *committed*: the received transactions that were not visible at the last check, with their commit LSNs. A check costs
  a query, and is needed only now and then to keep their number small.
- *unknown*: the transactions that were in progress when a shape began to wait, and have not been received. Most have
  simply not committed. But one may have committed before this connection began, or may have no published changes and so
  not be sent. It did not commit at or below the start if it is received later, or if its session was not waiting for a
  standby in ``CHECKS`` checks in a row. Only this is inferred from time: a commit that does not wait for
  a standby is visible within milliseconds.

A start is visible when ``received_lsn`` has reached it, no *committed* transaction is at or below it, and none is
*unknown*. A transaction that stays open does not delay it. A standby cannot be used: it shows at once what its primary
shows only after a synchronous standby has confirmed it.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from flushtracker.capture.shapes.delayed_shapes import SlowWait
from flushtracker.errors import listed
from flushtracker.wal.lsn import format_lsn
from flushtracker.wal.mvcc_snapshot import MvccSnapshot

logger = logging.getLogger(__name__)

CHECKS: Final = 3
PRUNE_TRANSACTIONS: Final = 1_000


class Transactions(Protocol):
    """The server's transactions; each method raises ``PostgresUnavailableError`` if the connection is lost."""

    def is_standby(self) -> bool:
        """Whether the server is a standby: it may show transactions that are invisible on the primary, where snapshots
        are taken.
        """

    def snapshot(self) -> MvccSnapshot: ...

    def in_progress(self) -> Mapping[int, bool]:
        """The transactions of this database that no snapshot contains yet, by 32-bit xid.

        ``True``: it may have committed and be waiting for a synchronous standby.
        """

    def flush_wal(self, lsn: int) -> None:
        """Have the WAL flushed past ``lsn`` soon, and so sent, even if nothing commits."""


@dataclass(slots=True)
class _Wait:
    starts_after: int
    slow: SlowWait = field(default_factory=SlowWait)


class StartVisibility:
    """Watches one connection, which sends what commits from ``confirmed_lsn`` on. Call :meth:`check` often."""

    def __init__(self, server: Transactions, confirmed_lsn: int) -> None:
        self._server = server
        self._received_lsn = confirmed_lsn - 1
        self._committed: dict[int, int] = {}
        self._unknown: dict[int, int] = {}
        """By xid: the number of consecutive checks in which it was not waiting."""
        self._waits: dict[str, _Wait] = {}
        self._unpruned = 0
        self._is_standby = False

    def wait_for(self, starts: Mapping[str, int]) -> None:
        """Start to wait for shapes, given the LSNs of their ``starts_after``, which the WAL has already reached."""
        if not starts:
            return
        self._waits.update({shape_id: _Wait(lsn) for shape_id, lsn in starts.items()})
        self._unknown.update(dict.fromkeys(self._server.in_progress().keys() - self._committed.keys(), 0))
        self._server.flush_wal(max(0, *starts.values()))

    def forget(self, shape_id: str) -> None:
        """Stop waiting for a shape, if it waits."""
        self._waits.pop(shape_id, None)

    def handle_transaction(self, lsn: int, xid: int) -> None:
        """Note that a transaction that commits at ``lsn`` arrives; they arrive in LSN order."""
        self._unknown.pop(xid, None)
        self._committed[xid] = lsn
        self._received_lsn = max(self._received_lsn, lsn)
        self._unpruned += 1
        if self._unpruned >= PRUNE_TRANSACTIONS:
            self.prune()

    def handle_keepalive(self, wal_end: int) -> None:
        """Note that everything that commits below ``wal_end`` has arrived."""
        self._received_lsn = max(self._received_lsn, wal_end - 1)

    def prune(self) -> None:
        """Forget transactions that have become visible; call it at least once in 2**31 transactions of the server."""
        if self._committed:
            self._prune(self._server.snapshot())

    def check(self, now_s: float) -> tuple[str, ...]:
        """The shapes whose starts have become visible and that no longer wait; ``now_s`` is monotonic."""
        if not self._waits:
            return ()
        self._is_standby = self._server.is_standby()
        snapshot = self._server.snapshot()
        self._prune(snapshot)
        self._check_unknown(snapshot)
        visible = self._visible()
        for shape_id in visible:
            del self._waits[shape_id]
        self._log_slow(now_s)
        if not self._waits:
            self._unknown.clear()
        return visible

    def _visible(self) -> tuple[str, ...]:
        if self._unknown or self._is_standby:
            return ()
        up_to = min((lsn - 1 for lsn in self._committed.values()), default=self._received_lsn)
        return tuple(shape_id for shape_id, wait in self._waits.items() if wait.starts_after <= up_to)

    def _prune(self, snapshot: MvccSnapshot) -> None:
        self._committed = {xid: lsn for xid, lsn in self._committed.items() if not snapshot.sees(xid)}
        self._unpruned = 0

    def _check_unknown(self, snapshot: MvccSnapshot) -> None:
        unknown = {xid: checks for xid, checks in self._unknown.items() if not snapshot.sees(xid)}
        in_progress = self._server.in_progress() if unknown else {}
        checked = {xid: 0 if in_progress.get(xid, False) else checks + 1 for xid, checks in unknown.items()}
        self._unknown = {xid: checks for xid, checks in checked.items() if checks < CHECKS}

    def _log_slow(self, now_s: float) -> None:
        """Log once which shapes have waited for long, and for what."""
        slow = [shape_id for shape_id, wait in self._waits.items() if wait.slow.is_due(now_s)]
        if slow:
            names, starts_after = listed(sorted(slow)), self._waits[slow[0]].starts_after
            logger.warning("start not visible yet shape_ids=%s reason=%s", names, self._reason(starts_after))

    def _reason(self, starts_after: int) -> str:
        if self._is_standby:
            return "capture reads a standby, which does not show what is visible on its primary"
        if starts_after > self._received_lsn:
            return f"capture has received up to {format_lsn(self._received_lsn)}, not yet {format_lsn(starts_after)}"
        if self._unknown:
            xid = min(self._unknown, key=self._unknown.__getitem__)
            return f"transaction {xid} may have committed and be waiting for a synchronous standby"
        lsn, xid = min((lsn, xid) for xid, lsn in self._committed.items())
        return f"transaction {xid} at {format_lsn(lsn)} has committed and is waiting for a synchronous standby"
