"""``IncompleteTransactions``: finds the open transactions whose changes to a table the stream may lack.

The server sends a change only if the table was published when the change was made. So if a transaction was open when
the table was added to the publication, only its later changes are sent. When a transaction made its first change to a
table is unknown. But until it ends it holds a lock on the table; and if it began after the catalog rows that publish
the table were committed, all its changes are sent.

When those rows were committed is unknown, too. So this object keeps *horizons*: moments, each with a snapshot and the
transactions open at that time. A row was committed before a horizon if the horizon's snapshot is after its xid, or if
it was read before. An open transaction that was not open at a horizon began after it. The first horizon is the start of
the connection. Another one is added when a row is found that was not committed before the last one.

A server session also caches whether a table is published. Some catalog rows that publish it later go unnoticed
(:meth:`PublishedTables.unnoticed_rows`). If the session has decoded an earlier change of the table, it never sends any.
So these rows must have been committed before everything that this connection sends.

A standby shows neither the transactions of its primary nor their locks, only a lower bound of their xids. There,
everything that may have been open at the horizon counts as partly sent.
"""

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from flushtracker.errors import PostgresUnavailableError
from flushtracker.wal.mvcc_snapshot import CatalogRow, MvccSnapshot
from flushtracker.wal.xid import XIDS

MAX_HORIZONS: Final = 64
"""Dropping older horizons makes more transactions count as open when a row was written, never fewer."""
_MAX_AGE: Final = 2**30
"""In transactions; 32-bit xids can be compared only if they are near each other."""


class PublishedTables(Protocol):
    """The server's tables; each method raises ``PostgresUnavailableError`` if the connection is lost."""

    def is_standby(self) -> bool:
        """Whether the server is a standby, which shows no transactions of its primary."""

    def snapshot(self) -> MvccSnapshot: ...

    def in_progress(self) -> Mapping[int, bool]:
        """The open transactions of this database, by 32-bit xid; empty on a standby."""

    def next_xid(self) -> int:
        """The next xid (64 bits) to be assigned; on a standby, it has replayed none that is greater."""

    def publication_rows(self, oids: Iterable[int]) -> Mapping[int, frozenset[CatalogRow]]:
        """By table OID, the catalog rows through which tables and their partitions are published."""

    def unnoticed_rows(self, oids: Iterable[int]) -> Mapping[int, frozenset[int]]:
        """By table OID, the 32-bit xids of rows by which tables or their partitions were published after their
        creation.

        Only rows that a running stream does not notice: after an earlier change of such a table, it sends no later one.
        """

    def writers(self, oids: Iterable[int]) -> Mapping[int, frozenset[int]]:
        """The open transactions that may have changed tables or their partitions, by the tables' OIDs.

        Others have changed nothing yet. Empty on a standby.
        """

    def slot_xmin(self) -> int | None:
        """The slot's ``catalog_xmin``: transactions with a lower xid ended before everything that the slot will
        send.
        """

    def held_xmin(self) -> int | None:
        """The slot's ``catalog_xmin`` at the start of the connection, which sends nothing earlier."""


@dataclass(frozen=True, slots=True)
class _Horizon:
    """``rows`` were read before ``snapshot`` was taken; after that, ``open`` were in progress, all below ``next``."""

    snapshot: MvccSnapshot
    open: frozenset[int]
    next: int
    rows: frozenset[CatalogRow]

    def is_after(self, row: CatalogRow) -> bool:
        return row in self.rows or self.snapshot.is_after(row.xid)


class IncompleteTransactions:
    """Watches one connection from its start."""

    def __init__(self, server: PublishedTables) -> None:
        self._server = server
        self._is_standby = server.is_standby()
        self._held_xmin = server.held_xmin()
        self._horizons: deque[_Horizon] = deque(maxlen=MAX_HORIZONS)
        self._add_horizon(frozenset())

    def transactions(self, oids: Collection[int]) -> dict[int, frozenset[int]]:
        """The xids to wait for before shapes can start on these tables, by OID; tables without any are omitted.

        They have 32 bits. Transactions that change a table after this call are sent completely, and those that ended
        before it are visible to every later snapshot.
        """
        if not oids:
            return {}
        # The order matters: a transaction that begins after its rows were read is not partly sent, and one that ends
        # before its locks are read is not waited for.
        rows = self._server.publication_rows(oids)
        now = self._server.snapshot()
        self._forget_horizons(now)
        found = frozenset().union(*rows.values())
        if not self._horizons or not all(map(self._horizons[-1].is_after, found)):
            self._add_horizon(found)
        horizons = {oid: self._horizon_after(rows.get(oid, found)) for oid in oids}
        if self._is_standby:
            oldest = frozenset({now.xmin % XIDS})
            return {oid: oldest for oid, horizon in horizons.items() if now.xmin < horizon.next}
        writers = self._server.writers(oids)
        partly = {oid: writers.get(oid, frozenset()) & horizon.open for oid, horizon in horizons.items()}
        return {oid: xids for oid, xids in partly.items() if xids}

    def unnoticed(self, oids: Collection[int]) -> frozenset[int]:
        """The tables whose changes this connection may not send completely, however long it lasts.

        Raises:
            PostgresUnavailableError: a new connection would send the changes of one.
        """
        xids = self._server.unnoticed_rows(oids) if oids else {}
        if not xids:
            return frozenset()
        next_xid, xmin = self._server.next_xid(), self._server.slot_xmin()
        found = frozenset(oid for oid in xids if _is_any_since(self._held_xmin, next_xid, xids[oid]))
        for oid in found:
            if not _is_any_since(xmin, next_xid, xids[oid]):
                raise PostgresUnavailableError(
                    f"the stream began before table {oid}, or a partition of it, was published; connect again"
                )
        return found

    def published_before_slot(self, oids: Collection[int]) -> frozenset[int]:
        """The tables that were published before the slot, which has not been read yet, was created.

        A slot is created when all open transactions have ended, so everything after it is sent completely.
        """
        xmin = self._server.slot_xmin() if oids else None
        if xmin is None:
            return frozenset()
        created, rows = MvccSnapshot(xmin, xmin), self._server.publication_rows(oids)
        return frozenset(oid for oid in oids if oid in rows and all(created.is_after(row.xid) for row in rows[oid]))

    def _horizon_after(self, rows: Iterable[CatalogRow]) -> _Horizon:
        """The first horizon after all the rows; the last horizon always is."""
        return next(horizon for horizon in self._horizons if all(map(horizon.is_after, rows)))

    def _forget_horizons(self, now: MvccSnapshot) -> None:
        """Forget horizons too old to compare xids with, or all of them if the server is no longer a standby."""
        was_standby, self._is_standby = self._is_standby, self._server.is_standby()
        if was_standby != self._is_standby:
            self._horizons.clear()
        while self._horizons and now.xmax - self._horizons[0].snapshot.xmin > _MAX_AGE:
            self._horizons.popleft()

    def _add_horizon(self, rows: frozenset[CatalogRow]) -> None:
        # In this order: a transaction that begins after the list was read began after every commit that the snapshot
        # sees.
        snapshot = self._server.snapshot()
        in_progress = frozenset(self._server.in_progress())
        known = self._horizons[-1].rows if self._horizons else frozenset()
        self._horizons.append(_Horizon(snapshot, in_progress, self._server.next_xid(), known | rows))


def _is_any_since(xmin: int | None, next_xid: int, xids: Iterable[int]) -> bool:
    """Whether one of the 32-bit xids may have been assigned since ``xmin``; true if that is unknown.

    A much older xid looks as if it were in the future.
    """
    return xmin is None or any((xid - xmin) % XIDS < (next_xid - xmin) % XIDS for xid in xids)
