"""``StandbyStatus``: how far the slot may be confirmed, and how far it was.

Four positions, none of which ever decreases:

- ``received_lsn``: the server has sent, and so written, its WAL up to here;
- ``published_lsn``: every transaction with a commit LSN at or below it was published by this process, all of its
  fragments and shape changes confirmed by the broker, or was confirmed to the server before the process began;
- ``acknowledged_lsn``: the greatest ack of this source in the ack table: every shape has flushed everything at or below
  it;
- ``flushed_lsn``: the flush position last reported to the server, its ``confirmed_flush_lsn``.

An ack means "up to and including this commit LSN"; the server resends what commits at or above the reported position.
So that position is the ack plus one, and this is the only place where one is added to an ack. An update's written
position is the published one: snapshots wait for it (``postgres.published_wait``).

``StatusSender`` reports the positions from separate threads, even while capture is blocked. One thread sends the status
updates, well within the server's ``wal_sender_timeout``, as soon as the slot is held. The other reads the acks, which
may take long if their storage is slow. It starts once the connection's source is known and checked: the ack of another
source, such as an earlier epoch's, would confirm WAL that no shape has flushed. Neither affects what is published.
"""

import logging
import threading
import time
from typing import Protocol

from flushtracker.capture.wire.stuck_ack import StuckAck
from flushtracker.errors import FlushtrackerError, SinkError
from flushtracker.postgres.replication_frames import encode_status_update
from flushtracker.wal.lsn import format_lsn

logger = logging.getLogger(__name__)


class StandbyStatus:
    """The positions of one connection; each may have its own writer thread.

    ``confirmed_lsn`` is the slot's ``confirmed_flush_lsn`` on the server.
    """

    def __init__(self, confirmed_lsn: int, *, published_lsn: int = -1, acknowledged_lsn: int = -1) -> None:
        self.received_lsn = confirmed_lsn
        self.published_lsn = max(published_lsn, confirmed_lsn - 1)
        self.acknowledged_lsn = acknowledged_lsn
        self.flushed_lsn = confirmed_lsn
        self.is_held = False
        """While set, no progress is reported, because it is unknown whether the server continues what was published."""

    def handle_received(self, wal_lsn: int) -> None:
        """Note that the server has sent a message at ``wal_lsn``, or states that it has sent everything up to there."""
        self.received_lsn = max(self.received_lsn, wal_lsn)

    def handle_published(self, commit_lsn: int) -> None:
        """Note that the broker has confirmed everything up to and including the transaction at ``commit_lsn``."""
        self.published_lsn = max(self.published_lsn, commit_lsn)

    def handle_ack(self, ack_lsn: int) -> None:
        """Note that every transaction up to and including ``ack_lsn`` is flushed."""
        self.acknowledged_lsn = max(self.acknowledged_lsn, ack_lsn)

    def status_update(self, now_us: int, *, reply_requested: bool = False) -> bytes:
        """The standby status update to send now; sets ``flushed_lsn`` to the position it reports."""
        # A position past the end of the server's WAL would make it skip changes that are not written yet.
        published = -1 if self.is_held else min(self.published_lsn + 1, self.received_lsn)
        self.flushed_lsn = max(self.flushed_lsn, min(self.acknowledged_lsn + 1, published))
        return encode_status_update(
            written_lsn=max(self.flushed_lsn, published),
            flushed_lsn=self.flushed_lsn,
            now_us=now_us,
            reply_requested=reply_requested,
        )


class StatusStream(Protocol):
    """The connection for updates. If it is lost, the thread that reads it notices as well."""

    def send(self, status_update: bytes) -> None: ...


class Acks(Protocol):
    """The acks of this connection's source."""

    def last_ack(self) -> int | None:
        """The last ack, or ``None``; raises ``SinkError`` if it cannot be read."""


class StatusSender:
    """Sends ``status`` over ``stream`` every ``status_s`` seconds; :meth:`follow_acks` updates it every ``acks_s``.

    A context manager: after its end, no update is sent, and an ack that is still being read is discarded.
    """

    def __init__(self, stream: StatusStream, status: StandbyStatus, *, status_s: float, acks_s: float) -> None:
        self._stream = stream
        self._status = status
        self._status_s = status_s
        self._acks_s = acks_s
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._reply_requested = threading.Event()
        self._status_thread = threading.Thread(target=self._send_updates, name="status-updates", daemon=True)
        self._ack_thread: threading.Thread | None = None

    def follow_acks(self, acks: Acks, stuck_ack: StuckAck) -> None:
        """Read ``acks`` from now on, and log when they do not advance.

        Both must be those of this connection's source. Call it once.
        """
        if self._ack_thread is not None:
            raise RuntimeError("this connection already follows the acks of its source")
        self._ack_thread = threading.Thread(target=self._read_acks, args=(acks, stuck_ack), name="acks", daemon=True)
        self._ack_thread.start()

    def send_soon(self, *, request_reply: bool = False) -> None:
        """Send an update at once; with ``request_reply``, the server must reply. For any thread."""
        if request_reply:
            self._reply_requested.set()
        self._wake.set()

    def __enter__(self) -> "StatusSender":
        self._status_thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._wake.set()
        self._status_thread.join()
        if self._ack_thread is not None:
            # Slow storage must not delay the exit: an ack that it returns later is discarded.
            self._ack_thread.join(self._acks_s)

    def _send_updates(self) -> None:
        while not self._stop.is_set():
            self._wake.clear()
            # Cleared only if it was set, and before sending, so that every request is in this update or the next one.
            request_reply = self._reply_requested.is_set()
            if request_reply:
                self._reply_requested.clear()
            before = self._status.flushed_lsn
            try:
                self._stream.send(self._status.status_update(time.time_ns() // 1000, reply_requested=request_reply))
            except FlushtrackerError:
                # The thread that reads the stream gets the same error and handles it.
                return
            if self._status.flushed_lsn > before:
                logger.debug("slot confirmed confirmed_lsn=%s", format_lsn(self._status.flushed_lsn))
            self._wake.wait(self._status_s)

    def _read_acks(self, acks: Acks, stuck_ack: StuckAck) -> None:
        while not self._stop.is_set():
            try:
                ack_lsn = acks.last_ack()
            except SinkError as error:
                logger.warning("acks not readable reason=%s", error)
            else:
                if ack_lsn is not None and not self._stop.is_set() and ack_lsn > self._status.acknowledged_lsn:
                    self._status.handle_ack(ack_lsn)
                    self._wake.set()
            if not self._stop.is_set():
                self._log_stuck(stuck_ack)
            self._stop.wait(self._acks_s)

    def _log_stuck(self, stuck_ack: StuckAck) -> None:
        # Before its first ack, a source's slot is where it was created.
        ack_lsn = max(self._status.acknowledged_lsn, self._status.flushed_lsn - 1)
        notice = stuck_ack.check(ack_lsn, self._status.published_lsn, time.monotonic())
        if notice is None:
            return
        places = format_lsn(notice.ack_lsn), format_lsn(notice.published_lsn), notice.behind_bytes
        if notice.is_over:
            logger.info("ack advances again ack_lsn=%s published_lsn=%s behind_bytes=%d", *places)
            return
        logger.warning(
            "ack stuck, so the slot keeps its WAL ack_lsn=%s published_lsn=%s behind_bytes=%d seconds=%.0f; check that "
            "the tracking job runs; `flushtracker status` shows which shapes hold the ack",
            *places,
            notice.seconds,
        )
