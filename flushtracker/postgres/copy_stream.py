"""``CopyStream``: reads and writes a connection in copy mode, by calling libpq directly.

psycopg2 can read a replication stream, but on keepalives it advances the position that it confirms by itself, past what
was acknowledged here; inside a large transaction, that loses the transaction. So psycopg2 connects and starts the
stream, and from then on libpq's own functions are called on its connection. They never block.
"""

import threading

from flushtracker.errors import PostgresError, PostgresUnavailableError
from flushtracker.postgres import libpq
from flushtracker.postgres.connection import Connection


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
        with self._lock:
            connection = self._attached()
            if self._end is None:
                frames, is_end = libpq.read_frames(connection, limit)
                if is_end:
                    # libpq reports the end only once, and the frames before it come first.
                    self._end = libpq.end_error(connection) or PostgresUnavailableError(
                        "the server has ended the replication stream"
                    )
        if self._end is not None and not frames:
            raise self._end
        return frames

    def write(self, frame: bytes) -> None:
        """Queue one frame; it is sent now or, if the network is congested, during a later call.

        It is dropped if the buffer is full: the frame is a status update, which the next one supersedes.
        """
        with self._lock:
            libpq.write_frame(self._attached(), frame)

    def _attached(self) -> int:
        if self._connection is None:
            raise PostgresUnavailableError("the replication stream is closed")
        return self._connection
