"""How records reach the tails: which ones are left out, in what order, how fast, and that no record ends the reader."""

import asyncio
import json
import threading
from collections import deque
from collections.abc import Iterator
from typing import Any, Final

import pytest

from flushtracker.config.serve_config import TailConfig
from flushtracker.errors import BrokerError
from flushtracker.events.records import shape_record_key
from flushtracker.events.stream_events import ShapeChangesEvent
from flushtracker.serve.rate_limited_log import RateLimitedLog
from flushtracker.serve.tail import tail_reader
from flushtracker.serve.tail.shape_tail import MOST_TRANSACTION_BYTES
from tests.support.shape_log_rows import SOURCE
from tests.support.tail_reading import TailReading, until, whole_transaction
from tests.support.waiting import wait_until

OTHER: Final = shape_record_key(SOURCE, "other").encode()
CONFIG: Final = TailConfig("kafka:9092", "shape_changes")


class PlayedRecord:
    """A record of the topic; ``key`` by default that of the event's shape."""

    def __init__(self, value: ShapeChangesEvent | bytes | None, key: bytes | None = None) -> None:
        self._value = value.to_json().encode() if isinstance(value, ShapeChangesEvent) else value
        shape_id = value.shape_id if isinstance(value, ShapeChangesEvent) else "users"
        self._key = shape_record_key(SOURCE, shape_id).encode() if key is None else key

    def key(self) -> bytes:
        return self._key

    def value(self) -> bytes | None:
        return self._value

    def timestamp(self) -> tuple[int, int]:
        return 1, 1_000


class PlayedTopic:
    """In place of ``TopicTail``: gives what is in ``parts``, one after the other, or raises it."""

    def __init__(self) -> None:
        self.parts = deque[list[PlayedRecord] | Exception]()
        self.calls, self.begins, self.is_closed, self.is_read = 0, 0, False, False

    def begin(self) -> None:
        self.begins += 1

    def records(self, timeout_s: float) -> list[PlayedRecord]:
        self.calls += 1
        if not self.parts:
            threading.Event().wait(min(timeout_s, 0.005))
            return []
        part = self.parts.popleft()
        if isinstance(part, Exception):
            self.is_read = False
            raise part
        self.is_read = True
        return part

    def check(self) -> None:
        pass

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def topic(monkeypatch: pytest.MonkeyPatch) -> PlayedTopic:
    played = PlayedTopic()
    monkeypatch.setattr(tail_reader, "TopicTail", lambda *_: played)
    monkeypatch.setattr(tail_reader, "_BEGIN_AGAIN_S", 0.01)
    monkeypatch.setattr(tail_reader, "_log", RateLimitedLog(tail_reader.logger))
    return played


@pytest.fixture
def reading(topic: PlayedTopic) -> Iterator[TailReading]:  # noqa: ARG001  it must be there
    """A reader of the shape ``users``."""
    found = TailReading(CONFIG, "users")
    yield found
    found.reader.close()


def chain(count: int, shape_id: str = "users") -> list[PlayedRecord]:
    return [PlayedRecord(whole_transaction(tx, tx - 1, shape_id)) for tx in range(1, count + 1)]


async def test_shapes_that_nobody_asks_for_are_skipped_by_their_key(reading: TailReading, topic: PlayedTopic) -> None:
    """Their value is not even parsed; nor is that of a key that names no shape."""
    unread = [
        PlayedRecord(b"{", shape_record_key(SOURCE, "other").encode()),
        PlayedRecord(b"{", b"\xff{"),
        PlayedRecord(None, b""),
    ]
    topic.parts += [[*unread, *chain(2)], [*chain(3, "other"), *chain(4)[2:]]]
    reading.reader.start()
    await reading.until_has(1, 2, 3, 4)
    assert (reading.reader.records, reading.reader.skipped, reading.reader.unreadable) == (10, 6, 0)
    assert reading.woken == [{"users"}, {"users"}]


async def test_unwatched_then_watched(reading: TailReading, topic: PlayedTopic) -> None:
    """Whoever asks later gets the transactions from then on: the first one says what it follows."""
    topic.parts += [[*chain(2, "late"), *chain(1)]]
    reading.reader.start()
    await reading.until_has(1)
    reading.tails.ask((SOURCE, "late"), 0)
    topic.parts.append(chain(3, "late")[2:])
    await reading.until_has(3, shape_id="late")
    tail: Any = reading.tails._tails[SOURCE, "late"]
    assert tail.base.tx_offset == 2


def newer_version(event: ShapeChangesEvent) -> bytes:
    return json.dumps(json.loads(event.to_json()) | {"v": 2}).encode()


@pytest.mark.parametrize(
    ("value", "unreadable"),
    [
        (b"{", 1),
        (b"[" * 100_000, 1),
        (None, 1),
        (newer_version(whole_transaction(3, 2)), 1),
        (whole_transaction(3, 2, "other").to_json().encode(), 1),
        (whole_transaction(3, 2, note="x" * MOST_TRANSACTION_BYTES).to_json().encode(), 0),
    ],
    ids=["garbage_record", "nested", "tombstone", "greater_version", "of_another_shape", "too_large"],
)
async def test_event_that_cannot_be_read_drops_its_shape(
    reading: TailReading, topic: PlayedTopic, value: bytes | None, unreadable: int
) -> None:
    """The log serves what it has. Other shapes keep theirs, and the next event begins the tail again."""
    reading.tails.ask((SOURCE, "other"), 0)
    topic.parts += [[*chain(2), *chain(1, "other")], [PlayedRecord(value, shape_record_key(SOURCE, "users").encode())]]
    reading.reader.start()
    await until(lambda: reading.reader.records == 4, "all are read")
    await reading.until_has()
    assert reading.transactions("other") == [1]
    topic.parts.append([PlayedRecord(whole_transaction(4, 3))])
    await reading.until_has(4)
    assert (reading.reader.unreadable, reading.reader.outages) == (unreadable, 0)


async def test_large_batch_is_processed_in_order_and_in_turns(reading: TailReading, topic: PlayedTopic) -> None:
    """Others of the loop get their turn in between; the clients are woken once, in the end."""
    records = chain(1_700)
    turns = []
    topic.parts += [records[:1_000], records[1_000:]]
    reading.reader.start()
    while not reading.woken:
        turns.append(len(reading.transactions()))
        await asyncio.sleep(0)
    assert reading.transactions() == [*range(1, 1_701)]
    assert reading.woken == [{"users"}]
    assert {500, 1_000, 1_500} <= set(turns)


class PlayedEvent(threading.Event):
    """Takes no time, and notes how long each wait may take."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout or 0)
        return super().wait(0)


@pytest.mark.parametrize(("busy_s", "least_s"), [(0.01, 0.02), (0.1, 0.05)])
async def test_next_batch_waits_longer_if_the_loop_is_busy(
    reading: TailReading, topic: PlayedTopic, busy_s: float, least_s: float
) -> None:
    """Twice as long as it took for the last one, but not for long: it may be busy with a round all the time."""
    reading.reader._closed = closed = PlayedEvent()
    topic.parts += [chain(1)]
    reading.reader.start()
    wait_until(lambda: topic.calls, "a batch is read", 180)
    threading.Event().wait(busy_s)
    await reading.until_has(1)
    await until(lambda: closed.waits, "the reader waits")
    assert least_s <= closed.waits[0] <= 0.05


async def test_loop_that_is_busy_gets_one_batch(reading: TailReading, topic: PlayedTopic) -> None:
    """Whatever is in the topic: the reader takes nothing more before the loop has processed that."""
    topic.parts += [[each] for each in chain(50)]
    reading.reader.start()
    wait_until(lambda: topic.calls, "a batch is read", 180)
    threading.Event().wait(0.3)
    assert topic.calls == 1
    await reading.until_has(*range(1, 51))
    assert len(reading.woken) == 50


async def test_outage_is_forgotten_and_told_once(
    reading: TailReading, topic: PlayedTopic, caplog: pytest.LogCaptureFixture
) -> None:
    """It begins at the end again and again; a bug in the client is no end, either."""
    caplog.set_level("INFO", tail_reader.logger.name)
    topic.parts += [chain(2), *[BrokerError("no broker answers")] * 3]
    reading.reader.start()
    await until(lambda: topic.begins == 4, "it has begun again")
    assert (reading.transactions(), reading.reader.problem) == ([], "no broker answers")
    topic.parts += [[PlayedRecord(whole_transaction(5, 4))], RuntimeError("a bug"), chain(7)[6:]]
    await reading.until_has(7)
    assert (reading.reader.problem, reading.reader.outages) == (None, 2)
    lines = [record.getMessage() for record in caplog.records]
    is_read, away = "tail is read topic=shape_changes", "tail cannot be read reason="
    assert lines == [is_read, f"{away}no broker answers", is_read, f"{away}RuntimeError", is_read]


async def test_batch_that_fails_on_the_loop_drops_all(
    reading: TailReading, topic: PlayedTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is half done is not known to be right; the reader goes on."""
    problems: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(str(context["exception"])))
    topic.parts += [chain(2)]
    reading.reader.start()
    await reading.until_has(1, 2)
    monkeypatch.setattr(reading.reader, "_wake", lambda *_: 1 // 0)
    topic.parts += [chain(3)[2:]]
    await until(lambda: problems, "it has failed")
    assert (reading.transactions(), "division" in problems[0]) == ([], True)
    monkeypatch.setattr(reading.reader, "_wake", reading._wake)
    topic.parts += [chain(5)[4:]]
    await reading.until_has(5)


async def test_close_while_the_loop_is_busy(reading: TailReading, topic: PlayedTopic) -> None:
    """The thread ends, and what it has handed over is not processed any more."""
    topic.parts += [chain(2)]
    reading.reader.start()
    thread = reading.reader._thread
    assert thread is not None
    wait_until(lambda: topic.calls, "a batch is read", 180)
    reading.reader.close()
    thread.join(180)
    assert not thread.is_alive()
    assert topic.is_closed
    await asyncio.sleep(0.05)
    assert (reading.woken, reading.transactions()) == ([], [])


def test_close_of_a_loop_that_has_ended(topic: PlayedTopic) -> None:
    """As when the server's last answer is sent: the thread ends by itself."""

    async def start() -> threading.Thread | None:
        reading = TailReading(CONFIG, "users")
        reading.reader.start()
        return reading.reader._thread

    thread = asyncio.run(start())
    topic.parts += [chain(2)]
    assert thread is not None
    thread.join(180)
    assert not thread.is_alive()
