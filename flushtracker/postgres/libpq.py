"""libpq's own functions for copy mode, called on connections that psycopg2 has opened. None of them blocks.

``connection`` is always psycopg2's ``pgconn_ptr``.
"""

import ctypes
from collections.abc import Callable
from typing import Final, NamedTuple

from psycopg2 import _psycopg

from flushtracker.errors import PostgresError, PostgresUnavailableError
from flushtracker.postgres.connection import one_line, postgres_error

# Loaded through psycopg2's extension module, so that it is the same libpq. PyDLL: the calls are short, and keeping the
# GIL costs less than releasing it.
_libpq: Final = ctypes.PyDLL(_psycopg.__file__)
# As ctypes.string_at, which is a function in Python around this one.
_copied: Final = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_ssize_t)(
    ("PyBytes_FromStringAndSize", ctypes.pythonapi)
)
_SQLSTATE: Final = ord("C")
_LARGE_BYTES: Final = 1 << 20
_HEAD_BYTES: Final = 64
_ENDED, _FAILED = -1, -2
_COPY_OUT: Final = 3


def _declare(name: str, result: object, *arguments: object) -> None:
    function = getattr(_libpq, name)
    function.restype = result
    function.argtypes = arguments


_declare("PQgetCopyData", ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_int)
_declare("PQputCopyData", ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int)
_declare("PQconsumeInput", ctypes.c_int, ctypes.c_void_p)
_declare("PQflush", ctypes.c_int, ctypes.c_void_p)
_declare("PQfreemem", None, ctypes.c_void_p)
_declare("PQgetResult", ctypes.c_void_p, ctypes.c_void_p)
_declare("PQresultStatus", ctypes.c_int, ctypes.c_void_p)
_declare("PQisBusy", ctypes.c_int, ctypes.c_void_p)
_declare("PQsendQuery", ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)
_declare("PQclear", None, ctypes.c_void_p)
_declare("PQresultErrorField", ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int)
_declare("PQresultErrorMessage", ctypes.c_char_p, ctypes.c_void_p)
_declare("PQerrorMessage", ctypes.c_char_p, ctypes.c_void_p)


class Frames(NamedTuple):
    """What has arrived of a copy; ``is_end``: the server has ended it, for the reason that :func:`end_error` gives."""

    frames: list[bytes]
    is_end: bool


def read_frames(connection: int, limit: int, is_head_enough: Callable[[bytes], bool] = lambda _: False) -> Frames:
    """The frames that have arrived, at most ``limit``, and at most 1 MiB and one more.

    Of a frame above 1 MiB, ``is_head_enough`` is asked with its first bytes whether they are all that is wanted of it.
    Raises ``PostgresUnavailableError``.
    """
    frames: list[bytes] = []
    read_bytes = 0
    buffer = ctypes.c_void_p()
    # Looked up once: most of what an unwanted change costs is read here.
    get_copy_data, free, reference, copied = _libpq.PQgetCopyData, _libpq.PQfreemem, ctypes.byref(buffer), _copied
    consumed = False
    while len(frames) < limit and read_bytes < _LARGE_BYTES:
        size = get_copy_data(connection, reference, 1)
        if size > 0:
            if size > _LARGE_BYTES and is_head_enough(head := copied(buffer, _HEAD_BYTES)):
                frames.append(head)
            else:
                frames.append(copied(buffer, size))
            free(buffer)
            read_bytes += size
        elif size == 0 and not consumed:
            # Read the socket once; what arrives later is for the next call.
            consumed = True
            consume(connection)
        elif size == _ENDED:
            return Frames(frames, is_end=True)
        elif size == _FAILED and not frames:
            raise connection_error(connection)
        else:
            break
    return Frames(frames, is_end=False)


def write_frame(connection: int, frame: bytes) -> None:
    """Queue a frame, unless the buffer is full, and send what the network takes; raises as :func:`read_frames`."""
    if _libpq.PQputCopyData(connection, frame, len(frame)) < 0 or _libpq.PQflush(connection) < 0:
        raise connection_error(connection)


def send_query(connection: int, query: str) -> None:
    """Send a query; raises as :func:`read_frames`."""
    if not _libpq.PQsendQuery(connection, query.encode()):
        raise connection_error(connection)


def consume(connection: int) -> None:
    """Take what the socket has; raises as :func:`read_frames`."""
    if not _libpq.PQconsumeInput(connection):
        raise connection_error(connection)


def is_busy(connection: int) -> bool:
    """Whether the query's first result has not arrived yet."""
    return bool(_libpq.PQisBusy(connection))


def require_copy_out(connection: int) -> None:
    """Take the query's first result, which has arrived; raises ``PostgresError`` unless it is the start of a copy."""
    result = _libpq.PQgetResult(connection)
    if result and _libpq.PQresultStatus(result) == _COPY_OUT:
        _libpq.PQclear(result)
        return
    error = _result_error(result) if result else connection_error(connection)
    raise error or end_error(connection) or PostgresError("a query that should copy rows out returned something else")


def end_error(connection: int) -> PostgresError | None:
    """The server's reason for ending the copy; ``None`` if it is complete, or the server is shutting down."""
    error = None
    while result := _libpq.PQgetResult(connection):
        error = error or _result_error(result)
    return error


def connection_error(connection: int) -> PostgresUnavailableError:
    text = str(_libpq.PQerrorMessage(connection), "utf-8", "replace")
    return PostgresUnavailableError(f"the stream from PostgreSQL was interrupted: {one_line(text)}")


def _result_error(result: int) -> PostgresError | None:
    """The error that a result reports, if any; frees the result."""
    error, sqlstate = None, _libpq.PQresultErrorField(result, _SQLSTATE)
    if sqlstate is not None:
        text = str(_libpq.PQresultErrorMessage(result), "utf-8", "replace")
        error = postgres_error(str(sqlstate, "ascii", "replace"), text)
    _libpq.PQclear(result)
    return error
