"""``LiveJobStatus``: the tracking job's status, readable from any thread. The driver records each batch."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from flushtracker.process.clock import now_ms
from flushtracker.spark import transaction_watch
from flushtracker.spark.live_query import LiveQuery
from flushtracker.status.document import replace
from flushtracker.status.job_status import Holder, JobStatus, OpenTransaction, SourceStatus
from flushtracker.tracking.group_report import PendingShape
from flushtracker.tracking.source_tracker import SourceTracker
from flushtracker.wal.source_name import successors

_MOST_REMOVED: Final = 1000


@dataclass(frozen=True, slots=True)
class SourceView:
    """A source after its last batch. ``shapes`` are those of ``status.holders``.

    ``since_ms`` has, for each shape that the groups list, since when it is pending without progress;
    ``status.stalled_shapes`` is counted from it. ``removed`` are the shapes last removed while a group listed them.
    """

    status: SourceStatus
    shapes: tuple[PendingShape, ...]
    since_ms: tuple[int, ...]
    removed: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, source: str, tracker: SourceTracker, previous: "SourceView | None", at_ms: int, retired_by: str | None
    ) -> "SourceView":
        """The view after a batch that ended ``at_ms``, given the previous one."""
        removed = previous.removed if previous else ()
        if tracker.removed:
            removed = (*removed, *sorted(tracker.removed))[-_MOST_REMOVED:]
        status = _status(source, tracker, previous, at_ms)
        if retired_by is not None:
            status = replace(status, waiting_since_ms=None, retired_by=retired_by)
        return cls(status, tracker.holders, tuple(tracker.pending_since_ms()), removed)

    def at(self, at_ms: int, grace_ms: int) -> SourceStatus:
        if self.status.retired_by is not None or self.status.gap is not None:
            return self.status
        return replace(self.status, stalled_shapes=sum(at_ms - since_ms >= grace_ms for since_ms in self.since_ms))


def _status(source: str, tracker: SourceTracker, previous: SourceView | None, at_ms: int) -> SourceStatus:
    ack_lsn = _lsn(tracker.ack_lsn)
    if not tracker.holders:
        waiting_since_ms = None
    elif previous is None or previous.status.waiting_since_ms is None:
        # Nothing is known about the time before this job started, so it is at least since then.
        waiting_since_ms = tracker.holders[0].since_ms
    else:
        waiting_since_ms = previous.status.waiting_since_ms if previous.status.ack_lsn == ack_lsn else at_ms
    return SourceStatus(
        source,
        ack_lsn,
        _lsn(tracker.last_seen_offset.tx_offset),
        tracker.pending_shapes,
        0,
        waiting_since_ms,
        tuple(
            Holder(
                shape.shape_id,
                shape.since_ms,
                shape.transactions,
                tracker.held_bytes(shape),
                max(tracker.ack_if_removed(place), 0),
                _lsn(tracker.ack_if_all_removed(place)),
                shape.writer,
            )
            for place, shape in enumerate(tracker.holders)
        ),
        gap=tracker.gap,
    )


def _lsn(lsn: int | None) -> int | None:
    """``None`` for -1, which is before the first."""
    return None if lsn is None or lsn < 0 else lsn


class LiveJobStatus(LiveQuery):
    """``grace_ms`` is ``track.stall_grace``. One thread at a time records; any thread may read."""

    def __init__(self, grace_ms: int, clock_ms: Callable[[], int] = now_ms) -> None:
        super().__init__(clock_ms)
        self.grace_ms = grace_ms
        started_at_ms = clock_ms()
        self._last = JobStatus(started_at_ms, started_at_ms, is_ready=False)
        """Sums over all drivers."""
        self._open_transactions: tuple[OpenTransaction, ...] = ()
        self._events: Mapping[str, int] = {}
        self.sources: Mapping[str, SourceView] = {}
        """Each source after its last batch, without counting ``stalled_shapes``."""

    def note_sources(self, trackers: Mapping[str, SourceTracker]) -> None:
        """Record the sources, once the acks of a batch are in the table, or the trackers are restored."""
        at_ms, before = self._clock_ms(), self.sources
        retired = successors(name for name, each in trackers.items() if each.has_fragments)
        self.sources = {
            name: SourceView.of(name, each, before.get(name), at_ms, retired.get(name))
            for name, each in sorted(trackers.items())
        }

    def note_events(self, events: Mapping[str, int], dead_letters: int) -> None:
        """Record the events that a batch has read from each source, and its refused flush notifications."""
        before, last = self._events, self._last
        self._events = {**before, **{name: before.get(name, 0) + count for name, count in events.items()}}
        self._last = replace(
            last, events=last.events + sum(events.values()), dead_letters=last.dead_letters + dead_letters
        )

    def note_open_transactions(self, found: Iterable[transaction_watch.HangingTransaction]) -> None:
        """Record the transactions that hide records; called from the watching thread, not the driver's."""
        self._open_transactions = tuple(OpenTransaction(*each) for each in found)

    def read(self) -> JobStatus:
        last, events, at_ms = self._last, self._events, self._clock_ms()
        sources = (view.at(at_ms, self.grace_ms) for view in self.sources.values())
        return replace(
            last,
            at_ms=at_ms,
            open_transactions=self._open_transactions,
            sources=tuple(replace(source, events=events.get(source.source, 0)) for source in sources),
            **self.figures()._asdict(),
        )
