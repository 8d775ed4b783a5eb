"""``FeedLog``: which groups hold shapes, and which records no group will ever read."""

import logging
from collections.abc import Collection, Mapping
from heapq import nsmallest
from operator import itemgetter
from typing import Final

from flushtracker.errors import listed
from flushtracker.events.registry_events import ShapeEntry
from flushtracker.events.stream_events import ShapeChangesEvent
from flushtracker.kafka.group_offsets import Subject
from flushtracker.sinks.group_progress import RecordLoss
from flushtracker.sinks.job.shape_feed import ShapeFeed
from flushtracker.status.sink_status import SinkShape

logger = logging.getLogger(__name__)

_MOST_LISTED: Final = 10
_HOLDS_MS: Final = 10_000
"""A group that keeps up commits more often."""


class FeedLog:
    """Logs losses, and shapes that are not written, when they are found, each once; what waits when told to."""

    def __init__(self) -> None:
        self._losses: dict[tuple[str, str], tuple[RecordLoss, ...]] = {}
        self._unanswered: Mapping[Subject, str] = {}
        self._gaps: set[tuple[str, str]] = set()
        self._not_written: dict[tuple[str, str], tuple[int, str | None]] = {}

    def taken(self, feed: ShapeFeed, event: ShapeChangesEvent, *, is_gap: bool) -> None:
        """Log the first event after a gap. All that follow it are, too, until capture sends again what is missing."""
        shape = feed.source, feed.shape_id
        if not is_gap:
            self._gaps.discard(shape)
        elif shape not in self._gaps:
            self._gaps.add(shape)
            logger.error("gap in the changes of a shape shape_id=%s follows=%s", feed.shape_id, event.follows)

    def not_written(self, entry: ShapeEntry, reason: str | None) -> None:
        definition = entry.definition
        shape, told = (entry.source, definition.id), (definition.incarnation, reason)
        if self._not_written.get(shape) != told:
            self._not_written[shape] = told
            logger.error("shape is not written shape_id=%s source=%s reason=%s", definition.id, entry.source, reason)

    def ended(self, shape: tuple[str, str]) -> None:
        self.forget(shape)
        self._not_written.pop(shape, None)

    def forget(self, shape: tuple[str, str]) -> None:
        self._losses.pop(shape, None)
        self._gaps.discard(shape)

    def losses(self, feed: ShapeFeed) -> None:
        losses, shape = feed.progress.losses, (feed.source, feed.shape_id)
        known, self._losses[shape] = self._losses.get(shape, ()), losses
        lost = {(loss.group, loss.partition) for loss in known}
        for loss in losses:
            if (loss.group, loss.partition) not in lost:
                logger.error(
                    "records were deleted before a group has read them shape_id=%s topic=%s group=%s partition=%d "
                    "position=%d begin=%d",
                    *(feed.shape_id, feed.topic, loss.group, loss.partition, loss.position, loss.begin),
                )

    def unanswered(self, reasons: Mapping[Subject, str]) -> None:
        """Log which topics and groups cannot be asked now, whenever that changes."""
        for subject in reasons.keys() - self._unanswered.keys():
            logger.warning("shapes wait for an answer reason=%s", reasons[subject])
        self._unanswered = reasons

    def waiting(self, shapes: Collection[SinkShape], at_ms: int) -> None:
        """Log what shapes wait for: with a group that has only begun to read, a shape does not wait yet."""
        without = [shape.shape_id for shape in shapes if shape.waits_for_snapshot]
        if without:
            logger.warning("shapes wait for their snapshots shape_ids=%s", listed(without, _MOST_LISTED))
        found = [
            (group.holds_since_ms, shape, group)
            for shape in shapes
            for group in shape.groups
            if shape.problem is None and group.holds_since_ms is not None and at_ms - group.holds_since_ms >= _HOLDS_MS
        ]
        longest = nsmallest(_MOST_LISTED, found, key=itemgetter(0))
        for _, shape, group in longest:
            logger.info(
                "shape waits for a group shape_id=%s topic=%s group=%s unread=%d",
                *(shape.shape_id, shape.topic, group.group, group.unread),
            )
        if len(found) > len(longest):
            logger.info("more shapes wait for groups count=%d", len(found) - len(longest))
