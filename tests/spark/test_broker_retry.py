"""Retries while a broker is unavailable: for how long, counted from when, and what is reported."""

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
    """A clock that returns these times, one per call."""
    times: Iterator[float] = iter(times_s)
    return lambda: next(times)


def failing(times: int, calls: list[int], error: Exception | None = None) -> Callable[[], None]:
    """A function that fails ``times`` times and then succeeds."""

    def attempt() -> None:
        calls.append(len(calls))
        if len(calls) <= times:
            raise error or BrokerError("Kafka at host:1 does not answer: gone")

    return attempt


def test_call_is_retried_until_it_succeeds(caplog: pytest.LogCaptureFixture) -> None:
    """A warning states the reason and the remaining time; it is repeated every 30 s, not at each attempt."""
    calls: list[int] = []
    with caplog.at_level(logging.WARNING):
        BrokerRetry(60_000, Event(), clock(0, 10, 29, 31)).call(failing(4, calls))
    assert len(calls) == 5
    assert [record.getMessage() for record in caplog.records] == [
        "Kafka at host:1 does not answer: gone; retrying for up to 60 s more",
        "Kafka at host:1 does not answer: gone; retrying for up to 29 s more",
    ]


def test_retries_end_after_the_timeout() -> None:
    """The error states the reason, the time, and the setting that limits it."""
    with pytest.raises(BrokerError) as caught:
        BrokerRetry(60_000, Event(), clock(0, 30, 61)).call(failing(99, []))
    assert str(caught.value) == "Kafka at host:1 does not answer: gone; gave up after 61 s (source.retry_timeout)"


def test_timeout_restarts_after_progress() -> None:
    """Two outages of 40 seconds are not one of 80."""
    retry = BrokerRetry(60_000, Event(), clock(0, 40, 40, 100, 140, 140))
    retry.call(failing(2, []))
    retry.progress()
    calls: list[int] = []
    retry.call(failing(2, calls))
    assert len(calls) == 3


def test_other_errors_are_not_retried() -> None:
    """A retry would not help."""
    calls: list[int] = []
    with pytest.raises(SinkError):
        BrokerRetry(60_000, Event()).call(failing(1, calls, SinkError("full")))
    assert len(calls) == 1


def test_retries_end_when_the_job_is_stopped() -> None:
    """A job whose broker is unavailable stops as cleanly as a running one."""
    stop, calls = Event(), list[int]()

    def attempt() -> None:
        calls.append(1)
        stop.set()
        raise BrokerError("gone")

    BrokerRetry(60_000, stop).call(attempt)
    assert calls == [1]
