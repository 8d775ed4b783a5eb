"""``DemoWriters``: a writer for each shape with changes. They store nothing, and only report when they would have.

Each is a writer of :mod:`flushtracker.replay.simulated_writers`, plus what a replay does not need: it accepts each
change once, however often it is sent; it starts from what was reported before; and it reports that again for each
resent change that it has already flushed.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from flushtracker.events.stream_events import FlushNotification, ShapeChangesEvent
from flushtracker.replay.simulated_writers import SimulatedWriters
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.wal.log_offset import LogOffset


@dataclass(slots=True)
class _Writer:
    simulated: SimulatedWriters
    received: LogOffset
    flushed: LogOffset


class DemoWriters:
    """Starts without shapes. ``definition_of(source, shape_id)`` is called when the first change for a shape arrives.

    ``published`` are the notifications that earlier writers have published.
    """

    def __init__(
        self, definition_of: Callable[[str, str], ShapeDefinition], published: Iterable[FlushNotification] = ()
    ) -> None:
        self._definition_of = definition_of
        self._writers: dict[tuple[str, str], _Writer] = {}
        self._reported: dict[tuple[str, str], FlushNotification] = {}
        for event in published:
            key = event.source, event.shape_id
            if event.type == "flushed" and (key not in self._reported or self._reported[key].offset < event.offset):
                self._reported[key] = event

    def start(self) -> list[FlushNotification]:
        """The notifications that were published before, to publish again."""
        return list(self._reported.values())

    def take(self, event: ShapeChangesEvent, now_ms: int) -> list[FlushNotification]:
        """Buffer new changes; returns the flushes that they cause, or for flushed changes the last flush again."""
        writer = self._writer(event.source, event.shape_id)
        items = tuple(item for item in event.items if item.offset > writer.received)
        notifications = writer.simulated.take([replace(event, items=items)], now_ms)
        if items:
            writer.received = items[-1].offset
        elif event.items and event.items[-1].offset <= writer.flushed:
            notifications.append(FlushNotification(event.source, "flushed", event.shape_id, writer.flushed))
        return self._record(writer, notifications)

    def advance(self, now_ms: int) -> list[FlushNotification]:
        """Advance time to ``now_ms``; returns the flushes of the writers whose interval has ended."""
        return [
            notification
            for writer in self._writers.values()
            for notification in self._record(writer, writer.simulated.advance(now_ms))
        ]

    def _writer(self, source: str, shape_id: str) -> _Writer:
        key = source, shape_id
        if key not in self._writers:
            flushed = self._reported[key].offset if key in self._reported else LogOffset.before_all()
            simulated = SimulatedWriters(source, [self._definition_of(source, shape_id)])
            self._writers[key] = _Writer(simulated, flushed, flushed)
        return self._writers[key]

    @staticmethod
    def _record(writer: _Writer, notifications: list[FlushNotification]) -> list[FlushNotification]:
        for notification in notifications:
            writer.flushed = max(writer.flushed, notification.offset)
        return notifications
