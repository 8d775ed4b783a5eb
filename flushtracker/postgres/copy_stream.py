"""``CopyStream``: reads and writes a connection in copy mode, by calling libpq directly.

psycopg2 can read a replication stream, but on keepalives it advances the position that it confirms by itself, past what
was acknowledged here; inside a large transaction, that loses the transaction. So psycopg2 connects and starts the
stream, and from then on libpq's own functions are called on its connection. They never block.
"""

import ctypes
import threading
from typing import Final

from psycopg2 import _psycopg

from flushtracker.errors import PostgresError, PostgresUnavailableError
from flushtracker.postgres.connection import Connection, one_line, postgres_error

# Loaded through psycopg2's extension module, so that it is the same libpq. PyDLL: the calls are short, and keeping the
# GIL costs less than releasing it.
_libpq: Final = ctypes.PyDLL(_psycopg.__file__)
# As ctypes.string_at, which is a function in Python around this one.
_copied: Final = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_ssize_t)(
    ("PyBytes_FromStringAndSize", ctypes.pythonapi)
)
_SQLSTATE: Final = ord("C")
_ENDED, _FAILED = -1, -2


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
_declare("PQclear", None, ctypes.c_void_p)
_declare("PQresultErrorField", ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int)
_declare("PQresultErrorMessage", ctypes.c_char_p, ctypes.c_void_p)
_declare("PQerrorMessage", ctypes.c_char_p, ctypes.c_void_p)


class CopyStream:
    """Reads and writes frames, from several threads. ``connection`` is in copy mode; the caller closes it.

    After :meth:`detach` the connection is no longer used. Every method raises ``PostgresUnavailableError`` if the
    connection is lost, and ``PostgresError`` if the server has ended the stream with an error.
    """

    def __init__(self, connection: Connection) -> None:
        self._lock = threading.Lock()
        self._connection: int | None = connection.pgconn_ptr
        self._end: PostgresError | None = None

    def detach(self) -> None:
        """Stop using the connection, once no other thread is inside a call."""
        with self._lock:
            self._connection = None

    def read(self, limit: int) -> list[bytes]:
        """The frames that have arrived, at most ``limit``; empty if there are none yet."""
        frames: list[bytes] = []
        buffer = ctypes.c_void_p()
        # Looked up once: most of what an unwanted change costs is read here.
        get_copy_data, free, reference, copied = _libpq.PQgetCopyData, _libpq.PQfreemem, ctypes.byref(buffer), _copied
        with self._lock:
            connection = self._attached()
            consumed = False
            while self._end is None and len(frames) < limit:
                size = get_copy_data(connection, reference, 1)
                if size > 0:
                    frames.append(copied(buffer, size))
                    free(buffer)
                elif size == 0 and not consumed:
                    # Read the socket once; what arrives later is for the next call.
                    consumed = True
                    if not _libpq.PQconsumeInput(connection):
                        raise self._connection_error(connection)
                elif size == _ENDED:
                    # libpq reports the end only once, and the frames before it come first.
                    self._end = self._end_error(connection)
                elif size == _FAILED and not frames:
                    raise self._connection_error(connection)
                else:
                    break
        if self._end is not None and not frames:
            raise self._end
        return frames

    def write(self, frame: bytes) -> None:
        """Queue one frame; it is sent now or, if the network is congested, during a later call."""
        with self._lock:
            connection = self._attached()
            # 0: the buffer is full. The frame is a status update, which the next one supersedes.
            if _libpq.PQputCopyData(connection, frame, len(frame)) < 0 or _libpq.PQflush(connection) < 0:
                raise self._connection_error(connection)

    def _attached(self) -> int:
        if self._connection is None:
            raise PostgresUnavailableError("the replication stream is closed")
        return self._connection

    def _connection_error(self, connection: int) -> PostgresError:
        text = str(_libpq.PQerrorMessage(connection), "utf-8", "replace")
        return PostgresUnavailableError(f"the replication stream was interrupted: {one_line(text)}")

    def _end_error(self, connection: int) -> PostgresError:
        """The server's reason for ending the stream; without one, it is shutting down."""
        error = None
        while result := _libpq.PQgetResult(connection):
            sqlstate = _libpq.PQresultErrorField(result, _SQLSTATE)
            if sqlstate is not None and error is None:
                text = str(_libpq.PQresultErrorMessage(result), "utf-8", "replace")
                error = postgres_error(str(sqlstate, "ascii", "replace"), text)
            _libpq.PQclear(result)
        return error or PostgresUnavailableError("the server has ended the replication stream")
