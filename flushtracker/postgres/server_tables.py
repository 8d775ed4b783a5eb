"""``ServerTables``: capture's queries to the server, over an ordinary connection next to the stream."""

import time
from dataclasses import replace
from typing import Final

from flushtracker.errors import PostgresError, PostgresUnavailableError, ShapeError
from flushtracker.postgres.catalog import Catalog
from flushtracker.postgres.connection import Connection, limit_statements, require_open, rows
from flushtracker.postgres.slot import check_publication, emit_heartbeat, wal_end
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.shape import Shape
from flushtracker.wal.changes import TableName

_HEARTBEAT_PREFIX: Final = "flushtracker"
STATEMENT_TIMEOUT_S: Final = 30.0
LOCK_TIMEOUT_S: Final = 10.0
"""Capture's one thread that reads the stream also runs these queries, so while one of them hangs, nothing is published.
They take milliseconds, but the catalog of a large database on a busy disk may take seconds. The tables of a publication
are locked briefly to list them, which waits for the end of a migration; after a timeout capture connects again, and the
server resends what is unconfirmed, so shorter would only cause more of that."""
_WAL_SENDER_TIMEOUT: Final = "SELECT setting::bigint FROM pg_settings WHERE name = 'wal_sender_timeout'"
_VISIBILITY_TIMEOUT_S: Final = 5.0
_VISIBILITY_POLL_S: Final = 0.02
_XIDS: Final = 2**32


class ServerTables:
    """Every method raises ``PostgresUnavailableError`` if the connection is lost, or a query takes too long."""

    def __init__(self, connection: Connection, publication: str) -> None:
        limit_statements(connection, statement_timeout_s=STATEMENT_TIMEOUT_S, lock_timeout_s=LOCK_TIMEOUT_S)
        self._connection = connection
        self._catalog = Catalog(connection)
        self._publication = publication
        self._publication_oid = check_publication(connection, publication)

    def wal_end(self) -> int:
        return wal_end(self._connection)

    def wal_sender_timeout_s(self) -> float:
        """After how long without a reply the server ends the stream; 0 for never.

        A role or a database may have a value of its own; it applies to both connections.
        """
        ((timeout_ms,),) = rows(self._connection, _WAL_SENDER_TIMEOUT)
        return int(timeout_ms) / 1000

    def ancestors(self, oid: int, xid: int) -> frozenset[TableName]:
        """The partitioned tables that a table is a partition of, once transaction ``xid`` is visible.

        The stream may be ahead of the catalog: a commit that waits for a synchronous standby is already in the WAL, and
        so is sent, while the catalog still shows the state before it.

        Raises:
            PostgresUnavailableError: it is not visible within seconds; after a reconnect the server resends it.
        """
        deadline = time.monotonic() + _VISIBILITY_TIMEOUT_S
        while not is_visible(current_snapshot(self._connection), xid):
            if time.monotonic() > deadline:
                raise PostgresUnavailableError(
                    f"transaction {xid} has committed but is not visible yet: it is waiting for a synchronous standby, "
                    "which must not be capture itself"
                )
            time.sleep(_VISIBILITY_POLL_S)
        return self._catalog.ancestors(oid)

    def require_open(self) -> None:
        """Raise ``PostgresUnavailableError`` if the server has closed the connection."""
        require_open(self._connection)

    def require_publication(self) -> None:
        """Raise ``PostgresError`` if the publication is not the same one as at the start.

        While it was missing, the server sent none of the changes.
        """
        if check_publication(self._connection, self._publication) != self._publication_oid:
            raise PostgresError(
                f"publication {self._publication} was dropped and recreated: changes made in between were not sent and "
                "never will be; define the shapes again under new ids, and restart"
            )

    def emit_heartbeat(self) -> None:
        """Write a few bytes of WAL, so that the slot can advance."""
        emit_heartbeat(self._connection, _HEARTBEAT_PREFIX)

    def resolve(self, definition: ShapeDefinition) -> tuple[ShapeDefinition, int]:
        """Fill in the partitions, and the primary key if the stream does not show it; check that the shape can be kept.

        Raises:
            ShapeError: there is no such table, or its columns or replica identity do not allow the shape.
            PostgresError: the table is not in the publication.
        """
        facts = self._catalog.table(definition.table)
        if facts is None:
            table = ".".join(definition.table)
            raise ShapeError(f"shape {definition.id!r}: there is no table {table} in this database")
        relations = [table.relation for table in facts.partitions] or [facts.relation]
        primary_key = definition.primary_key
        # Under REPLICA IDENTITY FULL every column is flagged as key; otherwise the flags are the key.
        if primary_key is None and any(relation.replica_identity == "full" for relation in relations):
            primary_key = facts.primary_key or None
        partitions = definition.partitions or tuple(relation.table for relation in relations if facts.partitions)
        resolved = replace(definition, primary_key=primary_key, partitions=partitions)
        shape = Shape(resolved)
        for relation in relations:
            shape.bind(relation)
        if not facts.is_partitioned or partitions:
            check_publication(self._connection, self._publication, partitions or (definition.table,))
        return resolved, facts.oid


def current_snapshot(connection: Connection) -> str:
    """The current snapshot as PostgreSQL writes it: ``xmin:xmax:xid,xid,…``; the xids listed are in progress."""
    ((snapshot,),) = rows(connection, "SELECT txid_current_snapshot()::text")
    return str(snapshot)


def is_visible(snapshot: str, xid: int) -> bool:
    """Whether ``xid``, unless it was rolled back, is visible in ``snapshot``.

    A snapshot's ids have 64 bits; ``xid``, from the stream, has 32, and is within 2**31 of them.

    >>> [is_visible("100:105:100,103", xid) for xid in (99, 100, 102, 103, 105, 106)]
    [True, False, True, False, False, False]
    >>> is_visible("4294967290:4294967300:4294967297", 1), is_visible("4294967290:4294967300:4294967297", 4294967295)
    (False, True)
    """
    _, xmax, running = snapshot.split(":")
    if (xid - int(xmax)) % _XIDS < _XIDS // 2:
        return False
    return xid not in {int(text) % _XIDS for text in running.split(",") if text}
