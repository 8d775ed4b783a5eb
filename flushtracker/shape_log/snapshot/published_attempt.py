"""``PublishedAttempt``: publishes the rows of an attempt as events of ``snapshots``, and then its completion.

An attempt that ends in between leaves events without an end, which readers discard once the next attempt begins. Only
the rows of one batch and the client's queued records are in memory.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, Protocol

from flushtracker.config.streams import SNAPSHOTS, SNAPSHOTS_TAKEN
from flushtracker.errors import ShapeError
from flushtracker.events.records import record_of
from flushtracker.events.snapshot_events import SnapshotEnd, SnapshotEvent, SnapshotRow
from flushtracker.shape_log.snapshot.read_ranges import ShapeReadError
from flushtracker.wal.contained_transactions import ContainedTransactions

CHARACTERS_PER_EVENT: Final = 500_000
"""Keys and values in one event: few enough for any reader, and enough to amortize the event."""


class SnapshotPublisher(Protocol):
    """The part of ``KafkaPublisher`` that is used here."""

    @property
    def pending(self) -> int: ...

    def publish(self, topic: str, key: str, value: str) -> None: ...

    def poll(self, timeout_s: float) -> None: ...


class PublishedAttempt:
    """``topics`` has the names of the topics by role; no record is larger than ``max_event_bytes``, with its key."""

    def __init__(
        self, publisher: SnapshotPublisher, topics: Mapping[str, str], max_event_bytes: int, source: str, attempt: int
    ) -> None:
        self._publisher = publisher
        self._topics = topics
        self._max_event_bytes = max_event_bytes
        self._source, self._attempt = source, attempt
        self._incarnations: Mapping[str, int] = {}
        self._numbers: dict[str, int] = {}
        self._rows: dict[str, int] = {}

    @property
    def rows(self) -> int:
        return sum(self._rows.values())

    def begin(self, incarnations: Mapping[str, int]) -> None:
        """Publish the first event of each shape, without rows, so that readers delete rows of other attempts."""
        self._incarnations = incarnations
        for shape_id in incarnations:
            self._publish(shape_id, ())

    def add(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Publish rows, each with ``shape_id``, ``key`` and ``value``, the text of a JSON object.

        Raises:
            ShapeReadError: a row is too large for an event.
            BrokerError: they cannot be delivered.
        """
        for shape_id, of_shape in groupby(rows, key=itemgetter("shape_id")):
            held, characters = list[SnapshotRow](), 0
            for row in of_shape:
                held.append(SnapshotRow(row["key"], json.loads(row["value"])))
                characters += len(row["key"]) + len(row["value"])
                if characters >= CHARACTERS_PER_EVENT:
                    self._publish(shape_id, held)
                    held, characters = [], 0
            if held:
                self._publish(shape_id, held)

    def end(self, shape_ids: Iterable[str], contained: ContainedTransactions, wait: Callable[[], None]) -> None:
        """Publish that the attempt for these shapes is complete.

        ``wait`` is called until everything is confirmed, before each of the steps; its exceptions are passed on. The
        completion is published only once readers have the rows.
        """
        self._confirmed(wait)
        last = [
            record_of(self._event(shape_id, (), SnapshotEnd(self._rows.get(shape_id, 0), contained)))
            for shape_id in shape_ids
        ]
        for role in (SNAPSHOTS, SNAPSHOTS_TAKEN):
            for record in last:
                self._publisher.publish(self._topics[role], record.key, record.value)
            self._confirmed(wait)

    def _confirmed(self, wait: Callable[[], None]) -> None:
        wait()
        while self._publisher.pending:
            self._publisher.poll(0.1)
            wait()

    def _publish(self, shape_id: str, rows: Sequence[SnapshotRow]) -> None:
        """Publish rows as one event, or as several if it would be too large."""
        record = record_of(self._event(shape_id, rows))
        size = len(record.key.encode()) + len(record.value.encode())
        if size > self._max_event_bytes:
            if len(rows) < 2:
                reason = f"a row has {size} bytes as an event, more than max_event_bytes, {self._max_event_bytes}"
                raise ShapeReadError({shape_id: ShapeError(f"shape {shape_id!r}: {reason}; raise it")})
            middle = len(rows) // 2
            self._publish(shape_id, rows[:middle])
            self._publish(shape_id, rows[middle:])
            return
        self._publisher.publish(self._topics[record.stream], record.key, record.value)
        self._numbers[shape_id] = self._numbers.get(shape_id, 0) + 1
        self._rows[shape_id] = self._rows.get(shape_id, 0) + len(rows)

    def _event(self, shape_id: str, rows: Sequence[SnapshotRow], end: SnapshotEnd | None = None) -> SnapshotEvent:
        number, incarnation = self._numbers.get(shape_id, 0), self._incarnations[shape_id]
        return SnapshotEvent(self._source, shape_id, self._attempt, number, tuple(rows), end, incarnation)
