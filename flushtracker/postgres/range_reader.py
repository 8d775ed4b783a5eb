"""``RangeReader``: reads ranges of tables in a snapshot that another connection has exported."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from psycopg2 import sql

from flushtracker.errors import PostgresError, PostgresUnavailableError
from flushtracker.postgres import libpq
from flushtracker.postgres.connection import Connection, connect_for_snapshot, rows
from flushtracker.postgres.socket_wait import wait_readable
from flushtracker.wal.changes import TableName

_TID_RANGES_SINCE: Final = 140_000
_ROWS_PER_READ: Final = 1_000
# With TLS, bytes may have been taken from the socket that libpq has not read yet, which select does not see.
_POLL_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class PageRange:
    """Pages of a table from ``first`` up to, and without, ``end``; ``None`` is the table's end."""

    first: int
    end: int | None


def page_ranges(pages: int, pages_each: int, server_version: int) -> list[PageRange]:
    """The ranges that a table of so many pages is read in; it may have grown since, and the last one has no end.

    A server that cannot scan a range would read the whole table for each.

    >>> page_ranges(25, 10, 180000)
    [PageRange(first=0, end=10), PageRange(first=10, end=20), PageRange(first=20, end=None)]
    >>> page_ranges(0, 10, 180000), page_ranges(25, 10, 130000)
    ([PageRange(first=0, end=None)], [PageRange(first=0, end=None)])
    """
    firsts = range(0, max(1, pages), pages_each) if server_version >= _TID_RANGES_SINCE else [0]
    return [PageRange(first, end) for first, end in zip(firsts, [*firsts[1:], None], strict=True)]


class RangeReader:
    """An open connection with locks on ``tables``, in the snapshot ``snapshot_id``; for one thread."""

    def __init__(
        self,
        options: Mapping[str, str],
        snapshot_id: str,
        tables: Sequence[TableName],
        statement_timeout_ms: int | None = None,
    ) -> None:
        """Connect, lock, and import the snapshot.

        It waits for no lock. The connection that exported the snapshot has the same locks, so a lock that is not free
        at once is requested by a session that waits for that connection to end.

        Raises:
            PostgresUnavailableError: the snapshot is gone, or a table's lock cannot be acquired.
            PostgresError: the server refuses.
        """
        self._connection: Connection = connect_for_snapshot(options)
        try:
            rows(self._connection, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            names = sql.SQL(", ").join(sql.SQL("ONLY {}").format(sql.Identifier(*table)) for table in tables)
            lock = sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE NOWAIT").format(names)
            rows(self._connection, lock.as_string(self._connection))
            self._import(snapshot_id)
            if statement_timeout_ms is not None:
                rows(self._connection, "SET statement_timeout = %s", (statement_timeout_ms,))
        except BaseException:
            self.close()
            raise

    def _import(self, snapshot_id: str) -> None:
        try:
            rows(self._connection, "SET TRANSACTION SNAPSHOT %s", (snapshot_id,))
        except PostgresUnavailableError:
            raise
        except PostgresError as error:
            raise PostgresUnavailableError(f"the connection that exported the snapshot was lost: {error}") from error

    def read(
        self, table: TableName, columns: Sequence[str], where: str | None, pages: PageRange
    ) -> Iterator[list[bytes]]:
        """The rows of a range for which ``where`` is true, in COPY's text format; raises as ``copied_rows``.

        ``where`` is SQL that the caller has checked.
        """
        conditions: list[sql.Composable] = [] if where is None else [sql.SQL("({}\n)").format(sql.SQL(where))]
        # Without a condition on ctid, an index may be used.
        if pages.first > 0:
            conditions.append(sql.SQL(f"ctid >= '({pages.first:d},0)'::tid"))
        if pages.end is not None:
            conditions.append(sql.SQL(f"ctid < '({pages.end:d},0)'::tid"))
        query = sql.SQL("SELECT {} FROM ONLY {}").format(
            sql.SQL(", ").join(map(sql.Identifier, columns)), sql.Identifier(*table)
        )
        if conditions:
            query += sql.SQL(" WHERE ") + sql.SQL(" AND ").join(conditions)
        return copied_rows(self._connection, query.as_string(self._connection))

    def report(self, progress: str) -> None:
        """Let ``pg_stat_activity`` show what this connection has done, as its ``application_name``."""
        rows(self._connection, "SET application_name = %s", (progress,))

    def close(self) -> None:
        self._connection.close()


def copied_rows(connection: Connection, query: str) -> Iterator[list[bytes]]:
    """The rows of ``COPY (query) TO STDOUT``, as they arrive, each with its line break.

    psycopg2 can only push the rows of a copy; a slow consumer, such as Spark, must pull them. Only what fits into
    libpq's buffer is then in memory, and the server waits. The connection can be used again after the last row; if the
    caller stops before, it must be closed.

    Raises:
        PostgresUnavailableError: the connection is lost, or the server has canceled the query.
        PostgresError: the server rejects the query, or a row of it.
    """
    pgconn = connection.pgconn_ptr
    if pgconn is None:
        raise PostgresUnavailableError("the connection is closed")
    socket = connection.fileno()
    libpq.send_query(pgconn, f"COPY ({query}) TO STDOUT")
    while libpq.is_busy(pgconn):
        wait_readable(socket, _POLL_S)
        libpq.consume(pgconn)
    libpq.require_copy_out(pgconn)
    while True:
        rows, is_end = libpq.read_frames(pgconn, _ROWS_PER_READ)
        if rows:
            yield rows
        if is_end:
            break
        if not rows:
            wait_readable(socket, _POLL_S)
    if error := libpq.end_error(pgconn):
        raise error
