"""``LiveSinkStatus``: the status of the running program, readable from any thread without a lock."""

from collections.abc import Collection
from heapq import nsmallest
from math import inf

from flushtracker.process.clock import now_ms
from flushtracker.sinks.job.shape_feed import ShapeFeed
from flushtracker.status.document import bounded, replace
from flushtracker.status.sink_status import MOST_LISTED, SinkGroup, SinkShape, SinkStatus


class LiveSinkStatus:
    """The loop reports to it."""

    def __init__(self) -> None:
        at_ms = now_ms()
        self._last = SinkStatus(at_ms, at_ms)
        self.shapes: tuple[SinkShape, ...] = ()
        """All shapes, as of the last look; the status lists a few."""
        self._held: dict[str, dict[str, tuple[dict[int, int], int]]] = {}
        """By topic and group, for a group that holds the shape: its committed positions, and when they last changed."""

    def read(self) -> SinkStatus:
        return replace(self._last, at_ms=now_ms())

    def committed(self) -> None:
        self._last = replace(self._last, transactions=self._last.transactions + 1, transaction_at_ms=now_ms())

    def looked(self, feeds: Collection[ShapeFeed]) -> None:
        sources = {feed.source for feed in feeds}
        at_ms, source = now_ms(), sources.pop() if len(sources) == 1 else None
        topics = {feed.topic for feed in feeds}
        self._held = {topic: held for topic, held in self._held.items() if topic in topics}
        self.shapes = tuple(self._shape(feed, at_ms) for feed in feeds)
        listed = tuple(nsmallest(MOST_LISTED, self.shapes, key=_urgency))
        self._last = replace(self._last, looked_at_ms=at_ms, source=source, shape_count=len(self.shapes), shapes=listed)

    def _shape(self, feed: ShapeFeed, at_ms: int) -> SinkShape:
        progress = feed.progress
        unread, lost = dict.fromkeys(progress.counted, 0), dict.fromkeys(progress.counted, 0)
        for lag in progress.lags():
            unread[lag.group] += lag.end - lag.position
        for loss in progress.losses:
            lost[loss.group] += 1
        before = self._held.get(feed.topic, {})
        counted = {group: dict(progress.counted[group]) for group in progress.holders()}
        held = self._held[feed.topic] = {
            group: before[group] if group in before and before[group][0] == now else (now, at_ms)
            for group, now in counted.items()
        }
        groups = tuple(
            SinkGroup(group, unread[group], held[group][1] if group in held else None, lost[group])
            for group in progress.counted
        )
        flushed = None if progress.flushed is None else progress.flushed.tx_offset
        problem = None if feed.problem is None else bounded(str(feed.problem))
        return SinkShape(feed.shape_id, feed.topic, feed.needs_snapshot, problem, flushed, groups)


def _urgency(shape: SinkShape) -> tuple[bool, bool, float, bool, str]:
    """The order in which shapes are listed."""
    since_ms = min((each.holds_since_ms for each in shape.groups if each.holds_since_ms is not None), default=inf)
    has_lost = any(each.lost_partitions for each in shape.groups)
    return shape.problem is None, not has_lost, since_ms, not shape.waits_for_snapshot, shape.shape_id
