"""``StatusSender``: confirms the slot's position to the server from separate threads, even while capture is blocked.

One thread sends the status updates, well within the server's ``wal_sender_timeout``; the other reads the acks, which
may take long if their storage is slow. Neither touches what is published.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

from flushtracker.capture.standby_status import StandbyStatus
from flushtracker.errors import FlushtrackerError, SinkError

logger = logging.getLogger(__name__)


class StatusStream(Protocol):
    """The connection that updates are sent over. If it is lost, its reader notices as well."""

    def send(self, status_update: bytes) -> None: ...


class StatusSender:
    """Sends ``status`` over ``stream`` every ``status_s`` seconds, and reads its ack by ``last_ack`` every ``acks_s``.

    A context manager: after it, no update is sent, and an ack that is still being read is discarded.
    """

    def __init__(
        self,
        stream: StatusStream,
        status: StandbyStatus,
        last_ack: Callable[[], int | None],
        *,
        status_s: float,
        acks_s: float,
    ) -> None:
        self._stream = stream
        self._status = status
        self._last_ack = last_ack
        self._status_s = status_s
        self._acks_s = acks_s
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._request_reply = False
        self._threads = [
            threading.Thread(target=self._send_updates, name="status-updates", daemon=True),
            threading.Thread(target=self._read_acks, name="acks", daemon=True),
        ]

    def send_soon(self, *, request_reply: bool = False) -> None:
        """Send an update at once; with ``request_reply``, the server replies to it."""
        self._request_reply = self._request_reply or request_reply
        self._wake.set()

    def __enter__(self) -> "StatusSender":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._wake.set()
        self._threads[0].join()
        # Slow storage must not delay the exit: an ack that it returns later is discarded.
        self._threads[1].join(self._acks_s)

    def _send_updates(self) -> None:
        while not self._stop.is_set():
            self._wake.clear()
            request_reply, self._request_reply = self._request_reply, False
            before = self._status.flushed_lsn
            try:
                self._stream.send(self._status.status_update(time.time_ns() // 1000, reply_requested=request_reply))
            except FlushtrackerError:
                # The thread that reads the stream gets the same error and handles it.
                return
            if self._status.flushed_lsn > before:
                logger.debug("slot confirmed confirmed_lsn=%X", self._status.flushed_lsn)
            self._wake.wait(self._status_s)

    def _read_acks(self) -> None:
        while not self._stop.is_set():
            try:
                ack_lsn = self._last_ack()
            except SinkError as error:
                logger.warning("acks not readable reason=%s", error)
            else:
                if ack_lsn is not None and not self._stop.is_set() and ack_lsn > self._status.acknowledged_lsn:
                    self._status.handle_ack(ack_lsn)
                    self._wake.set()
            self._stop.wait(self._acks_s)
