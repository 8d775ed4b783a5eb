"""``flushtracker serve`` as a process: its start and end, and clients that are slow, half-closed, or too many."""

import http.client
import json
import socket
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest

from flushtracker.local.free_ports import free_port
from flushtracker.shape_log.table.log_table import create_shape_log
from flushtracker.status.program_status import parse_status
from flushtracker.status.serve_status import AnswerCount, ServeStatus
from tests.support.config_file import change_config
from tests.support.import_blocker import run_without
from tests.support.processes import run_to_end
from tests.support.sample_registry import register, shape_entry, table_entry
from tests.support.serve_process import Process, command, configuration
from tests.support.shape_log_rows import append, commit, item
from tests.support.waiting import wait_until

_QUERY = "/v1/shape?shape=users"


@pytest.fixture
def log(tmp_path: Path) -> str:
    uri = str(tmp_path / "log")
    create_shape_log(uri)
    register(uri, shape_entry(), table_entry())
    append(uri, [item((10, 0), "insert", "a", {"id": "1"}), commit(10)])
    return uri


@pytest.fixture
def server(tmp_path: Path, log: str) -> Iterator[Process]:
    found = Process(configuration(tmp_path, log, connections=20, secret="correct-horse"))  # noqa: S106
    yield found
    found.process.kill()
    found.process.wait()


def test_server_answers_whoever_waits_when_it_stops(server: Process) -> None:
    """It exits with 0, without a word about requests, whose addresses may have the secret."""
    secret = "&secret=correct-horse"  # noqa: S105
    status, headers, body = server.get(f"{_QUERY}&offset=-1{secret}")
    assert (status, json.loads(body)[0]["value"]) == (200, {"id": "1"})
    assert "server" not in headers
    address = f"{_QUERY}&offset=10_0&live=true&handle={headers['electric-handle']}{secret}"
    answers: list[int] = []
    waiting = Thread(target=lambda: answers.append(server.get(address)[0]))
    waiting.start()
    time.sleep(1)
    began = time.monotonic()
    code, rest = server.stop()
    waiting.join(60)
    assert (code, answers) == (0, [200])
    assert time.monotonic() - began < 15
    assert not [line for line in (*server.lines, *rest) if "horse" in line or "GET" in line]


def test_server_tells_operators_what_its_clients_get(tmp_path: Path, log: str) -> None:
    """As a peer of capture's: its document, its page, and its metrics beside the port of the shapes."""
    port = free_port()
    server = Process(configuration(tmp_path, log, status_port=port))
    status = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def asked(of: str) -> bytes:
        status.request("GET", of)
        return status.getresponse().read()

    try:
        assert [server.get(f"/v1/shape?shape={name}&offset=-1")[0] for name in ("users", "users", "nobody")] == [
            *(200, 200),
            404,
        ]
        found = parse_status(asked("/status.json"))
        assert isinstance(found, ServeStatus)
        assert (found.answers, found.not_ready_because) == ((AnswerCount(200, 2), AnswerCount(404, 1)), None)
        assert (found.recent_answers, found.recent_errors, found.shapes) == (3, 0, 1)
        assert asked("/readyz") == b"Ready\n"
        assert b"<title>flushtracker</title>" in asked("/")
        assert b'flushtracker_serve_answers_total{program="serve",status="404"} 1.0' in asked("/metrics")
        assert json.loads(asked("/page.json"))["conclusions"] == []
    finally:
        status.close()
        server.process.kill()
        server.process.wait()


def test_server_whose_tail_cannot_be_read_serves_the_log(tmp_path: Path, log: str) -> None:
    """It is ready, its status says why, and it stops as any other."""
    port = free_port()
    path = configuration(tmp_path, log, status_port=port, tail=True)
    server = Process(change_config(path, {"kafka": "127.0.0.1:9"}))
    status = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def asked(of: str) -> bytes:
        status.request("GET", of)
        return status.getresponse().read()

    def reason() -> str | None:
        found = parse_status(asked("/status.json"))
        assert isinstance(found, ServeStatus)
        assert found.tail is not None
        return found.tail.problem if found.tail.outages else None

    try:
        found = wait_until(reason, "the outage is noticed", 180)
        assert found.startswith("topic flushtracker.shape_changes at 127.0.0.1:9 cannot be read: ")
        assert server.get(f"{_QUERY}&offset=-1")[0] == 200
        assert asked("/readyz") == b"Ready\n"
        assert b'flushtracker_serve_tail_is_read{program="serve"} 0.0' in asked("/metrics")
        code, rest = server.stop()
        assert (code, sum("tail cannot be read reason=" in line for line in rest)) == (0, 1)
    finally:
        status.close()
        server.process.kill()
        server.process.wait()


def test_tail_without_a_client_of_kafka_is_an_error_at_the_start(tmp_path: Path, log: str) -> None:
    """Which names what to install; the extra of the server alone has none."""
    path = change_config(configuration(tmp_path, log, tail=True), {"kafka": "127.0.0.1:9"})
    program = "from flushtracker.cli import run\nsys.argv[1:] = ['serve', '--config', sys.argv[1]]\nrun()"
    done = run_without({"confluent_kafka"}, program, str(path))
    assert done.returncode == 2
    assert (
        "tail needs confluent_kafka, which is not installed; run: pip install 'flushtracker[serve,writer]'"
        in done.stderr
    )


def test_slow_and_malformed_clients_are_cut_off(server: Process) -> None:
    """They get a 400, or nothing; others are answered meanwhile, and their number is limited."""
    slow = server.open()
    slow.sendall(b"GET /v1/shape?shape=users HTTP/1.1\r\nhost: loc")
    trickling = server.open()
    trickling.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\nGET /healthz HTTP/1.1\r\nx: ")
    assert b"200 OK" in trickling.recv(1000)
    for sent in (
        b"\x16\x03\x01\x02\x00\x01",
        b"GET /healthz HTTP/1.1\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx: " + b"y" * 40_000 + b"\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100000\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
        b"POST /v1/shape HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\ncontent-length: 3\r\n\r\nabc",
    ):
        with server.open() as client:
            client.sendall(sent)
            client.shutdown(socket.SHUT_WR)
            answer = client.recv(1000)
            assert not answer or answer.split()[1] in {b"400", b"401", b"405", b"413", b"421", b"431"}, sent[:40]
    began = time.monotonic()
    assert slow.recv(1000) == b""
    for _ in range(200):
        try:
            trickling.sendall(b"x")
        except OSError:
            break
        time.sleep(0.5)
    assert time.monotonic() - began < 40, "a client kept its connection"
    many = [server.open() for _ in range(60)]
    try:
        assert server.get("/healthz")[0] == 200
        status, headers, _ = server.get(f"{_QUERY}&offset=-1&secret=correct-horse")
        assert (status, headers["retry-after"]) == (503, "5")
    finally:
        for client in many:
            client.close()
    deadline = time.monotonic() + 30
    while server.get(f"{_QUERY}&offset=-1&secret=correct-horse")[0] != 200:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert len(list(Path(f"/proc/{server.process.pid}/fd").iterdir())) < 80


def test_connection_over_the_limit_takes_nothing_from_others(tmp_path: Path, log: str) -> None:
    """It is answered once and closed; those that were there before are answered on."""
    server = Process(configuration(tmp_path, log, connections=2))
    try:
        clients = [http.client.HTTPConnection("127.0.0.1", server.port, timeout=60) for _ in range(3)]
        for _ in range(3):
            found = []
            for client in clients:
                client.request("GET", f"{_QUERY}&offset=-1")
                response = client.getresponse()
                response.read()
                found.append((response.status, response.getheader("connection")))
            assert found == [(200, None), (200, None), (503, "close")]
    finally:
        server.process.kill()
        server.process.wait()


def test_server_that_cannot_start_says_why(tmp_path: Path, log: str) -> None:
    """A table that is not there, and an address that is taken, each with its exit code."""
    missing = f"{tmp_path}/none/log"
    done = run_to_end(command(configuration(tmp_path, missing)), timeout=120)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (
        5,
        f"flushtracker serve: there is no shape log at {missing}; name the storage of `flushtracker write`",
    )
    with socket.create_server(("127.0.0.1", 0)) as taken:
        path = configuration(tmp_path, log, taken.getsockname()[1])
        done = run_to_end(command(path), timeout=120)
    assert done.returncode == 2
    assert "serve.listen is 127.0.0.1" in done.stderr


def test_server_that_has_no_room_for_temporary_files_says_so_at_its_start(tmp_path: Path, log: str) -> None:
    """As on a full disk, or where nothing may be written: Python then finds no folder for them."""
    program = (
        "import sys, tempfile\n"
        "def full():\n"
        "    raise FileNotFoundError(2, 'No usable temporary directory found')\n"
        "tempfile._get_default_tempdir = full\n"
        "from flushtracker.cli import run\n"
        "run(['serve', *sys.argv[1:]])\n"
    )
    done = run_to_end([sys.executable, "-c", program, "--config", str(configuration(tmp_path, log))], timeout=120)
    assert done.returncode == 5
    assert done.stderr.splitlines()[-1] == (
        "flushtracker serve: temporary files cannot be used: [Errno 2] No usable temporary directory found"
    )


def test_a_client_that_leaves_within_a_large_answer_is_no_line_of_the_log(server: Process, log: str) -> None:
    """As a browser does that is closed: nothing more is written to it, or asyncio would log each part of the rest."""
    rows = [item((20, n), "insert", f"k{n}", {"id": str(n), "name": "x" * 200_000}) for n in range(0, 300, 2)]
    append(log, [*rows, commit(20)])
    secret = "&secret=correct-horse"  # noqa: S105
    wait_until(lambda: len(server.get(f"{_QUERY}&offset=-1{secret}")[2]) > 1_000_000, "the rows", timeout_s=60)
    for _ in range(3):
        with server.open() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.sendall(f"GET {_QUERY}&offset=-1{secret} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
            assert client.recv(65_536)
    assert server.get(f"{_QUERY}&offset=-1{secret}")[0] == 200
    code, rest = server.stop()
    assert (code, [line for line in rest if " INFO " not in line]) == (0, [])
