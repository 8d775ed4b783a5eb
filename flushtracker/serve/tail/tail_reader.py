"""``TailReader``: reads ``shape_changes`` from its end, in its own thread, into the tails of the event loop.

The thread skips records of shapes that nobody asks for by their key, and parses the others. It hands them over in
batches, one at a time: the next one when the loop has processed the last one, and later if it was busy. Until then
records wait in the consumer, within its bounds.

Whatever happens to the topic, all is forgotten, and reading begins at its end again, a second later. The log serves
what is missing, so nothing here is ever retried, and nothing ends the server.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from flushtracker.config.serve_config import TailConfig
from flushtracker.errors import BrokerError, DecodeError
from flushtracker.events.records import shape_record_key
from flushtracker.events.topic_rules import Topics
from flushtracker.kafka.kafka_config import KafkaConfig
from flushtracker.kafka.topic_tail import AT_ONCE, TailRecord, TopicTail
from flushtracker.process.clock import now_ms
from flushtracker.serve.rate_limited_log import RateLimitedLog
from flushtracker.serve.tail.shape_tail import MOST_TRANSACTION_BYTES
from flushtracker.serve.tail.tails import Tails
from flushtracker.shape_log.change_columns import ChangeColumns, read_changes
from flushtracker.shape_log.shape_snapshot import ShapeKey

logger = logging.getLogger(__name__)
_log = RateLimitedLog(logger)

_REST: Final = 2.0
_MOST_REST_S: Final = 0.05
"""The next batch waits twice as long as the loop took for the last one, and no longer than this."""

_POLL_S: Final = 0.5
_BEGIN_AGAIN_S: Final = 1.0
_MOST_BYTES: Final = 16_000_000
_MOST_CALLS: Final = 20
"""The bounds of a batch: the bytes of its events, and the calls for records."""
_EVENTS_A_TURN: Final = 500
"""Events that are processed in one turn of the event loop."""


Wake: TypeAlias = Callable[[Collection[str]], object]


@dataclass(slots=True)
class _Batch:
    """Events in order; ``None`` in place of one that could not be read. ``oldest_ms`` is the time of a record."""

    events: list[tuple[ShapeKey, ChangeColumns | None]] = field(default_factory=list)
    value_bytes: int = 0
    oldest_ms: int | None = None
    changed: set[str] = field(default_factory=set)
    """The shapes that have got a transaction."""


class TailReader:
    """Reads into ``tails``, and calls ``wake`` with the ids of the shapes that have got transactions.

    ``wake`` and ``tails`` are called on the event loop alone.

    Raises:
        ConfigError: the client rejects its options.
    """

    def __init__(self, config: TailConfig, tails: Tails, wake: Wake) -> None:
        topics = Topics("", "", "", config.shape_changes)
        kafka = KafkaConfig(config.bootstrap_servers, topics, config.options)
        self._topic = TopicTail(kafka, config.shape_changes)
        self._name = config.shape_changes
        self._tails = tails
        self._wake = wake
        self.problem: str | None = "the tail has not been read yet"
        self.lag_ms: int | None = None
        """How old the oldest record was in the batch that was processed last, when it was."""
        self.records = self.skipped = self.unreadable = self.outages = 0
        self._asked: frozenset[ShapeKey] = frozenset()
        self._keys: dict[bytes | None, ShapeKey] = {}
        self._closed, self._processed = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Start reading; called on the event loop."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="tail", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop reading, without a wait for the thread: the consumer may be waiting for a broker."""
        self._closed.set()
        self._processed.set()

    # In the reader's thread.

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                self._topic.begin()
                self._follow()
            except BrokerError as error:
                self._note_outage(str(error))
            except Exception as error:  # noqa: BLE001  a thread that ends would leave all clients to the log
                self._note_outage(type(error).__name__, error)
            self._closed.wait(_BEGIN_AGAIN_S)
        self._topic.close()

    def _follow(self) -> None:
        while not self._closed.is_set():
            batch = self._next_batch()
            self._topic.check()
            if self.problem is not None and self._topic.is_read:
                self.problem = None
                logger.info("tail is read topic=%s", self._name)
            if batch.events:
                self._hand_over(batch)

    def _note_outage(self, reason: str, error: Exception | None = None) -> None:
        is_new = self.problem is None or self.outages == 0
        self.problem = reason
        if is_new:
            self.outages += 1
            logger.warning("tail cannot be read reason=%s", reason, exc_info=error)
        self._call(self._tails.forget_all)

    def _next_batch(self) -> _Batch:
        """What has arrived; waits for the first record, and not for long."""
        batch, timeout_s = _Batch(), _POLL_S
        for _ in range(_MOST_CALLS):
            records = self._topic.records(timeout_s)
            self._add(records, batch)
            if len(records) < AT_ONCE or batch.value_bytes > _MOST_BYTES:
                break
            timeout_s = 0
        return batch

    def _add(self, records: list[TailRecord], batch: _Batch) -> None:
        asked = self._tails.asked
        if asked is not self._asked:
            self._asked, self._keys = asked, {shape_record_key(*key).encode(): key for key in asked}
        self.records += len(records)
        for record in records:
            key = self._keys.get(record.key())
            if key is None:
                self.skipped += 1
                continue
            value = record.value()
            batch.events.append((key, self._event(key, value)))
            batch.value_bytes += 0 if value is None else len(value)
            if batch.oldest_ms is None and (at_ms := record.timestamp()[1]) > 0:
                batch.oldest_ms = at_ms

    def _event(self, key: ShapeKey, value: str | bytes | None) -> ChangeColumns | None:
        """The event, if it is one of this shape that the tail may have."""
        if value is not None and len(value) > MOST_TRANSACTION_BYTES:
            return None
        try:
            event = read_changes(value or b"")
            reason = None if event.shape_id == key[1] else f"it is of shape {event.shape_id!r}"
        except DecodeError as error:
            event, reason = None, str(error)
        if reason is None:
            return event
        self.unreadable += 1
        _log(logging.WARNING, "tail lacks an event that cannot be read shape=%s reason=%s", key[1], reason)
        return None

    def _hand_over(self, batch: _Batch) -> None:
        """Have the batch processed, and wait until there may be another one."""
        self._processed.clear()
        began_s = time.monotonic()
        self._call(self._process, batch, 0)
        while not self._closed.is_set() and not self._processed.wait(_POLL_S):
            pass
        self._closed.wait(min(_REST * (time.monotonic() - began_s), _MOST_REST_S))

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        if self._loop is not None and not self._closed.is_set():
            try:
                self._loop.call_soon_threadsafe(function, *arguments)
            except RuntimeError:  # The loop is closed.
                self._closed.set()

    # On the event loop.

    def _process(self, batch: _Batch, start: int) -> None:
        """Process a part of the batch, and leave the rest to the loop's next turn."""
        if self._closed.is_set() or self._loop is None:
            return
        try:
            end = start + _EVENTS_A_TURN
            batch.changed.update(key[1] for key, event in batch.events[start:end] if self._has_changed(key, event))
            if end < len(batch.events):
                self._loop.call_soon(self._process, batch, end)
                return
            if batch.changed:
                self._wake(batch.changed)
        except BaseException:
            # What is half done is not known to be right.
            self._tails.forget_all()
            self._processed.set()
            raise
        self._processed.set()
        if batch.oldest_ms is not None:
            self.lag_ms = max(now_ms() - batch.oldest_ms, 0)

    def _has_changed(self, key: ShapeKey, event: ChangeColumns | None) -> bool:
        if event is not None:
            return self._tails.add(key, event)
        self._tails.forget(key)
        return False
