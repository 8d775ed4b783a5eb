"""Asking the job for its status: whatever answers, or does not."""

import json
from typing import Any

import pytest
from msgspec.structs import replace

from flushtracker.errors import StatusError
from flushtracker.local.free_ports import free_port
from flushtracker.status.capture_status import CaptureStatus
from flushtracker.status.http.peers import read_program_status
from tests.support.own_time import OwnTime
from tests.support.status_pages import HELD, HOLDER, IDLE, job_page, job_status, raw_server, status_page

NO_STATUS = "it is not the status of a flushtracker program, version 1"


def refusal(url: str, timeout_s: float = 5.0) -> str:
    with pytest.raises(StatusError) as caught:
        read_program_status(url, timeout_s)
    assert str(caught.value).count(url) == 1
    return str(caught.value).replace(url, "URL")


def refusal_of(body: bytes, code: int = 200) -> str:
    with status_page(lambda: body, code=code) as url:
        return refusal(url)


def test_status_is_what_the_job_serves() -> None:
    """Every field, of each source."""
    status = job_status(HELD, IDLE, records_behind=7, batch_id=3)
    with job_page(status) as url:
        assert read_program_status(url, 5) == status


def test_any_program_may_answer() -> None:
    """Capture's configuration lists the peers without saying which is which."""
    capture = CaptureStatus(1, 1, None, is_connected=False)
    with status_page(lambda: json.dumps(capture.to_json()).encode()) as url:
        assert read_program_status(url, 5) == capture


def test_proxy_of_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is there for the world outside, and knows nothing of the job."""
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port()}")
    monkeypatch.delenv("no_proxy", raising=False)
    with job_page(job_status(HELD)) as url:
        assert read_program_status(url, 5) == job_status(HELD)


def test_job_that_is_not_there_refuses_the_connection() -> None:
    """The message is one that an operator can search for."""
    assert refusal(f"http://127.0.0.1:{free_port()}") == "URL does not answer (connection refused)"


def test_unknown_host_is_told() -> None:
    """``.invalid`` never resolves."""
    assert refusal("http://job.invalid:9464").startswith("URL does not answer (")


def test_job_that_accepts_and_says_nothing_is_left_in_time() -> None:
    """A JVM that hangs: its kernel still answers."""
    with raw_server() as port:
        with OwnTime() as own:
            assert refusal(f"http://127.0.0.1:{port}", 0.5) == "URL does not answer (timed out)"
        assert own.seconds < 5


def test_job_that_stops_in_the_middle_is_left_in_time() -> None:
    """The head of the reply came, and then nothing."""
    with raw_server(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{") as port:
        assert refusal(f"http://127.0.0.1:{port}", 0.5) == "URL does not answer (timed out)"


@pytest.mark.parametrize("number", [10**400, 2**64, -(2**63) - 1])
def test_numbers_beyond_64_bits_are_not_a_status(number: int) -> None:
    """The command ended with an OverflowError, and showed PostgreSQL's own figures neither."""
    document = job_status(replace(HELD, holders=(replace(HOLDER, held_bytes=number),))).to_json()
    assert refusal_of(json.dumps(document).encode()) == f"URL answers, but {NO_STATUS}"


def test_what_does_not_speak_http_is_told_so() -> None:
    """Such as another service at this port."""
    with raw_server(b"220 mail.example ESMTP\r\n") as port:
        assert refusal(f"http://127.0.0.1:{port}") == "URL does not answer (220 mail.example ESMTP)"


@pytest.mark.parametrize(
    ("body", "fact"),
    [
        (b"", NO_STATUS),
        (b"<html>It works!</html>", NO_STATUS),
        (b"\xff\xfe", NO_STATUS),
        (b"[" * 100_000, NO_STATUS),
        (b"1" * 5_000, NO_STATUS),
        (b"[]", NO_STATUS),
        (b"{}", NO_STATUS),
        (b'{"version": true, "program": "track"}', NO_STATUS),
        (b'{"version": 1, "program": ["track"]}', NO_STATUS),
        (b'{"version": 1, "program": "track"}', NO_STATUS),
        (b" " * 5_000_000, "its answer is larger than 1048576 bytes"),
        (
            b'{"version": 2, "program": "track"}',
            "it is the status of a flushtracker program, version 2, not 1; use the same release",
        ),
    ],
)
def test_garbage_is_told_apart_from_silence(body: bytes, fact: str) -> None:
    """Something answers at the address, and it is not the job's status, or one of another release."""
    assert refusal_of(body) == f"URL answers, but {fact}"


def test_page_of_an_error_is_not_a_status() -> None:
    """A proxy in front of a job that is down."""
    assert refusal_of(b"bad gateway", 502) == "URL answers, but with HTTP status 502"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("at_ms", "now"),
        ("is_ready", 1),
        ("is_ready", None),
        ("records_behind", "\x1b[2J"),
        ("sources", None),
        ("sources", [{}]),
        ("sources", [{**HELD.to_json(), "pending_shapes": "1"}]),
        ("sources", [{**HELD.to_json(), "source": None}]),
        ("sources", [{**HELD.to_json(), "ack_lsn": 7}]),
        ("sources", [{**HELD.to_json(), "ack_lsn": "G/1"}]),
        ("sources", [{**HELD.to_json(), "holders": [{**HELD.holders[0].to_json(), "held_bytes": 1.5}]}]),
        ("sources", [{**HELD.to_json(), "holders": [{**HELD.holders[0].to_json(), "shape": ["x"]}]}]),
    ],
)
def test_value_of_another_type_is_refused(key: str, value: Any) -> None:
    """So nothing that is printed is of an unknown kind."""
    body = json.dumps({**job_status(HELD).to_json(), key: value}).encode()
    assert refusal_of(body) == f"URL answers, but {NO_STATUS}"
