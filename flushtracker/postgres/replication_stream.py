"""``ReplicationStream``: the connection over which the server sends a slot's changes."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import psycopg

from flushtracker.errors import PostgresError, PostgresUnavailableError
from flushtracker.postgres.connection import connect_for_replication, rows, server_encoding, wait_readable
from flushtracker.postgres.copy_out import end_error, interrupted, read_frames, start_copy
from flushtracker.postgres.replication_frames import Frame, decode_frame, is_message_of_a_role
from flushtracker.shapes.item_key import quoted
from flushtracker.wal.lsn import parse_lsn
from flushtracker.wal.text_codecs import CODECS, UTF8
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

    One thread reads; another may send status updates, and any may close. Reading and sending never block. Once started,
    every method raises ``PostgresUnavailableError`` if the connection is lost or closed, and ``PostgresError`` if the
    server has ended the stream with an error.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self._connection = connect_for_replication(options)
        self._lock = threading.Lock()
        self._end: PostgresError | None = PostgresUnavailableError("the replication stream has not been started")
        self.has_messages = False
        """Whether it was started with messages."""
        self.codec = UTF8
        """Decodes the texts that the server sends, once started."""

    def identify_system(self) -> SystemIdentity:
        """Identify the server; only before :meth:`start`."""
        ((system_id, timeline, wal_lsn, _),) = rows(self._connection, "IDENTIFY_SYSTEM")
        ((pid,),) = rows(self._connection, "SELECT pg_backend_pid()")
        return SystemIdentity(str(system_id), int(timeline), parse_lsn(wal_lsn), int(pid))

    def timeline_history(self, timeline: int) -> TimelineHistory:
        """The history of the server's timeline; only before :meth:`start`.

        Raises:
            PostgresError: the server does not have it, or this role may not read it.
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

        ``messages`` adds those of ``pg_logical_emit_message``, of up to 1 GB each, which any role may write, and with
        them transactions that have nothing else, which all versions but PostgreSQL 14 otherwise omit.

        Raises:
            PostgresUnavailableError: another connection still uses the slot, or the server does not respond.
            PostgresError: the slot is lost, or does not exist.
        """
        encoding = server_encoding(self._connection)
        if encoding in CODECS:
            # The server would end the stream at text that it cannot convert to UTF-8, each time again.
            rows(self._connection, f"SET client_encoding = {encoding}")
            self.codec = CODECS[encoding]
        names = quoted(publication).replace("'", "''")
        start_copy(
            self._connection,
            f"START_REPLICATION SLOT {quoted(slot)} LOGICAL 0/0 "
            f"(proto_version '1', publication_names '{names}', messages '{str(messages).lower()}')",
            self.codec,
        )
        self._end = None
        self.has_messages = messages

    def read(self) -> list[Frame]:
        """The frames that have arrived, at most 1,000, and at most 1 MiB plus one frame; empty if there are
        none yet.
        """
        frames: list[bytes] = []
        with self._lock:
            if self._end is None:
                frames, is_end = read_frames(self._connection, _FRAMES_PER_READ, is_message_of_a_role)
                if is_end:
                    # libpq reports the end only once, and the frames before it come first.
                    self._end = end_error(self._connection) or PostgresUnavailableError(
                        "the server has ended the replication stream"
                    )
        if self._end is not None and not frames:
            raise self._end
        return [decode_frame(frame) for frame in frames]

    def wait(self, seconds: float) -> None:
        """Return when data has arrived, or after ``seconds``."""
        wait_readable(self._connection, seconds)

    def send(self, status_update: bytes) -> None:
        """Queue one standby status update. It is sent now or, if the network is congested, during a later call.

        It is dropped if the buffer is full: the next one supersedes it.
        """
        pgconn = self._connection.pgconn
        with self._lock:
            try:
                pgconn.put_copy_data(status_update)
                pgconn.flush()
            except psycopg.OperationalError as error:
                raise interrupted(error) from error

    def close(self) -> None:
        """Close the connection, which releases the slot."""
        with self._lock:
            self._end = PostgresUnavailableError("the replication stream is closed")
            self._connection.close()
