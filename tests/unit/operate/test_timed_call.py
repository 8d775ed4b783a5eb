"""Questions with deadlines: one that is not answered is left, and not asked twice."""

import time
from threading import Event

import pytest

from flushtracker.errors import ConfigError, SinkError
from flushtracker.operate.status.timed_call import TimedCall
from flushtracker.status.http.peers import read_program_status
from tests.support.own_time import OwnTime
from tests.support.status_pages import raw_server
from tests.support.waiting import wait_until

SILENCE = SinkError("it has not answered")


def test_answer_has_the_value_and_its_time() -> None:
    """Or ``None``, which is a value as well."""
    question = TimedCall(lambda: 7, 5.0, SILENCE)
    question.start()
    result = question.result()
    assert (result.value, result.error) == (7, None)
    assert abs(result.at_ms / 1000 - time.time()) < 5
    assert not question.is_running


def test_error_is_an_answer() -> None:
    """It says why nothing was found."""

    def fail() -> int:
        raise ConfigError("no")

    question = TimedCall(fail, 5.0, SILENCE)
    question.start()
    assert str(question.result().error) == "no"


def test_unexpected_error_is_raised_where_the_answer_is_wanted() -> None:
    """In the thread it would be lost."""
    question = TimedCall(lambda: 1 // 0, 5.0, SILENCE)
    question.start()
    with pytest.raises(ZeroDivisionError):
        question.result()


def test_question_without_an_answer_is_left_and_not_asked_again() -> None:
    """With --watch, a storage that hangs would otherwise cost a thread each time."""
    calls, release = [], Event()

    def hang() -> int:
        calls.append(1)
        release.wait()
        return 7

    question = TimedCall(hang, 0.1, SILENCE)
    for _ in range(3):
        question.start()
        assert question.result().error is SILENCE
        assert question.is_running
    assert len(calls) == 1
    release.set()
    wait_until(lambda: not question.is_running, "its end", 10)
    question.start()
    assert question.result().value == 7
    assert len(calls) == 2


def test_job_that_sends_a_byte_at_a_time_is_left_at_the_deadline() -> None:
    """Each byte comes in time, and the whole never does."""
    with raw_server(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n", byte_every_s=0.05) as port:
        question = TimedCall(lambda: read_program_status(f"http://127.0.0.1:{port}", 3), 0.5, SILENCE)
        with OwnTime() as own:
            question.start()
            assert question.result().error is SILENCE
        assert own.seconds < 3
