"""Another program's status: whatever it answers, or does not, what is known of it is kept with its date."""

import json
from contextlib import AbstractContextManager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, Final

import pytest

from flushtracker.config.status_config import StatusConfig
from flushtracker.process.clock import now_ms
from flushtracker.status.capture_status import CaptureStatus
from flushtracker.status.http import peers
from flushtracker.status.http.peers import StatusPeer, fetch
from flushtracker.status.http.status_server import StatusServer
from flushtracker.status.job_status import JobStatus, SourceStatus
from tests.support.own_time import OwnTime
from tests.support.status_pages import raw_server, status_page
from tests.support.waiting import wait_until

JOB: Final = JobStatus(1, 1, is_ready=True, sources=(SourceStatus("s", 1, 2, 0, 0, None, ()),))
CAPTURE: Final = CaptureStatus(1, 1, "s", is_connected=True)


def answering(body: bytes, code: int = 200, **headers: str) -> AbstractContextManager[str]:
    """The base URL of a server that answers with this."""
    return status_page(lambda: body, code=code, **headers)


def test_a_peers_document_is_kept_with_its_date() -> None:
    with StatusServer(StatusConfig("127.0.0.1", 0), lambda: CAPTURE) as server:
        peer = StatusPeer(server.url.rstrip("/"))
        before = now_ms()
        peer.poll()
    answer = peer.answer
    assert (answer.status, answer.error) == (CAPTURE, None)
    assert answer.at_ms is not None
    assert before <= answer.at_ms <= now_ms()
    assert answer.fresh(answer.at_ms + 9_999) == CAPTURE
    assert answer.fresh(answer.at_ms + 10_000) is None


def test_a_peer_that_ends_leaves_what_it_said_last() -> None:
    """The page shows it with its date."""
    with StatusServer(StatusConfig("127.0.0.1", 0), lambda: JOB) as server:
        peer = StatusPeer(server.url.rstrip("/"))
        peer.poll()
        known = peer.answer
    peer.poll()
    assert (peer.answer.status, peer.answer.at_ms) == (JOB, known.at_ms)
    assert peer.answer.error == "Connection refused"


def test_a_redirect_is_not_followed() -> None:
    """A peer cannot make the program ask something else."""
    with (
        answering(json.dumps(JOB.to_json()).encode()) as target,
        answering(b"", 302, Location=f"{target}/status.json") as url,
    ):
        peer = StatusPeer(url)
        peer.poll()
    assert peer.answer.status is None
    assert peer.answer.error == "Found"


def test_a_peer_that_answers_slowly_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte comes in time, but not the answer."""
    monkeypatch.setattr(peers, "_TIMEOUT_S", 0.3)
    with raw_server(b"HTTP/1.1 200 OK\r\n\r\n", byte_every_s=0.05) as port, OwnTime() as own:
        peer = StatusPeer(f"http://127.0.0.1:{port}")
        peer.poll()
    assert own.seconds < 5
    assert peer.answer.error == "its answer took longer than 0.3 s"


def test_a_peer_whose_header_never_ends_is_told_on_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte comes in time, so nothing was wrong, and the page gave no reason for figures that grew old."""
    monkeypatch.setattr(peers, "_FRESH_MS", 1_000)
    head = b"HTTP/1.1 200 OK\r\nX: "
    with raw_server(head, byte_every_s=0.05) as port:
        config = StatusConfig("127.0.0.1", 0, (f"http://127.0.0.1:{port}",))
        with StatusServer(config, lambda: JOB) as server:
            page = StatusPeer(server.url.rstrip("/"))

            def error() -> object:
                return json.loads(fetch(f"{page.answer.url}/page.json", 5))["peers"][0]["error"]

            assert wait_until(error, "the error", 10) == "its answer takes longer than 1 s"


def test_a_peer_that_has_answered_has_no_error() -> None:
    """However long ago it did: it is asked again in between."""
    with StatusServer(StatusConfig("127.0.0.1", 0), lambda: CAPTURE) as server:
        peer = StatusPeer(server.url.rstrip("/"))
        peer.poll()
    assert peer.answer_at(now_ms() + 60_000) == peer.answer
    assert peer.answer.error is None


def test_a_silent_peer_does_not_delay_the_start_the_page_and_the_end() -> None:
    """It accepts the connection and says nothing."""
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as silent:
        config = StatusConfig("127.0.0.1", 0, (f"http://127.0.0.1:{silent.server_port}",))
        with OwnTime() as own, StatusServer(config, lambda: JOB) as server, answering(b"") as _:
            peer = StatusPeer(server.url.rstrip("/"))
            peer.poll()
            assert peer.answer.status == JOB
        assert own.seconds < 2


def test_jobs_page_has_the_document_of_capture() -> None:
    """From the program that `peers` names, with its date; and the history has both."""
    with StatusServer(StatusConfig("127.0.0.1", 0), lambda: CAPTURE) as capture:
        config = StatusConfig("127.0.0.1", 0, (capture.url.rstrip("/"),))
        with StatusServer(config, lambda: JOB) as server:
            answer = wait_until(lambda: _peer(server), "the peer's answer", 10)
    assert answer["status"] == CAPTURE.to_json()
    assert answer["error"] is None
    assert answer["url"] == config.peers[0]


def _peer(server: StatusServer) -> dict[str, Any] | None:
    page = StatusPeer(server.url.rstrip("/"))
    fields = json.loads(fetch(f"{page.answer.url}/page.json", 5))
    answer: dict[str, Any] = fields["peers"][0]
    return answer if answer["status"] is not None else None
