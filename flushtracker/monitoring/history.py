"""``History``: how far the WAL was written, seen, acknowledged and confirmed, over the last hour; in memory only.

One point for each source and moment, from the documents of the job and of capture together. What is not known then is
``None``.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from threading import Lock
from typing import Any, Final

from flushtracker.monitoring.program_status import ProgramStatus
from flushtracker.status.job_status import JobStatus
from flushtracker.status.json_document import lsn_to_json

PERIOD_S: Final = 10
_POINTS: Final = 360
_MAX_SOURCES: Final = 8


@dataclass(slots=True)
class _Point:
    at_ms: int
    written_lsn: int | None = None
    seen_lsn: int | None = None
    ack_lsn: int | None = None
    confirmed_lsn: int | None = None

    def to_json(self) -> list[Any]:
        lsns = (self.written_lsn, self.seen_lsn, self.ack_lsn, self.confirmed_lsn)
        return [self.at_ms, *map(lsn_to_json, lsns)]


class History:
    """The last 360 points of each source, of at most eight sources. Any thread may add and read."""

    def __init__(self) -> None:
        # As they are sent: they are sent more often than they are added.
        self._points: dict[str, deque[list[Any]]] = {}
        self._lock = Lock()

    def add(self, at_ms: int, statuses: Iterable[ProgramStatus]) -> None:
        """Add what these documents say of their sources now."""
        new: dict[str, _Point] = {}
        for status in statuses:
            _merge(new, at_ms, status)
        with self._lock:
            for source, point in new.items():
                if source in self._points or len(self._points) < _MAX_SOURCES:
                    self._points.setdefault(source, deque(maxlen=_POINTS)).append(point.to_json())
            for source in [name for name, points in self._points.items() if _is_past(points, at_ms)]:
                del self._points[source]

    def to_json(self) -> dict[str, Any]:
        """Source → points, the oldest first: the time, then the LSNs written, seen, acknowledged and confirmed."""
        with self._lock:
            return {source: list(points) for source, points in self._points.items()}


def _merge(points: dict[str, _Point], at_ms: int, status: ProgramStatus) -> None:
    if isinstance(status, JobStatus):
        for source in status.sources:
            point = points.setdefault(source.source, _Point(at_ms))
            point.seen_lsn, point.ack_lsn = source.last_seen_lsn, source.ack_lsn
    elif status.source is not None:
        point = points.setdefault(status.source, _Point(at_ms))
        point.confirmed_lsn = status.confirmed_lsn
        point.written_lsn = None if status.slot is None else status.slot.written_lsn
        # The job's own answer is newer than what capture has read of it.
        point.ack_lsn = status.acknowledged_lsn if point.ack_lsn is None else point.ack_lsn


def _is_past(points: deque[list[Any]], now_ms: int) -> bool:
    return bool(now_ms - points[-1][0] > _POINTS * PERIOD_S * 1_000)
