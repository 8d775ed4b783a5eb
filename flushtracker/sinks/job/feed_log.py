"""``FeedLog``: which groups hold shapes, and which records no group will ever read."""

import logging
from collections.abc import Iterable

from flushtracker.sinks.group_progress import RecordLoss
from flushtracker.sinks.job.shape_feed import ShapeFeed

logger = logging.getLogger(__name__)


class FeedLog:
    """Logs losses when they are found, each once, and what waits when told to."""

    def __init__(self) -> None:
        self._losses: dict[tuple[str, str], tuple[RecordLoss, ...]] = {}

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

    def waiting(self, feeds: Iterable[ShapeFeed]) -> None:
        for feed in feeds:
            if feed.needs_snapshot:
                logger.warning("shape waits for its snapshot shape_id=%s", feed.shape_id)
            for lag in feed.progress.holders():
                logger.info(
                    "shape waits for a group shape_id=%s topic=%s group=%s partition=%d position=%d end=%d",
                    *(feed.shape_id, feed.topic, lag.group, lag.partition, lag.position, lag.end),
                )
