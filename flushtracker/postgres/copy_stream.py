"""``CopyStream``: the bytes of a connection in copy mode, both ways, by libpq itself.

psycopg2 can read a replication stream, but on keepalives it moves the position that it confirms forward by itself, past
what was acknowledged here; inside a large transaction that loses it. So psycopg2 connects and starts the stream, and
from there on libpq's own functions are called on its connection. They never block.
"""

import ctypes
import threading
from typing import Final

from psycopg2 import _psycopg

from flushtracker.errors import PostgresError, PostgresUnavailableError
from flushtracker.postgres.connection import Connection, reason, refusal

# Found through the extension module, whichever libpq it brings. PyDLL: the calls are short and keep the interpreter's
# lock, which costs less than to give it away.
_libpq: Final = ctypes.PyDLL(_psycopg.__file__)
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
    """Frames in and out, for use by several threads. ``connection`` is in copy mode, and stays the caller's to close.

    After :meth:`shut` nothing touches the connection any more. Every method raises ``PostgresUnavailableError`` where
    the connection is lost, and ``PostgresError`` where the server has ended the stream for its own reason.
    """

    def __init__(self, connection: Connection) -> None:
        self._lock = threading.Lock()
        self._connection: int | None = connection.pgconn_ptr

    def shut(self) -> None:
        """Let go of the connection, once no other thread is in the middle of a call."""
        with self._lock:
            self._connection = None

    def read(self, limit: int) -> list[bytes]:
        """The frames that have arrived, ``limit`` at most; none where there are none at the moment."""
        frames: list[bytes] = []
        buffer = ctypes.c_void_p()
        with self._lock:
            connection = self._open()
            consumed = False
            while len(frames) < limit:
                size = _libpq.PQgetCopyData(connection, ctypes.byref(buffer), 1)
                if size > 0:
                    frames.append(ctypes.string_at(buffer, size))
                    _libpq.PQfreemem(buffer)
                elif size == 0 and not consumed:
                    # One look at the socket is enough: what comes later is for the next call.
                    consumed = True
                    if not _libpq.PQconsumeInput(connection):
                        raise self._lost(connection)
                elif size in (_ENDED, _FAILED) and not frames:
                    raise self._ended(connection) if size == _ENDED else self._lost(connection)
                else:
                    break
        return frames

    def write(self, frame: bytes) -> None:
        """Hand over one frame; it leaves now or, where the network is full, with one of the next calls."""
        with self._lock:
            connection = self._open()
            # 0: the buffer is full. The frame is a status update, and the next one will say more.
            if _libpq.PQputCopyData(connection, frame, len(frame)) < 0 or _libpq.PQflush(connection) < 0:
                raise self._lost(connection)

    def _open(self) -> int:
        if self._connection is None:
            raise PostgresUnavailableError("the replication stream is closed")
        return self._connection

    def _lost(self, connection: int) -> PostgresError:
        text = str(_libpq.PQerrorMessage(connection), "utf-8", "replace")
        return PostgresUnavailableError(f"the replication stream broke off: {reason(text)}")

    def _ended(self, connection: int) -> PostgresError:
        """Why the server has ended the stream; without a reason it shuts down."""
        error = None
        while result := _libpq.PQgetResult(connection):
            sqlstate = _libpq.PQresultErrorField(result, _SQLSTATE)
            if sqlstate is not None and error is None:
                text = str(_libpq.PQresultErrorMessage(result), "utf-8", "replace")
                error = refusal(str(sqlstate, "ascii", "replace"), text)
            _libpq.PQclear(result)
        return error or PostgresUnavailableError("the server has ended the replication stream")
