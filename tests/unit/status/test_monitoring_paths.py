"""The paths of a program's status: what each answers, and with which headers."""

import json
from collections.abc import Callable
from typing import Any, Final

import pytest

from flushtracker.status.capture_status import CaptureStatus, SlotStatus
from flushtracker.status.http.http_server import is_allowed_host
from flushtracker.status.http.status_app import PAGE, StatusApp
from flushtracker.status.job_status import JobStatus
from flushtracker.status.program_status import ProgramStatus, parse_status
from flushtracker.status.snapshot_status import SnapshotStatus
from flushtracker.status.write_status import WriteStatus

NOW_MS: Final = 1_800_000_000_000
READY_JOB: Final = JobStatus(NOW_MS - 1_500, 1, is_ready=True)
NEW_JOB: Final = JobStatus(NOW_MS, 1, is_ready=False)
SLOT: Final = SlotStatus(
    "s", 1, is_active=True, wal_status="reserved", written_lsn=1, confirmed_lsn=1, retained_bytes=1, safe_wal_bytes=1
)
PATHS: Final = ("/", "/metrics", "/healthz", "/readyz", "/status.json", "/page.json")


def failing() -> ProgramStatus:
    raise RuntimeError("a secret")


class Answer:
    """The answer of the application to one request."""

    def __init__(self, read: Callable[[], ProgramStatus], path: str, method: str = "GET", accept: str = "") -> None:
        app = StatusApp("127.0.0.1", read, lambda: {"peers": [], "history": {}}, lambda: NOW_MS)
        response = app(method, path, {"accept": accept})
        self.status, self.body, self.headers = response.status, response.body.decode(), dict(response.headers)
        assert len(self.headers) == len(response.headers)


def test_status_json_is_the_document() -> None:
    answer = Answer(lambda: READY_JOB, "/status.json")
    assert (answer.status, answer.headers["Content-Type"]) == (200, "application/json")
    assert parse_status(answer.body.encode()) == READY_JOB


def test_page_json_has_what_the_page_shows() -> None:
    fields: dict[str, Any] = json.loads(Answer(lambda: READY_JOB, "/page.json").body)
    assert fields == {"version": 1, "now_ms": NOW_MS, "status": READY_JOB.to_json(), "peers": [], "history": {}}


def test_page_is_one_file_that_may_run_only_its_own_script() -> None:
    answer = Answer(lambda: READY_JOB, "/")
    assert answer.body == PAGE.decode()
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'; script-src 'sha256-" in policy
    assert "unsafe" not in policy


def test_metrics_have_the_format_that_the_client_accepts() -> None:
    plain = Answer(lambda: READY_JOB, "/metrics")
    assert plain.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    accept = "application/openmetrics-text;version=1.0.0"
    assert Answer(lambda: READY_JOB, "/metrics", accept=accept).body.endswith("# EOF\n")


def test_a_program_is_alive_while_its_status_can_be_read() -> None:
    answer = Answer(lambda: READY_JOB, "/healthz")
    assert (answer.status, answer.body) == (200, "Alive; its status is 1.5 s old\n")


@pytest.mark.parametrize("path", [path for path in PATHS if path != "/"])
def test_a_status_that_cannot_be_read_is_unavailable(path: str) -> None:
    """The exception's text may contain anything; its name is enough."""
    answer = Answer(failing, path)
    assert (answer.status, answer.body) == (503, "The status cannot be read: RuntimeError\n")


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (READY_JOB, "Ready\n"),
        (NEW_JOB, "Not ready: the query is starting: it reads its state or runs its first batch\n"),
        (CaptureStatus(1, 1, "s", is_connected=True, slot=SLOT), "Ready\n"),
        (
            CaptureStatus(1, 1, "s", is_connected=False, slot=SLOT),
            "Not ready: there is no replication connection to PostgreSQL, or the shapes have not been read yet\n",
        ),
        (CaptureStatus(1, 1, "s", is_connected=True), "Not ready: the slot has not been read yet\n"),
        (
            WriteStatus(NOW_MS, 1, is_ready=False),
            "Not ready: the query is starting: it reads its state or runs its first batch\n",
        ),
        (SnapshotStatus(1, 1), "Not ready: it has not found out yet which shapes need a snapshot\n"),
        (
            SnapshotStatus(1, 1, server_error="gone", progress_at_ms=1),
            "Not ready: it does not know which shapes need a snapshot: gone\n",
        ),
    ],
)
def test_readiness_says_what_is_missing(status: ProgramStatus, expected: str) -> None:
    answer = Answer(lambda: status, "/readyz")
    assert (answer.status, answer.body) == (200 if expected == "Ready\n" else 503, expected)
    assert Answer(lambda: status, "/healthz").status == 200


@pytest.mark.parametrize("path", ["/status", "//", "/metrics/", "/../etc/passwd", "/favicon.ico", ""])
def test_another_path_is_answered_with_those_that_there_are(path: str) -> None:
    answer = Answer(lambda: READY_JOB, path)
    assert answer.status == 404
    assert answer.body == f"The paths are {', '.join(PATHS)} and /runbook/ with a section\n"


def test_a_section_of_the_runbook_is_served_as_text() -> None:
    """With what comes before the next heading, and nothing else."""
    answer = Answer(lambda: READY_JOB, "/runbook/flushtrackerackstuck")
    assert (answer.status, answer.headers["Content-Type"]) == (200, "text/plain; charset=utf-8")
    assert answer.body.startswith("### FlushtrackerAckStuck\n\n**It means**")
    assert answer.body.count("\n#") == 0
    assert Answer(lambda: READY_JOB, "/runbook/").status == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE"])
@pytest.mark.parametrize("path", PATHS)
def test_nothing_can_be_changed(path: str, method: str) -> None:
    answer = Answer(lambda: READY_JOB, path, method)
    assert (answer.status, answer.headers["Allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize("path", [*PATHS, "/other"])
def test_every_answer_has_its_length_and_is_neither_stored_nor_guessed_at(path: str) -> None:
    answer = Answer(lambda: READY_JOB, path)
    assert answer.headers["Content-Length"] == str(len(answer.body.encode()))
    assert answer.headers["Cache-Control"] == "no-store"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]
    head = Answer(lambda: READY_JOB, path, "HEAD")
    assert (head.status, head.headers, head.body) == (answer.status, answer.headers, "")


@pytest.mark.parametrize(
    ("listen_host", "host", "is_answered"),
    [
        ("127.0.0.1", "localhost", True),
        ("127.0.0.1", "LOCALHOST:80", True),
        ("127.0.0.1", "127.0.0.1:9464", True),
        ("127.0.0.1", "10.0.0.7", True),
        ("127.0.0.1", "[::1]:9464", True),
        ("127.0.0.1", None, True),
        ("127.0.0.1", "site.example", False),
        ("127.0.0.1", "site.example:9464", False),
        ("127.0.0.1", "localhost.site.example", False),
        ("127.0.0.1", "localhost:80:site.example", False),
        ("127.0.0.1", "", False),
        ("127.0.0.2", "site.example", False),
        ("::1", "site.example", False),
        ("::1", "[::1]", True),
        ("localhost", "localhost:9464", True),
        ("localhost", "site.example", False),
        ("0.0.0.0", "job:9464", True),  # noqa: S104
        ("::", "job:9464", True),
        ("10.0.0.7", "job:9464", True),
        ("job", "job.site.example:9464", True),
    ],
)
def test_a_server_on_the_loopback_address_answers_to_names_of_this_machine(
    listen_host: str,
    host: str | None,
    is_answered: bool,  # noqa: FBT001  a parameter of the test
) -> None:
    """Elsewhere it has names that it does not know."""
    assert is_allowed_host(listen_host, host) == is_answered
