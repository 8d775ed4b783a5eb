"""``RangeReader``: reads ranges of tables in a snapshot that another connection has exported."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from psycopg import sql

from flushtracker.errors import PostgresError, PostgresUnavailableError
from flushtracker.postgres.connection import Connection, connect_for_snapshot, rows, wait_readable
from flushtracker.postgres.copy_out import end_error, read_frames, start_copy
from flushtracker.postgres.copy_text import lines_of
from flushtracker.postgres.range_query import PageRange, RowSelection, range_query
from flushtracker.wal.changes import TableName

_ROWS_PER_READ: Final = 1_000
# With TLS, libpq may hold bytes that it has not read yet and that select does not see.
_POLL_S: Final = 0.1


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

        It does not wait for locks. The connection that exported the snapshot holds the same locks, so a lock is
        unavailable only if another session is queued behind that connection.

        Raises:
            PostgresUnavailableError: the snapshot is gone, or a table's lock cannot be acquired.
            PostgresError: the server refuses.
        """
        self._connection: Connection = connect_for_snapshot(options)
        try:
            rows(self._connection, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            names = sql.SQL(", ").join(sql.SQL("ONLY {}").format(sql.Identifier(*table)) for table in tables)
            lock = sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE NOWAIT").format(names)
            rows(self._connection, lock.as_string())
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

    def read(self, table: TableName, selection: RowSelection, pages: PageRange) -> Iterator[list[str]]:
        """The rows of a range, as lines of COPY's text format; raises as ``copied_rows``.

        Text that is not UTF-8 counts as an error of the server. After such an error, the snapshot remains usable. After
        any other error, or if the caller stops before the last row, the connection must be closed.
        """
        rows(self._connection, "SAVEPOINT range")
        try:
            query = range_query(table, selection, pages).as_string()
            yield from _lines(table, copied_rows(self._connection, query))
        except PostgresUnavailableError:
            raise
        except PostgresError:
            rows(self._connection, "ROLLBACK TO range")
            raise
        rows(self._connection, "RELEASE range")

    def report(self, progress: str) -> None:
        """Show progress in ``pg_stat_activity``, as the ``application_name``."""
        rows(self._connection, "SET application_name = %s", (progress,))

    def close(self) -> None:
        self._connection.close()


def _lines(table: TableName, copied: Iterable[list[bytes]]) -> Iterator[list[str]]:
    """The lines of a copy, which is read to its end, so that the connection can be used again."""
    is_readable = True
    for part in copied:
        try:
            lines = lines_of(part)
        except UnicodeDecodeError:
            is_readable = False
        if is_readable:
            yield lines
    if not is_readable:
        raise PostgresError(f"table {'.'.join(table)} has text that is not UTF-8 in a row and a column of the shape")


def copied_rows(connection: Connection, query: str) -> Iterator[list[bytes]]:
    """The rows of ``COPY (query) TO STDOUT``, as they arrive, each with its line break.

    Only libpq's buffer is in memory; the server waits. The connection can be used again after the last row; if the
    caller stops before, it must be closed.

    Raises:
        PostgresUnavailableError: the connection is lost, or the server has canceled the query.
        PostgresError: the server rejects the query, or a row of it.
    """
    start_copy(connection, f"COPY ({query}) TO STDOUT")
    is_end = False
    while not is_end:
        rows, is_end = read_frames(connection, _ROWS_PER_READ)
        if rows:
            yield rows
        elif not is_end:
            wait_readable(connection, _POLL_S)
    if error := end_error(connection):
        raise error
