"""``CaptureConnection``: one connection's stream, from its first frame to the loss of the connection."""

import logging
import time
from datetime import datetime, timezone
from threading import Event
from typing import Final

from flushtracker.capture.capture_config import Intervals
from flushtracker.capture.captured_source import CapturedSource
from flushtracker.capture.collector import Collector
from flushtracker.capture.shapes_watch import ShapesWatch
from flushtracker.capture.status_sender import StatusSender
from flushtracker.errors import PostgresUnavailableError
from flushtracker.postgres.replication_frames import Frame, Keepalive
from flushtracker.postgres.replication_stream import ReplicationStream
from flushtracker.postgres.server_tables import ServerTables
from flushtracker.wal.lsn import format_lsn

logger = logging.getLogger(__name__)

_WAIT_S: Final = 0.05
_REPORT_S: Final = 10.0
_QUIET_S: Final = 20.0
"""So long nothing comes before the server is asked for a word; as long again, and the connection counts as lost."""

_CONTROL_S: Final = 0.2
"""A server that shuts down ends ordinary connections at once, but this stream only when everything sent is flushed,
which may take the shapes for ever. So when the one is ended, we end the other."""


class CaptureConnection:
    """Reads ``stream`` into ``collector``, and does what is due meanwhile."""

    def __init__(
        self,
        source: CapturedSource,
        collector: Collector,
        stream: ReplicationStream,
        sender: StatusSender,
        tables: ServerTables,
        intervals: Intervals,
    ) -> None:
        self._source = source
        self._collector = collector
        self._stream = stream
        self._sender = sender
        self._tables = tables
        now_s = time.monotonic()
        self._keepalives = Timer(intervals.keepalive_ms / 1000, now_s)
        self._shape_checks = Timer(intervals.shapes_ms / 1000, now_s)
        self._heartbeats = Timer(None if intervals.heartbeat_ms is None else intervals.heartbeat_ms / 1000, now_s)
        self._control_checks = Timer(_CONTROL_S, now_s)
        self._reports = Timer(_REPORT_S, now_s)
        self._heard_s = now_s
        self._asked_s: float | None = None

    def run(self, shapes: ShapesWatch, stop: Event) -> None:
        """Until ``stop`` is set.

        Raises:
            PostgresUnavailableError: the connection is lost.
            FlushtrackerError: anything else that stops the stream.
        """
        try:
            while not stop.is_set():
                frames = self._stream.read()
                for frame in frames:
                    self._handle(frame)
                self._source.outbox.poll()
                self._run_timers(shapes)
                if frames:
                    self._heard_s, self._asked_s = time.monotonic(), None
                else:
                    self._watch_silence()
                    self._stream.wait(_WAIT_S)
        finally:
            self._source.last_transaction = self._collector.last_transaction

    def _handle(self, frame: Frame) -> None:
        if isinstance(frame, Keepalive):
            self._source.status.handle_received(frame.wal_end)
            self._collector.handle_keepalive(frame.wal_end)
            if frame.reply_requested:
                self._sender.send_soon()
        else:
            self._source.status.handle_received(frame.wal_lsn)
            self._collector.handle_message(frame.wal_lsn, frame.data)

    def _run_timers(self, shapes: ShapesWatch) -> None:
        now_s = time.monotonic()
        if self._keepalives.is_due(now_s):
            # A server of version 18 sends nothing of a missing publication, and keepalives all the same.
            self._tables.require_publication()
            moment = datetime.now(timezone.utc).replace(tzinfo=None)
            self._collector.publish_keepalive(moment.isoformat(timespec="microseconds") + "Z")
        if self._shape_checks.is_due(now_s) and self._source.subscriptions is not None:
            shapes.follow(self._source.subscriptions.follow)
        if self._control_checks.is_due(now_s):
            self._tables.require_open()
        if self._heartbeats.is_due(now_s):
            self._tables.emit_heartbeat()
        if self._reports.is_due(now_s):
            status = self._source.status
            logger.info(
                "captured received_lsn=%s published_lsn=%s ack_lsn=%s confirmed_lsn=%s",
                format_lsn(status.received_lsn),
                format_lsn(max(status.published_lsn, 0)),
                format_lsn(max(status.acknowledged_lsn, 0)),
                format_lsn(status.flushed_lsn),
            )

    def _watch_silence(self) -> None:
        """A peer that vanished says nothing, not even when asked."""
        now_s = time.monotonic()
        if self._asked_s is not None and now_s - self._asked_s > _QUIET_S:
            raise PostgresUnavailableError(f"the server has said nothing for {now_s - self._heard_s:.0f} s")
        if self._asked_s is None and now_s - self._heard_s > _QUIET_S:
            self._asked_s = now_s
            self._sender.send_soon(ask_reply=True)


class Timer:
    """Due every ``interval_s`` seconds, never where that is ``None``; time is told to it.

    >>> timer = Timer(5.0, now_s=100.0)
    >>> [timer.is_due(now_s) for now_s in (104.0, 105.0, 106.0, 112.0)]
    [False, True, False, True]
    """

    def __init__(self, interval_s: float | None, now_s: float) -> None:
        self._interval_s = interval_s
        self._next_s = None if interval_s is None else now_s + interval_s

    def is_due(self, now_s: float) -> bool:
        """Whether it is time; then it is not again for an interval."""
        if self._next_s is None or self._interval_s is None or now_s < self._next_s:
            return False
        self._next_s = now_s + self._interval_s
        return True
