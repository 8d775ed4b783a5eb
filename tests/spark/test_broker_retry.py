"""Patience with a broker: how long, counted from when, and with which words."""

import logging
from collections.abc import Callable, Iterator
from threading import Event

import pytest

from flushtracker.errors import BrokerError, SinkError
from flushtracker.spark import broker_retry
from flushtracker.spark.broker_retry import BrokerRetry


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_retry, "_PAUSE_S", 0.0)


def clock(*times_s: float) -> Callable[[], float]:
    """A clock that shows these times, one at each look."""
    times: Iterator[float] = iter(times_s)
    return lambda: next(times)


def failing(times: int, calls: list[int], error: Exception | None = None) -> Callable[[], None]:
    """Something that fails so many times, then succeeds."""

    def attempt() -> None:
        calls.append(len(calls))
        if len(calls) <= times:
            raise error or BrokerError("Kafka at host:1 does not answer: gone")

    return attempt


def test_what_fails_for_a_while_is_tried_until_it_succeeds(caplog: pytest.LogCaptureFixture) -> None:
    """One warning says what is waited for and how long; it is said again every half minute, not each time."""
    calls: list[int] = []
    with caplog.at_level(logging.WARNING):
        BrokerRetry(60_000, Event(), clock(0, 10, 29, 31)).call(failing(4, calls))
    assert len(calls) == 5
    assert [record.getMessage() for record in caplog.records] == [
        "Kafka at host:1 does not answer: gone; waiting up to 60 s more",
        "Kafka at host:1 does not answer: gone; waiting up to 29 s more",
    ]


def test_patience_runs_out() -> None:
    """The error says what was waited for, how long, and which setting that is."""
    with pytest.raises(BrokerError) as caught:
        BrokerRetry(60_000, Event(), clock(0, 30, 61)).call(failing(99, []))
    assert str(caught.value) == "Kafka at host:1 does not answer: gone; waited 61 s in vain (source.patience)"


def test_time_counts_anew_after_progress() -> None:
    """Two outages of 40 seconds are not one of 80."""
    patience = BrokerRetry(60_000, Event(), clock(0, 40, 40, 100, 140, 140))
    patience.call(failing(2, []))
    patience.progress()
    calls: list[int] = []
    patience.call(failing(2, calls))
    assert len(calls) == 3


def test_another_error_is_not_waited_for() -> None:
    """Trying again would not help."""
    calls: list[int] = []
    with pytest.raises(SinkError):
        BrokerRetry(60_000, Event()).call(failing(1, calls, SinkError("full")))
    assert len(calls) == 1


def test_waiting_ends_when_the_job_is_stopped() -> None:
    """A job that waits for its broker stops as cleanly as one that works."""
    stop, calls = Event(), list[int]()

    def attempt() -> None:
        calls.append(1)
        stop.set()
        raise BrokerError("gone")

    BrokerRetry(60_000, stop).call(attempt)
    assert calls == [1]
