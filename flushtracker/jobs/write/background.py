"""The threads of the writers' job beside its query: upkeep of the shape log, and snapshots of new shapes."""

import logging
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from threading import Event, Thread
from typing import ClassVar, Final

from pyspark import InheritableThread

from flushtracker.config.write_config import LogConfig
from flushtracker.delta.log.retention import Retain
from flushtracker.delta.log.upkeep import ShapeLogUpkeep

logger = logging.getLogger(__name__)

SNAPSHOT_PERIOD_S: Final = 2.0
_UPKEEP_PERIOD_S: Final = 10.0


class _PeriodicThread:
    """Calls :meth:`run_once` inside its block: at the start, and then after each period."""

    thread_type: ClassVar[type[Thread]] = Thread

    def __init__(self, name: str, period_s: float, stop_timeout_s: float) -> None:
        self._period_s, self._stop_timeout_s = period_s, stop_timeout_s
        self._stop = Event()
        self._thread = self.thread_type(target=self._run, name=name, daemon=True)

    def __enter__(self) -> "_PeriodicThread":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        # Work that is not committed by then is lost, and done again after the next start.
        self._thread.join(self._stop_timeout_s)

    def _run(self) -> None:
        # A job that reads what is available and ends may take less than a period.
        self.run_once()
        while not self._stop.wait(self._period_s):
            self.run_once()

    def run_once(self) -> None:
        """Do the work that is due; raises nothing."""
        raise NotImplementedError


class UpkeepThread(_PeriodicThread):
    """Runs the upkeep of ``sink``, whose tables exist; logs a failure, and retries.

    Only one writer at a time has the log, so only one process does this.
    """

    def __init__(self, sink: LogConfig) -> None:
        super().__init__("upkeep", _UPKEEP_PERIOD_S, stop_timeout_s=5.0)
        delete_after = None if sink.delete_after_ms is None else timedelta(milliseconds=sink.delete_after_ms)
        self._upkeep = ShapeLogUpkeep(
            sink.log,
            sink.shapes,
            delete_after=delete_after,
            retain=_retain(sink),
            storage_options=sink.storage_options,
        )

    def run_once(self) -> None:
        """See :class:`_PeriodicThread`."""
        try:
            done = self._upkeep.run(datetime.now(timezone.utc))
        except Exception as error:  # noqa: BLE001  it must not end the upkeep, let alone the job
            logger.warning("upkeep failed, retrying: %s", error)
            return
        if done.merges or done.deleted_shapes or done.folded_shapes or done.vacuumed_files:
            logger.info(
                "upkeep merges=%d rewritten_bytes=%d deleted_shapes=%d folded_shapes=%d dropped_rows=%d "
                "vacuumed_files=%d",
                *(done.merges, done.rewritten_bytes, done.deleted_shapes),
                *(done.folded_shapes, done.dropped_rows, done.vacuumed_files),
            )


def _retain(sink: LogConfig) -> Retain | None:
    def kept(history_ms: int) -> timedelta:
        return timedelta(milliseconds=history_ms)

    if sink.history_ms is None and not sink.history_ms_of:
        return None
    history = None if sink.history_ms is None else kept(sink.history_ms)
    return Retain(history, {shape_id: kept(each) for shape_id, each in sink.history_ms_of.items()})


class SnapshotThread(_PeriodicThread):
    """Calls ``take``, which takes the snapshots of new shapes until the event is set; logs a failure, and retries.

    The same failure is logged only once in a row.
    """

    thread_type = InheritableThread

    def __init__(self, take: Callable[[Event], None]) -> None:
        super().__init__("snapshots", SNAPSHOT_PERIOD_S, stop_timeout_s=10.0)
        self._take = take
        self._last_error = ""

    def run_once(self) -> None:
        """See :class:`_PeriodicThread`."""
        try:
            self._take(self._stop)
        except Exception as error:  # noqa: BLE001  it must not end the job, which also works without snapshots
            if str(error) != self._last_error:
                logger.warning("snapshots failed, retrying: %s", error)
            self._last_error = str(error)
