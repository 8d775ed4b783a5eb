"""``RemovedShapes``: publishes removals of a source's shapes, and cleans up the topics after them.

Each removal is published for the tracking job once its registry entry is published. Once the slot is confirmed past the
removal, no ack needs the shape's flushes and removal, whatever state a tracking job continues from. Then they are
deleted, and the entry is *condensed* to little more than its id.
"""

import logging
from collections.abc import Set
from dataclasses import replace
from itertools import islice
from typing import Final

from flushtracker.capture.shapes.shape_registry import ShapeRegistry
from flushtracker.capture.wire.outbox import Outbox
from flushtracker.events.registry_events import ShapeEntry
from flushtracker.events.stream_events import FlushNotification

logger = logging.getLogger(__name__)

_MOST_CONDENSED: Final = 10_000
"""The maximum number of shapes condensed at once, because capture waits for Kafka meanwhile."""


class RemovedShapes:
    """The removed shapes of one source, which ``registry`` has."""

    def __init__(self, source: str, registry: ShapeRegistry, outbox: Outbox) -> None:
        self._source = source
        self._registry = registry
        self._outbox = outbox
        self.defined: Set[str] | None = None
        """The shapes that the file defines; ``None`` if unknown."""

    def publish(self, entry: ShapeEntry) -> None:
        """Publish the removal of a shape for each of its writers that the tracking job may wait for."""
        if entry.removed_at is None:
            return
        for writer in entry.writers:
            removal = FlushNotification(self._source, "removed", entry.definition.id, entry.removed_at, writer)
            self._outbox.publish_removal(removal)

    def publish_again(self, confirmed_lsn: int) -> None:
        """Publish the removals that the previous process may not have published before it was killed.

        Once the slot is confirmed past a removal, everything routed to the shape is acknowledged, and nothing waits for
        it.
        """
        for entry in self._registry.removed:
            if entry.removed_at is not None and entry.removed_at.tx_offset >= confirmed_lsn and not entry.is_condensed:
                self.publish(entry)
        # The entry of a later incarnation has replaced the previous one's, with its end.
        for entry in self._registry.live:
            if entry.definition.incarnation > 1 and entry.starts_after.tx_offset >= confirmed_lsn:
                self.publish(replace(entry, removed_at=entry.starts_after))

    def condense(self, confirmed_lsn: int) -> None:
        """Condense the shapes that were removed before ``confirmed_lsn``.

        Their flushes and removals are deleted first, because the next process ignores condensed entries.
        """
        entries = list(islice(self._registry.condensable(confirmed_lsn, self.defined), _MOST_CONDENSED))
        if not entries:
            return
        shape_ids = [entry.definition.id for entry in entries]
        self._outbox.delete_flushes(self._source, {each: self._registry[each].writers for each in shape_ids})
        self._outbox.publish_entries(entries)
        for entry in entries:
            self._registry.put(entry)
        logger.info("removed shapes condensed count=%d", len(entries))
