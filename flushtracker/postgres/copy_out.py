"""Data that a server copies out, read with psycopg's libpq functions: a replication stream, or the rows of a query.

psycopg's own ``Copy`` returns one row per call and waits for it. These functions read everything that has arrived.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

import psycopg
from psycopg import generators, pq

from flushtracker.errors import PostgresError, PostgresUnavailableError, one_line
from flushtracker.postgres.connection import Connection, postgres_error, translated_errors
from flushtracker.wal.text_codecs import UTF8

_LARGE_BYTES: Final = 1 << 20
_HEAD_BYTES: Final = 64
_ENDED: Final = -1
_COPIES: Final = (pq.ExecStatus.COPY_OUT, pq.ExecStatus.COPY_BOTH)


class Frames(NamedTuple):
    """The frames that have arrived. ``is_end``: the server has ended the copy, for the reason that :func:`end_error`
    returns.
    """

    frames: list[bytes]
    is_end: bool


def start_copy(connection: Connection, statement: str, codec: str = UTF8) -> None:
    """Run a statement that copies out, and return when the copy has begun; the connection can then do nothing else.

    ``codec``: that of the connection's ``client_encoding``.

    Raises:
        PostgresUnavailableError: the connection is lost, or the server does not answer in time.
        PostgresError: the server rejects the statement, or it does not copy out.
    """
    with translated_errors():
        connection.pgconn.send_query(statement.encode(codec, "replace"))
        results = connection.wait(generators.execute(connection.pgconn))
    if error := _first_error(results):
        raise error
    if not results or results[-1].status not in _COPIES:
        raise PostgresError("a statement that should copy rows out returned something else")


def read_frames(
    connection: Connection, limit: int, is_head_enough: Callable[[bytes], bool] = lambda _: False
) -> Frames:
    """The frames that have arrived, at most ``limit``, and at most 1 MiB plus one frame; never blocks.

    For a frame above 1 MiB, ``is_head_enough`` decides from its first bytes whether the rest is needed. Raises
    ``PostgresUnavailableError``.
    """
    frames: list[bytes] = []
    read_bytes = 0
    pgconn, consumed = connection.pgconn, False
    # Looked up once: reading is most of the cost of an unwanted change.
    get_copy_data = pgconn.get_copy_data
    try:
        while len(frames) < limit and read_bytes < _LARGE_BYTES:
            size, frame = get_copy_data(1)
            if size > 0:
                is_cut = size > _LARGE_BYTES and is_head_enough(bytes(frame[:_HEAD_BYTES]))
                frames.append(bytes(frame[:_HEAD_BYTES] if is_cut else frame))
                read_bytes += size
            elif size == _ENDED:
                return Frames(frames, is_end=True)
            elif consumed:
                break
            else:
                # Read the socket once; later data is left for the next call.
                consumed = True
                pgconn.consume_input()
    except psycopg.OperationalError as error:
        # The next call fails again.
        if not frames:
            raise interrupted(error) from error
    return Frames(frames, is_end=False)


def end_error(connection: Connection) -> PostgresError | None:
    """The server's reason for ending the copy; ``None`` if it is complete, or the server is shutting down."""
    pgconn = connection.pgconn
    if connection.closed:
        # There is no socket to wait for, for example after a send failure; but data that had arrived is kept.
        return _first_error(list(iter(pgconn.get_result, None)))
    try:
        return _first_error(connection.wait(generators.fetch_many(pgconn)))
    except psycopg.OperationalError as error:
        return interrupted(error)


def interrupted(error: psycopg.Error) -> PostgresUnavailableError:
    """The error for a connection lost during a copy."""
    return PostgresUnavailableError(f"the stream from PostgreSQL was interrupted: {one_line(str(error))}")


def _first_error(results: list[pq.abc.PGresult]) -> PostgresError | None:
    for result in results:
        if result.status == pq.ExecStatus.FATAL_ERROR:
            # Without a SQLSTATE, the connection is lost.
            sqlstate = result.error_field(pq.DiagnosticField.SQLSTATE)
            return postgres_error(sqlstate.decode() if sqlstate else None, result.get_error_message(), is_copy=True)
    return None
