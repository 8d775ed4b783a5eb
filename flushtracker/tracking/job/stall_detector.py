"""``StallDetector``: logs shapes without progress, even on a quiet table, where no micro-batch runs."""

import logging
from collections.abc import Callable
from threading import Event, Thread
from typing import Final, NamedTuple

from flushtracker.process.clock import now_ms
from flushtracker.status.job_status import SourceStatus
from flushtracker.tracking.group_report import HOLDERS
from flushtracker.tracking.job.live_job_status import LiveJobStatus, SourceView
from flushtracker.wal.log_offset import LogOffset

logger = logging.getLogger(__name__)

_SHORTEST_TICK_S: Final = 0.1
_LONGEST_TICK_S: Final = 10.0


class _Stall(NamedTuple):
    """A shape that has not flushed past ``last_flushed`` for the grace period; ordered like holders."""

    last_flushed: LogOffset
    shape_id: str


class StallDetector:
    """A thread that logs those of the first ten holders that have made no progress for the grace period.

    Each stall is logged again whenever its time has doubled (grace, 2 × grace, 4 × grace, …), and once when it ends. A
    retired source is only logged once, if something is pending, and a source with a gap not at all. The thread only
    reads ``status``. A context manager.
    """

    def __init__(self, status: LiveJobStatus, clock_ms: Callable[[], int] = now_ms) -> None:
        self._status = status
        self._clock_ms = clock_ms
        self._tick_s = min(max(status.grace_ms / 4000, _SHORTEST_TICK_S), _LONGEST_TICK_S)
        self._stop = Event()
        self._logged: dict[str, dict[_Stall, int]] = {}
        """By source, how often each stall was logged, or would have been if the job had run since its start."""
        self._retired: set[str] = set()
        self._thread = Thread(target=self._run, name="stall-detector", daemon=True)

    def __enter__(self) -> "StallDetector":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._tick_s):
            self.tick()

    def tick(self) -> None:
        for source, view in self._status.sources.items():
            if view.status.retired_by is not None:
                self._log_retired(view.status)
                continue
            if view.status.gap is not None:
                continue
            logged = self._logged.setdefault(source, {})
            self._log_stalled(source, view, logged)
            self._log_ended(source, view, logged)

    def _log_retired(self, status: SourceStatus) -> None:
        self._logged.pop(status.source, None)
        if status.pending_shapes and status.source not in self._retired:
            self._retired.add(status.source)
            logger.info(
                "source retired source=%s by=%s pending_shapes=%d; nothing waits for them",
                *(status.source, status.retired_by, status.pending_shapes),
            )

    def _log_stalled(self, source: str, view: SourceView, logged: dict[_Stall, int]) -> None:
        at_ms = self._clock_ms()
        for shape, holder in zip(view.shapes, view.status.holders, strict=True):
            stall, waited_ms = _Stall(shape.last_flushed, shape.shape_id), at_ms - shape.since_ms
            # 1 from the grace period on, 2 from twice that, 3 from four times that.
            times = (waited_ms // self._status.grace_ms).bit_length() if waited_ms > 0 else 0
            if times > logged.get(stall, 0):
                logged[stall] = times
                logger.warning(
                    "shape stalled source=%s shape_id=%s last_flushed=%s waited_ms=%d held_bytes=%d",
                    source,
                    shape.shape_id,
                    shape.last_flushed,
                    waited_ms,
                    holder.held_bytes,
                )

    def _log_ended(self, source: str, view: SourceView, logged: dict[_Stall, int]) -> None:
        listed = [_Stall(shape.last_flushed, shape.shape_id) for shape in view.shapes]
        for stall in sorted(logged.keys() - set(listed)):
            # If the list is full, a shape beyond its end may still be stalled.
            if len(listed) < HOLDERS or stall < listed[-1]:
                del logged[stall]
                logger.info(
                    "shape no longer stalled source=%s shape_id=%s was_at=%s cause=%s",
                    source,
                    stall.shape_id,
                    stall.last_flushed,
                    "removed" if stall.shape_id in view.removed else "flushed",
                )
