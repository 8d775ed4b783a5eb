"""``LiveCaptureStatus``: capture's current status, for any thread, without delaying capture's own.

Capture's thread sets the objects of each connection; :meth:`LiveCaptureStatus.read` copies plain numbers from them
without a lock, so the numbers of one document may be from slightly different moments.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from flushtracker.capture.collector import ChangeCounts
from flushtracker.capture.shapes.refused_shapes import RefusedShapes
from flushtracker.capture.shapes.subscriptions import Subscriptions
from flushtracker.capture.wire.standby_status import StandbyStatus
from flushtracker.status import document
from flushtracker.status.capture_status import CaptureStatus, SlotStatus


@dataclass(frozen=True, slots=True)
class _Connection:
    """The last connection that held the slot; ``matched`` and ``unmatched`` count the changes of earlier ones.

    It ``is_capturing`` from when it has read the shapes and evictions until it is closed. Before that,
    ``subscriptions`` are of the previous connection, and another capture may have written the registry since. It is
    replaced as a whole, so that a reader sees a consistent state.
    """

    source: str
    positions: StandbyStatus
    number: int
    counts: ChangeCounts
    subscriptions: Subscriptions | None
    matched: int = 0
    unmatched: int = 0
    is_capturing: bool = False


class LiveCaptureStatus:
    """One per process. ``queue_bytes``, ``slot`` and ``evicted`` must return at once, in any thread."""

    def __init__(
        self,
        queue_bytes: Callable[[], int],
        slot: Callable[[], SlotStatus | None] = lambda: None,
        evicted: Callable[[], int] = lambda: 0,
        refused: RefusedShapes | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._queue_bytes = queue_bytes
        self._slot = slot
        self._evicted = evicted
        self._refused = RefusedShapes() if refused is None else refused
        self._clock = clock
        self._started_at_ms = self._now_ms()
        self._acks_read_at_ms: int | None = None
        self._connection: _Connection | None = None

    @contextmanager
    def connection(self, source: str, positions: StandbyStatus) -> Iterator[None]:
        """During the body, a connection holds the slot of ``source``; its positions stay known afterwards."""
        last = self._connection
        if last is None:
            opened = _Connection(source, positions, 1, ChangeCounts(), None)
        else:
            opened = _Connection(
                source,
                positions,
                last.number + 1,
                ChangeCounts(),
                last.subscriptions if last.source == source else None,
                last.matched + last.counts.matched,
                last.unmatched + last.counts.unmatched,
            )
        self._connection = opened
        try:
            yield
        finally:
            self._connection = replace(self._connection, is_capturing=False)

    def handle_start(self, subscriptions: Subscriptions, counts: ChangeCounts) -> None:
        """The current :meth:`connection` starts to capture."""
        if self._connection is None:
            raise RuntimeError("capture starts without a connection")
        self._connection = replace(self._connection, subscriptions=subscriptions, counts=counts, is_capturing=True)

    def handle_acks_read(self) -> None:
        self._acks_read_at_ms = self._now_ms()

    def read(self) -> CaptureStatus:
        at_ms, connection = self._now_ms(), self._connection
        status = CaptureStatus(
            at_ms=at_ms,
            started_at_ms=self._started_at_ms,
            source=None,
            is_connected=False,
            slot=self._slot(),
            acks_read_at_ms=self._acks_read_at_ms,
            publish_queue_bytes=self._queue_bytes(),
            evicted=self._evicted(),
            shapes_refused=self._refused.count,
            refused=self._refused.shown,
        )
        return status if connection is None else _with(connection, status)

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)


def _with(connection: _Connection, status: CaptureStatus) -> CaptureStatus:
    positions, subscriptions = connection.positions, connection.subscriptions
    return document.replace(
        status,
        source=connection.source,
        is_connected=connection.is_capturing,
        received_lsn=positions.received_lsn,
        published_lsn=_reached(positions.published_lsn),
        acknowledged_lsn=_reached(positions.acknowledged_lsn),
        confirmed_lsn=positions.flushed_lsn,
        shapes=0 if subscriptions is None else subscriptions.router.shape_count,
        changes_matched=connection.matched + connection.counts.matched,
        changes_unmatched=connection.unmatched + connection.counts.unmatched,
        reconnects=connection.number - 1,
        evictions=() if subscriptions is None else subscriptions.evictions,
        waiting=() if subscriptions is None else subscriptions.waiting,
        ended=() if subscriptions is None else subscriptions.ended,
    )


def _reached(lsn: int) -> int | None:
    """``None`` for -1, which a position has before its first value."""
    return None if lsn < 0 else lsn
