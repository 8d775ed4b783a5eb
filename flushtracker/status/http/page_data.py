"""``PageData``: the page's data besides the program's own document: its peers' documents and the last hour.

The history is kept in memory only: one point per source and time, from the documents of the job and of capture
together. Unknown values are ``None``.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Event, Lock, Thread
from typing import Any, Final

from flushtracker.process.clock import now_ms
from flushtracker.status.advice import advice
from flushtracker.status.capture_status import CaptureStatus
from flushtracker.status.document import lsn_to_json
from flushtracker.status.http.peers import PeerAnswer, StatusPeer
from flushtracker.status.job_status import JobStatus
from flushtracker.status.program_findings import program_findings
from flushtracker.status.program_status import ProgramStatus

_PERIOD_S: Final = 10
_POINTS: Final = 360
_MAX_SOURCES: Final = 8
_STOP_S: Final = 1.0


class PageData:
    """From :meth:`start` to :meth:`close`, threads poll the peers and add a point to the history every ten seconds.

    ``read`` returns the program's own document.
    """

    def __init__(self, read: Callable[[], ProgramStatus], peers: Sequence[str]) -> None:
        self._read = read
        self._peers = [StatusPeer(url) for url in peers]
        self._history = LsnHistory()
        self._stopping = Event()
        self._thread = Thread(target=self._run, name="status-history", daemon=True)

    def start(self) -> None:
        for peer in self._peers:
            peer.start()
        self._thread.start()

    def close(self) -> None:
        """Stop without waiting for a peer."""
        self._stopping.set()
        for peer in self._peers:
            peer.close()
        self._thread.join(_STOP_S)

    def add_point(self) -> None:
        """Add a point to the history, without the program itself if its document cannot be read."""
        at_ms = now_ms()
        statuses = [status for peer in self._peers if (status := peer.answer.fresh(at_ms)) is not None]
        with suppress(Exception):  # /healthz reports it, and the next point may succeed.
            statuses.append(self._read())
        self._history.add(at_ms, statuses)

    def to_json(self) -> dict[str, Any]:
        """The peers, the history and the findings, as JSON for the page."""
        at_ms = now_ms()
        answers = [peer.answer_at(at_ms) for peer in self._peers]
        current = [status for answer in answers if (status := answer.fresh(at_ms)) is not None]
        return {
            "conclusions": [each.to_json() for each in program_findings(self._read())],
            "peers": [_peer_json(answer) for answer in answers],
            "advice": {
                source: [each.to_json() for each in found] for source, found in advice([self._read(), *current]).items()
            },
            "period_ms": _PERIOD_S * 1_000,
            "history": self._history.to_json(),
        }

    def _run(self) -> None:
        while not self._stopping.is_set():
            self.add_point()
            self._stopping.wait(_PERIOD_S)


class LsnHistory:
    """The LSNs written, seen, acknowledged and confirmed over time: the last 360 points of at most eight sources.

    Any thread may add and read.
    """

    def __init__(self) -> None:
        # Kept as sent, because they are sent more often than they are added.
        self._points: dict[str, deque[list[Any]]] = {}
        self._lock = Lock()

    def add(self, at_ms: int, statuses: Iterable[ProgramStatus]) -> None:
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
        """The points by source, the oldest first: the time, then the LSNs written, seen, acknowledged and confirmed."""
        with self._lock:
            return {source: list(points) for source, points in self._points.items()}


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


def _merge(points: dict[str, _Point], at_ms: int, status: ProgramStatus) -> None:
    if isinstance(status, JobStatus):
        for source in status.sources:
            point = points.setdefault(source.source, _Point(at_ms))
            point.seen_lsn, point.ack_lsn = source.last_seen_lsn, source.ack_lsn
    elif isinstance(status, CaptureStatus) and status.source is not None:
        point = points.setdefault(status.source, _Point(at_ms))
        point.confirmed_lsn = status.confirmed_lsn
        point.written_lsn = None if status.slot is None else status.slot.written_lsn
        # The job's own ack is newer than the one that capture has read from the table.
        point.ack_lsn = status.acknowledged_lsn if point.ack_lsn is None else point.ack_lsn


def _is_past(points: deque[list[Any]], at_ms: int) -> bool:
    return bool(at_ms - points[-1][0] > _POINTS * _PERIOD_S * 1_000)


def _peer_json(answer: PeerAnswer) -> dict[str, Any]:
    return {
        "url": answer.url,
        "at_ms": answer.at_ms,
        "error": answer.error,
        "status": None if answer.status is None else answer.status.to_json(),
        "conclusions": [] if answer.status is None else [each.to_json() for each in program_findings(answer.status)],
    }
