"""``CaptureConnection``: captures over one connection until it is lost."""

import logging
import time
from collections.abc import Iterable
from datetime import datetime, timezone
from threading import Event
from typing import Final

from flushtracker.capture.capture_config import Intervals
from flushtracker.capture.collector import Collector
from flushtracker.capture.eviction.evictor import Evictor
from flushtracker.capture.needed_messages import check_messages
from flushtracker.capture.shapes.shapes_file_reader import ShapesFileReader
from flushtracker.capture.source.captured_source import CapturedSource
from flushtracker.capture.source.upgrade_drain import UpgradeDrain
from flushtracker.capture.wire.receiver_timeout import ReceiverTimeout
from flushtracker.capture.wire.standby_status import StatusSender
from flushtracker.postgres.replication_frames import Frame, XLogData
from flushtracker.postgres.replication_stream import ReplicationStream
from flushtracker.postgres.server_tables import ServerTables
from flushtracker.wal.lsn import format_lsn

logger = logging.getLogger(__name__)

_READ_WAIT_S: Final = 0.05
_PROGRESS_LOG_S: Final = 10.0
_CONTROL_CHECK_S: Final = 0.2
"""How often the ordinary connection is checked. A server that shuts down closes it at once, but closes the stream only
when everything sent is flushed, which shapes may delay indefinitely. So when it is closed, the stream ends too.
"""
_START_CHECK_S: Final = 0.25
_CHECK_PAUSE: Final = 4
"""The tables are compared with the catalog again after this many times the duration of the last comparison, which
depends on the tables' owners: on partitions, columns and types.
"""
_RETRY_PAUSE: Final = 20
"""Shapes that the catalog does not allow are retried after this many times the duration of the last attempt."""
_EVICTION_CHECK_S: Final = 0.25
_DRAIN_CHECK_S: Final = 0.5


class CaptureConnection:
    """Passes the frames of ``stream`` to ``collector``, and runs periodic work in between."""

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
        self._subscriptions = collector.subscriptions
        self._stream = stream
        self._sender = sender
        self._tables = tables
        now_s = time.monotonic()
        self._keepalives = Timer(intervals.keepalive_ms / 1000, now_s)
        self._shape_checks = Timer(intervals.shapes_ms / 1000, now_s)
        self._start_checks = Timer(_START_CHECK_S, now_s)
        self._evictions = Timer(_EVICTION_CHECK_S, now_s)
        self._drain_checks = Timer(_DRAIN_CHECK_S, now_s)
        self._heartbeats = Timer(None if intervals.heartbeat_ms is None else intervals.heartbeat_ms / 1000, now_s)
        self._next_retry_s = now_s
        self._has_logged_standby = False
        self._control_checks = Timer(_CONTROL_CHECK_S, now_s)
        self._progress_logs = Timer(_PROGRESS_LOG_S, now_s)
        self._silence = ReceiverTimeout(tables.wal_sender_timeout_s(), now_s)

    def run(
        self,
        shapes: ShapesFileReader,
        stop: Event,
        evictor: Evictor | None = None,
        drain: UpgradeDrain | None = None,
    ) -> None:
        """Capture until ``stop`` is set; ``evictor``, if any, evicts shapes that hold the slot too long.

        With ``drain``, it ends when that is done, and writes no heartbeats, which would have to be confirmed.

        Raises:
            PostgresUnavailableError: the connection is lost.
            FlushtrackerError: anything else that stops the stream.
        """
        if drain is not None:
            self._heartbeats = Timer(None, 0)
        self._source.status.is_held = not self._collector.is_resend_checked
        try:
            while not stop.is_set():
                frames = self._stream.read()
                if frames:
                    # After they were read, so they are from before any promotion that happens now.
                    self._tables.require_timeline()
                self._handle(frames)
                self._source.outbox.poll()
                self._run_timers(shapes)
                if evictor is not None:
                    self._evict(evictor)
                if drain is not None and self._drain_checks.is_due(time.monotonic()) and drain.is_done():
                    stop.set()
                if frames:
                    self._silence.handle_frames(time.monotonic())
                else:
                    if self._silence.is_reply_due(time.monotonic()):
                        self._sender.send_soon(request_reply=True)
                    self._stream.wait(_READ_WAIT_S)
        finally:
            self._source.last_transaction = self._collector.last_transaction

    def _handle(self, frames: Iterable[Frame]) -> None:
        collector, status = self._collector, self._source.status
        for frame in frames:
            if isinstance(frame, XLogData):
                status.handle_received(frame.wal_lsn)
                collector.handle_message(frame.wal_lsn, frame.data)
            else:
                status.handle_received(frame.wal_end)
                collector.handle_keepalive(frame.wal_end)
                if frame.reply_requested:
                    self._sender.send_soon()
        status.is_held = not collector.is_resend_checked

    def _evict(self, evictor: Evictor) -> None:
        if self._evictions.is_due(time.monotonic()):
            evictor.evict(self._source.name, self._subscriptions)

    def _run_timers(self, shapes: ShapesFileReader) -> None:
        now_s = time.monotonic()
        if self._keepalives.is_due(now_s):
            # Without the publication, PostgreSQL 18 sends no changes but continues to send keepalives.
            self._subscriptions.check_publication()
            now = datetime.now(timezone.utc).replace(tzinfo=None)
            self._collector.publish_keepalive(now.isoformat(timespec="microseconds") + "Z")
        if self._shape_checks.is_due(now_s):
            # First, so that the findings of the last check have had time to get a transaction.
            check_messages(self._collector, self._source.status, has_messages=self._stream.has_messages)
            started_s = time.monotonic()
            self._subscriptions.tables.check()
            ended_s = time.monotonic()
            self._shape_checks.pause(ended_s + _CHECK_PAUSE * (ended_s - started_s))
            self._collector.check_relations(self._tables)
            self._subscriptions.starts.prune()
            self._subscriptions.removed.condense(self._source.status.flushed_lsn)
            self._subscriptions.tables.forget_lost(self._source.status.flushed_lsn)
            self._apply_shapes(shapes)
            self._subscriptions.retract_tables()
        if self._start_checks.is_due(now_s):
            self._subscriptions.check_starts(now_s)
        if self._control_checks.is_due(now_s):
            self._tables.require_open()
            self._source.outbox.require_unfenced()
        if self._heartbeats.is_due(now_s):
            self._emit_heartbeat()
        if self._progress_logs.is_due(now_s):
            status = self._source.status
            logger.info(
                "capture progress received_lsn=%s published_lsn=%s ack_lsn=%s confirmed_lsn=%s",
                format_lsn(status.received_lsn),
                format_lsn(max(status.published_lsn, 0)),
                format_lsn(max(status.acknowledged_lsn, 0)),
                format_lsn(status.flushed_lsn),
            )

    def _apply_shapes(self, shapes: ShapesFileReader) -> None:
        subscriptions, started_s = self._subscriptions, time.monotonic()
        is_retry = bool(subscriptions.refused.definitions) and started_s >= self._next_retry_s
        waiting = subscriptions.add_waiting if is_retry or subscriptions.can_add_delayed() else None
        shapes.apply_file(
            lambda file: subscriptions.apply_definitions(file.definitions, file.allow_removing, file.faults), waiting
        )
        if is_retry:
            ended_s = time.monotonic()
            self._next_retry_s = ended_s + _RETRY_PAUSE * (ended_s - started_s)

    def _emit_heartbeat(self) -> None:
        # A standby may be promoted, so the next heartbeat is tried again.
        if not self._tables.emit_heartbeat() and not self._has_logged_standby:
            self._has_logged_standby = True
            logger.warning(
                "no heartbeats, because the server is a standby, which writes no WAL; if its slot does not advance, "
                "the primary needs the writes"
            )


class Timer:
    """Due every ``interval_s`` seconds, or never if that is ``None``; the caller passes the time.

    >>> timer = Timer(5.0, now_s=100.0)
    >>> [timer.is_due(now_s) for now_s in (104.0, 105.0, 106.0, 112.0)]
    [False, True, False, True]
    """

    def __init__(self, interval_s: float | None, now_s: float) -> None:
        self._interval_s = interval_s
        self._next_s = None if interval_s is None else now_s + interval_s

    def is_due(self, now_s: float) -> bool:
        if self._next_s is None or self._interval_s is None or now_s < self._next_s:
            return False
        self._next_s = now_s + self._interval_s
        return True

    def pause(self, until_s: float) -> None:
        """Delay the timer until ``until_s``, unless it is never due."""
        if self._next_s is not None:
            self._next_s = max(self._next_s, until_s)
