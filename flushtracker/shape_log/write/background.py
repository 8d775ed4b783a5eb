"""The background threads of the writers' job: upkeep of the shape log, snapshots, and figures for the status."""

import logging
import time
from collections.abc import Callable
from datetime import timedelta
from threading import Event, Thread
from typing import ClassVar, Final

from pyspark import InheritableThread

from flushtracker.config.write_config import LogConfig
from flushtracker.events.registry import Registry
from flushtracker.process.clock import AgeClock
from flushtracker.shape_log.snapshot.live_snapshot_status import LiveSnapshotStatus
from flushtracker.shape_log.table.retention import RetentionPolicy
from flushtracker.shape_log.table.snapshots import SnapshotsTaken
from flushtracker.shape_log.table.upkeep import ShapeLogUpkeep
from flushtracker.shape_log.write.live_write_status import LiveWriteStatus
from flushtracker.shape_log.write.shape_counts import count_shapes

logger = logging.getLogger(__name__)

SNAPSHOT_PERIOD_S: Final = 2.0
_UPKEEP_PERIOD_S: Final = 10.0
_SHAPES_PERIOD_S: Final = 10.0


class PeriodicThread:
    """Calls :meth:`run_once` inside its block: at the start, and then after each period."""

    thread_type: ClassVar[type[Thread]] = Thread

    def __init__(self, name: str, period_s: float, stop_timeout_s: float) -> None:
        self._period_s, self._stop_timeout_s = period_s, stop_timeout_s
        self._stop = Event()
        self._thread = self.thread_type(target=self._run, name=name, daemon=True)

    def __enter__(self) -> "PeriodicThread":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        # Work not committed by then is lost, and done again after the next start.
        self._thread.join(self._stop_timeout_s)

    def _run(self) -> None:
        # A job that reads what is available and ends may take less than one period.
        self.run_once()
        while not self._stop.wait(self._period_s):
            self.run_once()

    def run_once(self) -> None:
        """Do the work that is due; must not raise."""
        raise NotImplementedError


class UpkeepThread(PeriodicThread):
    """Runs the upkeep of ``sink``, whose tables must exist; logs and records failures, and retries.

    Only one writer at a time has claimed the log, so only one process does this.
    """

    def __init__(self, sink: LogConfig, status: LiveWriteStatus) -> None:
        super().__init__("upkeep", _UPKEEP_PERIOD_S, stop_timeout_s=5.0)
        self._status = status
        self._clock = AgeClock()
        delete_after = None if sink.delete_after_ms is None else timedelta(milliseconds=sink.delete_after_ms)
        self._upkeep = ShapeLogUpkeep(
            sink.log, sink.shapes, delete_after=delete_after, retain=_retain(sink), storage_options=sink.storage_options
        )

    def run_once(self) -> None:
        self._status.upkeep_started()
        try:
            done = self._upkeep.run(self._clock.to_judge())
        except Exception as error:  # noqa: BLE001  it must not end the upkeep, let alone the job
            logger.warning("upkeep failed, retrying: %s", error)
            self._status.upkeep_failed(error)
            return
        self._status.upkeep_done(done)
        if done.merges or done.deleted_shapes or done.folded_shapes or done.vacuumed_files:
            logger.info(
                "upkeep merges=%d rewritten_bytes=%d deleted_shapes=%d folded_shapes=%d dropped_rows=%d "
                "vacuumed_files=%d",
                *(done.merges, done.rewritten_bytes, done.deleted_shapes),
                *(done.folded_shapes, done.dropped_rows, done.vacuumed_files),
            )


def _retain(sink: LogConfig) -> RetentionPolicy | None:
    def kept(history_ms: int) -> timedelta:
        return timedelta(milliseconds=history_ms)

    if sink.history_ms is None and not sink.history_ms_of:
        return None
    history = None if sink.history_ms is None else kept(sink.history_ms)
    return RetentionPolicy(history, {shape_id: kept(each) for shape_id, each in sink.history_ms_of.items()})


class SnapshotThread(PeriodicThread):
    """Calls ``take``, which takes the snapshots of new shapes until the event is set; logs and records failures.

    The same failure is logged only once in a row. Failures are retried.
    """

    thread_type = InheritableThread

    def __init__(self, take: Callable[[Event], None], live: LiveSnapshotStatus) -> None:
        super().__init__("snapshots", SNAPSHOT_PERIOD_S, stop_timeout_s=10.0)
        self._take = take
        self._live = live
        self._last_error = ""

    def run_once(self) -> None:
        try:
            self._take(self._stop)
        except Exception as error:  # noqa: BLE001  it must not end the job, which also works without snapshots
            if str(error) != self._last_error:
                logger.warning("snapshots failed, retrying: %s", error)
            self._last_error = str(error)
            self._live.note_server_error(error)


class ShapesThread(PeriodicThread):
    """Counts the shapes of the registry for ``status``; logs and records failures, and retries.

    A separate thread, because upkeep may take minutes. Finding the shapes with a snapshot takes a query of the whole
    log. It runs only if one may have been taken, and at most a twentieth of the time.
    """

    def __init__(self, sink: LogConfig, status: LiveWriteStatus) -> None:
        super().__init__("shapes", _SHAPES_PERIOD_S, stop_timeout_s=5.0)
        self._status = status
        self._taken = SnapshotsTaken(sink.log, sink.storage_options)
        self._counted: Registry | None = None
        self._is_one_lacking = True
        """Whether a shape lacked a snapshot at the last check. An incarnation never loses its snapshot."""

    def run_once(self) -> None:
        started_s = time.monotonic()
        try:
            self._count()
        except Exception as error:  # noqa: BLE001  missing in the status; the job continues
            logger.warning("shapes not counted, retrying: %s", error)
            self._status.note_failure(error)
        self._period_s = max(_SHAPES_PERIOD_S, 20 * (time.monotonic() - started_s))

    def _count(self) -> None:
        registry = self._status.registry
        has_new = self._is_one_lacking and self._taken.update()
        if registry is self._counted and not has_new:
            return
        counts = count_shapes(registry, self._taken.incarnations)
        self._is_one_lacking = any(shapes.without_snapshot_count for shapes in counts.values())
        self._status.note_shapes(counts)
        self._counted = registry
