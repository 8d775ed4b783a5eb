"""``ReplicationStream``: the connection over which the server sends a slot's changes."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from psycopg2.extensions import quote_ident

from flushtracker.errors import PostgresError, PostgresUnavailableError
from flushtracker.postgres import libpq
from flushtracker.postgres.connection import (
    Connection,
    answer_deadline,
    connect_for_replication,
    rows,
    translated_errors,
)
from flushtracker.postgres.replication_frames import Frame, decode_frame, is_message_of_a_role
from flushtracker.postgres.socket_wait import wait_readable
from flushtracker.wal.lsn import parse_lsn
from flushtracker.wal.timeline_history import TimelineHistory

_FRAMES_PER_READ: Final = 1_000


@dataclass(frozen=True, slots=True)
class SystemIdentity:
    """The result of IDENTIFY_SYSTEM: which server this is, its timeline, and how far its WAL is written.

    ``pid`` is the server's process at the other end of this connection.
    """

    system_id: str
    timeline: int
    wal_lsn: int
    pid: int


class ReplicationStream:
    """A connection for logical replication; :meth:`start` acquires the slot exclusively, until the connection ends.

    One thread reads; another may send status updates. Errors are those of :class:`CopyStream`.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self._connection = connect_for_replication(options)
        self._stream: CopyStream | None = None
        self.has_messages = False
        """Whether it was started with messages."""

    def identify_system(self) -> SystemIdentity:
        """Identify the server; only before :meth:`start`."""
        ((system_id, timeline, wal_lsn, _),) = rows(self._connection, "IDENTIFY_SYSTEM")
        ((pid,),) = rows(self._connection, "SELECT pg_backend_pid()")
        return SystemIdentity(str(system_id), int(timeline), parse_lsn(wal_lsn), int(pid))

    def timeline_history(self, timeline: int) -> TimelineHistory:
        """The history of the server's timeline; only before :meth:`start`.

        Raises:
            PostgresError: the server does not have it, or does not tell it to this role.
            DecodeError: it is malformed.
        """
        if timeline == 1:
            # The first timeline has no file.
            return TimelineHistory(1)
        ((_, content),) = rows(self._connection, f"TIMELINE_HISTORY {timeline:d}")
        text = content if isinstance(content, str) else bytes(content).decode(errors="replace")
        return TimelineHistory.parse(timeline, text)

    def start(self, slot: str, publication: str, *, messages: bool = False) -> None:
        """Start streaming from the slot's ``confirmed_flush_lsn``.

        With ``messages``, also those of ``pg_logical_emit_message``, of up to 1 GB each, which any role may write; and
        so transactions that have nothing else, which the server leaves out otherwise, but for PostgreSQL 14.

        Raises:
            PostgresUnavailableError: another connection still uses the slot, or the server does not answer.
            PostgresError: the slot is lost, or does not exist.
        """
        with answer_deadline(self._connection), translated_errors():
            cursor = self._connection.cursor()
            names = quote_ident(publication, cursor).replace("'", "''")
            cursor.start_replication_expert(  # type: ignore[attr-defined]  # a replication cursor
                f"START_REPLICATION SLOT {quote_ident(slot, cursor)} LOGICAL 0/0 "
                f"(proto_version '1', publication_names '{names}', messages '{str(messages).lower()}')"
            )
        self._stream = CopyStream(self._connection)
        self.has_messages = messages

    def read(self) -> list[Frame]:
        """The frames that have arrived, at most 1,000; empty if there are none yet."""
        return [decode_frame(frame) for frame in self._started().read(_FRAMES_PER_READ)]

    def wait(self, seconds: float) -> None:
        """Return when data has arrived, or after ``seconds``."""
        wait_readable(self._connection.fileno(), seconds)

    def send(self, status_update: bytes) -> None:
        """Send one standby status update; never blocks."""
        self._started().write(status_update)

    def close(self) -> None:
        """Close the connection, which releases the slot."""
        if self._stream is not None:
            self._stream.detach()
        self._connection.close()

    def _started(self) -> "CopyStream":
        if self._stream is None:
            raise PostgresUnavailableError("the replication stream has not been started")
        return self._stream


class CopyStream:
    """Reads and writes the frames of a connection in copy mode, from several threads; the caller closes the connection.

    psycopg2 can read a replication stream, but on keepalives it advances the position that it confirms by itself, past
    what was acknowledged here; inside a large transaction, that loses the transaction. So psycopg2 connects and starts
    the stream, and from then on libpq's own functions are called on its connection. They never block.

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
        """The frames that have arrived, at most ``limit`` and 1 MiB and one more; empty if there are none yet."""
        frames: list[bytes] = []
        with self._lock:
            connection = self._attached()
            if self._end is None:
                frames, is_end = libpq.read_frames(connection, limit, is_message_of_a_role)
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
