"""``PartlySent``: finds the open transactions of which the stream may lack changes to a table.

The server sends a change only if the table was published when the change was made. So of a transaction that was open
when the table was added to the publication, only the later changes are sent. Nothing tells when a transaction made its
first change to a table. But until it ends it holds a lock on the table; and if it had begun only after the rows of the
catalog that publish the table were committed, then everything of it is sent.

When those rows were committed is not known either. So this object keeps *horizons*: each is a moment, with a snapshot
and the transactions that were open then. A row was committed before a horizon if the horizon's snapshot is after its
xid, or if it was seen before; a transaction that was not open at a horizon has begun after it. The first horizon is the
beginning of the connection. Another one is added when a row is found that was not committed before the last one.

A session of the server also decides once whether a table is published, and does not notice some rows of the catalog
that publish it later (:meth:`PublishedTables.unnoticed_rows`): after a change from before, it sends none at all. So
these rows must have been committed before everything that this connection sends.

A standby shows neither the transactions of its primary nor their locks, only a lower bound of their xids. There,
whatever may have been open at the horizon counts as partly sent.
"""

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from flushtracker.errors import PostgresUnavailableError
from flushtracker.wal.mvcc_snapshot import CatalogRow, MvccSnapshot

MAX_HORIZONS: Final = 64
"""Without the earlier ones, more transactions count as open when a row was written, never fewer."""
_XIDS: Final = 2**32
_MAX_AGE: Final = 2**30
"""In transactions, as 32-bit xids can be compared only if they are near each other."""


class PublishedTables(Protocol):
    """The server's tables; each method raises ``PostgresUnavailableError`` if the connection is lost."""

    def is_standby(self) -> bool:
        """Whether the server is a standby, which shows no transactions of its primary."""

    def snapshot(self) -> MvccSnapshot:
        """A snapshot taken now."""

    def in_progress(self) -> Mapping[int, bool]:
        """The open transactions of this database, by 32-bit xid; empty on a standby."""

    def next_xid(self) -> int:
        """The xid, of 64 bits, that is assigned next; on a standby, none that it has replayed is greater."""

    def publication_rows(self, oids: Iterable[int]) -> Mapping[int, frozenset[CatalogRow]]:
        """The rows of the catalog because of which tables and their partitions are published, by the tables' OIDs."""

    def unnoticed_rows(self, oids: Iterable[int]) -> Mapping[int, frozenset[int]]:
        """The 32-bit xids of rows by which tables, or partitions of them, were published after their creation, by OID.

        Only those that a stream does not notice: having seen a change of such a table from before, it sends no later
        one.
        """

    def writers(self, oids: Iterable[int]) -> Mapping[int, frozenset[int]]:
        """The open transactions that may have changed tables or their partitions, by the tables' OIDs.

        Those that do not appear have changed nothing yet. Empty on a standby.
        """

    def slot_xmin(self) -> int | None:
        """The slot's ``catalog_xmin``: all transactions with a lower xid ended before what the slot has yet to send."""

    def held_xmin(self) -> int | None:
        """The same at the beginning of the connection: it sends nothing from before."""


@dataclass(frozen=True, slots=True)
class _Horizon:
    """``rows`` had been read when ``snapshot`` was taken; after that, ``open`` were in progress, all below ``next``."""

    snapshot: MvccSnapshot
    open: frozenset[int]
    next: int
    rows: frozenset[CatalogRow]

    def is_after(self, row: CatalogRow) -> bool:
        """Whether the row was committed before the horizon."""
        return row in self.rows or self.snapshot.is_after(row.xid)


class PartlySent:
    """Watches one connection from its beginning."""

    def __init__(self, server: PublishedTables) -> None:
        self._server = server
        self._is_standby = server.is_standby()
        self._held_xmin = server.held_xmin()
        self._horizons: deque[_Horizon] = deque(maxlen=MAX_HORIZONS)
        self._add_horizon(frozenset())

    def transactions(self, oids: Collection[int]) -> dict[int, frozenset[int]]:
        """The xids to wait for before shapes can start on these tables, by OID; a table without any is left out.

        They have 32 bits. What changes a table after this call is sent completely, and what has ended before it is
        visible to every snapshot taken from then on.
        """
        if not oids:
            return {}
        # The order matters: what begins after its rows were read is not partly sent, and what ends before its locks
        # are read is not waited for.
        rows = self._server.publication_rows(oids)
        now = self._server.snapshot()
        self._forget_horizons(now)
        found = frozenset().union(*rows.values())
        if not self._horizons or not all(map(self._horizons[-1].is_after, found)):
            self._add_horizon(found)
        horizons = {oid: self._horizon_after(rows.get(oid, found)) for oid in oids}
        if self._is_standby:
            oldest = frozenset({now.xmin % _XIDS})
            return {oid: oldest for oid, horizon in horizons.items() if now.xmin < horizon.next}
        writers = self._server.writers(oids)
        partly = {oid: writers.get(oid, frozenset()) & horizon.open for oid, horizon in horizons.items()}
        return {oid: xids for oid, xids in partly.items() if xids}

    def unnoticed(self, oids: Collection[int]) -> frozenset[int]:
        """Those of the tables of which this connection may not send all changes, however long it lasts.

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
        """Those of the tables that were published before the slot was created, which has not been read yet.

        A slot is created when all open transactions have ended, so everything after it is sent completely.
        """
        xmin = self._server.slot_xmin() if oids else None
        if xmin is None:
            return frozenset()
        created, rows = MvccSnapshot(xmin, xmin), self._server.publication_rows(oids)
        return frozenset(oid for oid in oids if oid in rows and all(created.is_after(row.xid) for row in rows[oid]))

    def _horizon_after(self, rows: Iterable[CatalogRow]) -> _Horizon:
        """The first horizon after all the rows: the last one is."""
        return next(horizon for horizon in self._horizons if all(map(horizon.is_after, rows)))

    def _forget_horizons(self, now: MvccSnapshot) -> None:
        """Forget those that are too old to compare xids with; all of them, if the server is no longer a standby."""
        was_standby, self._is_standby = self._is_standby, self._server.is_standby()
        if was_standby != self._is_standby:
            self._horizons.clear()
        while self._horizons and now.xmax - self._horizons[0].snapshot.xmin > _MAX_AGE:
            self._horizons.popleft()

    def _add_horizon(self, rows: frozenset[CatalogRow]) -> None:
        # In this order: what begins after the list was read has begun after every commit that the snapshot shows.
        snapshot = self._server.snapshot()
        in_progress = frozenset(self._server.in_progress())
        known = self._horizons[-1].rows if self._horizons else frozenset()
        self._horizons.append(_Horizon(snapshot, in_progress, self._server.next_xid(), known | rows))


def _is_any_since(xmin: int | None, next_xid: int, xids: Iterable[int]) -> bool:
    """Whether one of the xids, of 32 bits, was assigned since ``xmin``; if that is not known, it may have been.

    One that is far older looks as if it was in the future.
    """
    return xmin is None or any((xid - xmin) % _XIDS < (next_xid - xmin) % _XIDS for xid in xids)
