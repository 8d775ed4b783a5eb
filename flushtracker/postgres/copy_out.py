"""``copied_rows``: the result of a query by COPY, in the order and the memory of what has arrived.

psycopg2 can only push the rows of a copy; a consumer that takes its time, as Spark's does, must pull them. Only what
fits into libpq's buffer is in memory then, and the server waits.
"""

import select
from collections.abc import Iterator
from typing import Final

from flushtracker.errors import PostgresUnavailableError
from flushtracker.postgres import libpq
from flushtracker.postgres.connection import Connection

_ROWS_PER_READ: Final = 1_000
# With TLS, bytes may have been taken from the socket that libpq has not read yet, which select does not see.
_POLL_S: Final = 0.1


def copied_rows(connection: Connection, query: str) -> Iterator[list[bytes]]:
    """The rows of ``COPY (query) TO STDOUT``, as they arrive, each with its line break.

    The connection can be used again after the last row; if the caller stops before, it must be closed.

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
        select.select([socket], [], [], _POLL_S)
        libpq.consume(pgconn)
    libpq.require_copy_out(pgconn)
    while True:
        rows, is_end = libpq.read_frames(pgconn, _ROWS_PER_READ)
        if rows:
            yield rows
        if is_end:
            break
        if not rows:
            select.select([socket], [], [], _POLL_S)
    if error := libpq.end_error(pgconn):
        raise error
