"""``SimulatedWriters``: the writers of a replay. They store nothing, and only report when they would have.

Each shape has a writer of its own, with the ``flush`` policy of its definition:

- ``bytes``: it flushes when a transaction ends and at least this much is buffered;
- ``interval``: it flushes when something has been buffered for this long, and no transaction is open;
- ``chunk_bytes``: it also flushes inside a transaction, at the very item that brings what is buffered of that
  transaction to this size;
- with neither ``bytes`` nor ``interval`` it flushes at each commit.

A flush stores all that is buffered, and is notified with the offset of the last item stored, which need not be the end
of a fragment, let alone of the transaction. As with real writers, some notifications are sent twice, and a restarted
writer repeats its last. Time is the replay's: ``now_ms`` never goes back.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Final

from flushtracker.events.stream_events import FlushNotification, ShapeChangesEvent
from flushtracker.shapes.definition import FlushPolicy, ShapeDefinition
from flushtracker.wal.changes import LogItem
from flushtracker.wal.log_offset import LogOffset

_DUPLICATE_EVERY: Final = 7
"""One in this many notifications is sent twice."""


@dataclass(slots=True)
class _Writer:
    """One shape's writer; it keeps the sizes of what it has buffered, not the items."""

    policy: FlushPolicy
    buffered_bytes: int = 0
    chunk_bytes: int = 0
    """The part of ``buffered_bytes`` that belongs to the open transaction."""
    buffered_since_ms: int | None = None
    """``None`` when nothing is buffered."""
    in_transaction: bool = False
    last_offset: LogOffset | None = None
    stored_offset: LogOffset | None = None

    @property
    def due_ms(self) -> int | None:
        """When the interval ends, ``None`` if none is running."""
        if self.policy.interval_ms is None or self.buffered_since_ms is None:
            return None
        return self.buffered_since_ms + self.policy.interval_ms

    def take(self, event: ShapeChangesEvent, now_ms: int) -> list[LogOffset]:
        """Buffer the event's items; returns the offsets of the flushes that they cause."""
        self.in_transaction = True
        flushes = [self.flush() for item in event.items if self._buffer(item, now_ms)]
        if event.commit is not None:
            self.in_transaction = False
            self.chunk_bytes = 0
            if self._is_full():
                flushes.append(self.flush())
        return [offset for offset in flushes if offset is not None]

    def _buffer(self, item: LogItem, now_ms: int) -> bool:
        """Buffer one item; returns whether a chunk is full."""
        size = _size_bytes(item)
        self.buffered_bytes += size
        self.chunk_bytes += size
        self.last_offset = item.offset
        if self.buffered_since_ms is None:
            self.buffered_since_ms = now_ms
        return self.policy.chunk_bytes is not None and self.chunk_bytes >= self.policy.chunk_bytes

    def _is_full(self) -> bool:
        if self.policy.bytes is None:
            return self.policy.interval_ms is None
        return self.buffered_bytes >= self.policy.bytes

    def flush(self) -> LogOffset | None:
        """Store what is buffered; returns the offset of its last item, ``None`` if there is none."""
        if self.buffered_since_ms is None:
            return None
        self.buffered_bytes = self.chunk_bytes = 0
        self.buffered_since_ms = None
        self.stored_offset = self.last_offset
        return self.stored_offset


class SimulatedWriters:
    """One writer for each definition, with nothing stored yet."""

    def __init__(self, source: str, definitions: Iterable[ShapeDefinition]) -> None:
        self._source = source
        self._writers = {definition.id: _Writer(definition.flush) for definition in definitions}
        self._due: list[tuple[int, str]] = []
        """A heap of the running intervals; one that a flush has ended stays until it is popped."""
        self._notified = 0

    def take(self, events: Iterable[ShapeChangesEvent], now_ms: int) -> list[FlushNotification]:
        """Buffer the changes of one fragment; returns the flushes that they cause."""
        notifications = []
        for event in events:
            writer = self._writers[event.shape_id]
            due_ms = writer.due_ms
            for offset in writer.take(event, now_ms):
                notifications += self._notify(event.shape_id, offset)
            if writer.due_ms is not None and writer.due_ms != due_ms:
                heappush(self._due, (writer.due_ms, event.shape_id))
        return notifications

    def advance(self, now_ms: int) -> list[FlushNotification]:
        """Advance time to ``now_ms``; returns the flushes of intervals that have ended, except inside a transaction."""
        notifications, waiting = [], []
        while self._due and self._due[0][0] <= now_ms:
            due_ms, shape_id = heappop(self._due)
            writer = self._writers[shape_id]
            if writer.due_ms != due_ms:
                continue
            if writer.in_transaction:
                waiting.append((due_ms, shape_id))
                continue
            notifications += self._flush(shape_id)
        for item in waiting:
            heappush(self._due, item)
        return notifications

    def next_due_ms(self) -> int | None:
        """When the next interval ends, ``None`` if none is running."""
        while self._due and self._writers[self._due[0][1]].due_ms != self._due[0][0]:
            heappop(self._due)
        return self._due[0][0] if self._due else None

    def restart(self) -> list[FlushNotification]:
        """Restart every writer, which loses nothing; returns each one's last notification again."""
        return [
            FlushNotification(self._source, "flushed", shape_id, writer.stored_offset, "log")
            for shape_id, writer in self._writers.items()
            if writer.stored_offset is not None
        ]

    def flush_all(self) -> list[FlushNotification]:
        """Store everything that is buffered, even of an open transaction."""
        return [notification for shape_id in self._writers for notification in self._flush(shape_id)]

    def _flush(self, shape_id: str) -> list[FlushNotification]:
        offset = self._writers[shape_id].flush()
        return [] if offset is None else self._notify(shape_id, offset)

    def _notify(self, shape_id: str, offset: LogOffset) -> list[FlushNotification]:
        self._notified += 1
        times = 2 if self._notified % _DUPLICATE_EVERY == 0 else 1
        return [FlushNotification(self._source, "flushed", shape_id, offset, "log")] * times


def _size_bytes(item: LogItem) -> int:
    """The approximate size of the item as JSON."""
    return len(json.dumps([item.operation, item.key, item.value, item.old_value], ensure_ascii=False).encode())
