"""The server of a program's status on real sockets: what clients do never delays the program, or another client."""

import json
import logging
import select
import socket
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from threading import Barrier, Event
from threading import enumerate as enumerate_threads
from typing import Any, Final

import pytest

from flushtracker.config.status_config import StatusConfig
from flushtracker.errors import ConfigError
from flushtracker.status.http import http_connection, http_server
from flushtracker.status.http.listener import open_listener
from flushtracker.status.http.status_server import StatusServer
from flushtracker.status.job_status import Holder, JobStatus, SourceStatus
from tests.support.waiting import wait_until

_THREADS: Final = "status"
ANY_PORT: Final = StatusConfig("127.0.0.1", 0)
HOLDERS: Final = tuple(Holder("shape" * 20 + str(number), 1, 1, 1, 1) for number in range(10))
STATUS: Final = JobStatus(1, 1, is_ready=True, sources=(SourceStatus("s", 1, 2, 10, 0, 1, HOLDERS),))


@contextmanager
def serving(config: StatusConfig = ANY_PORT) -> Iterator[StatusServer]:
    with StatusServer(config, lambda: STATUS) as server:
        yield server


def connected(server: StatusServer, sent: bytes = b"") -> socket.socket:
    client = socket.create_connection(("127.0.0.1", server.port), timeout=5)
    client.sendall(sent)
    return client


def received(client: socket.socket) -> bytes:
    """All that comes until the server closes the connection."""
    with client:
        return b"".join(iter(lambda: client.recv(65_536), b""))


def get(server: StatusServer, path: str = "status.json") -> Any:
    """Another client's answer. Behind one that hangs it would come after ten seconds, when that is disconnected."""
    with urllib.request.urlopen(server.url + path, timeout=5) as response:  # noqa: S310  our own server
        return json.load(response)


def _no_thread() -> bool:
    return not any(thread.name.startswith(_THREADS) for thread in enumerate_threads())


def test_end_of_an_answer_does_not_wait_until_the_client_has_acknowledged_its_beginning() -> None:
    """The kernel does so by default, for 40 ms, and asyncio changes that only on sockets that name their protocol."""
    with ExitStack() as closing:
        listener = closing.enter_context(open_listener(ANY_PORT, "listen", backlog=1, stalled_s=1.0))
        closing.enter_context(socket.create_connection(listener.getsockname()))
        accepted = closing.enter_context(listener.accept()[0])
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_clients_read_the_document_and_the_server_does_not_name_itself() -> None:
    with serving() as server:
        assert server.url == f"http://127.0.0.1:{server.port}/"
        assert get(server) == STATUS.to_json()
        answer = received(connected(server, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"))
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"uvicorn" not in answer
    assert b"server:" not in answer.lower()
    assert b"via:" not in answer.lower()


def test_servers_of_one_process_do_not_read_each_others_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has a thread, and one may read between another's read and its use of what it has read."""
    both_have_read, use = Barrier(2, timeout=5), http_connection.HttpConnection.buffer_updated

    def used(connection: http_connection.HttpConnection, nbytes: int) -> None:
        both_have_read.wait()
        use(connection, nbytes)

    monkeypatch.setattr(http_connection.HttpConnection, "buffer_updated", used)
    request = "GET /{} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    with serving() as one, serving() as other:
        first = connected(one, request.format("healthz").encode())
        second = connected(other, request.format("no-path").encode())
        assert received(first).startswith(b"HTTP/1.1 200 OK\r\n")
        assert received(second).startswith(b"HTTP/1.1 404 Not Found\r\n")


def test_a_site_whose_name_leads_to_this_machine_reads_nothing() -> None:
    """Any page in the operator's browser could have its name resolve to 127.0.0.1, and read the status as its own."""
    with serving() as server:
        for host, expected in ((b"site.example:9464", b"421"), (b"127.0.0.1:9464", b"200"), (b"localhost", b"200")):
            sent = b"GET /status.json HTTP/1.1\r\nHost: " + host + b"\r\nConnection: close\r\n\r\n"
            answer = received(connected(server, sent))
            assert answer.startswith(b"HTTP/1.1 " + expected)
            assert (b'"program"' in answer) == (expected == b"200")


def test_head_has_headers_alone() -> None:
    with serving() as server:
        answer = received(
            connected(server, b"HEAD /status.json HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        )
    length = len(json.dumps(STATUS.to_json()))
    assert f"Content-Length: {length}\r\n".encode() in answer
    assert answer.endswith(b"\r\n\r\n")


def test_half_a_request_delays_nobody() -> None:
    with serving() as server, connected(server, b"GET /status.json HT"):
        assert get(server) == STATUS.to_json()


def test_a_client_that_reads_nothing_delays_nobody() -> None:
    """It asks as often as the server takes its requests, and leaves the answers in the socket."""
    with serving() as server, connected(server) as client:
        client.settimeout(0.2)
        with suppress(TimeoutError):
            while True:
                client.sendall(b"GET /page.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 50)
        assert get(server) == STATUS.to_json()


def test_a_client_that_reads_nothing_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its connection would be there until it goes: there is no room to write into it, so nothing happens to it."""
    monkeypatch.setattr(http_server, "_ANSWER_S", 1)
    with serving() as server, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        client.connect(("127.0.0.1", server.port))
        client.settimeout(0.2)
        with suppress(TimeoutError):
            while True:
                client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 50)
        poller = select.poll()
        poller.register(client, select.POLLHUP)
        assert poller.poll(9_000)


def test_two_hundred_connections_delay_nobody() -> None:
    with serving() as server, ExitStack() as stack:
        for _ in range(200):
            stack.enter_context(connected(server, b"GET / HTTP/1.1\r\nHost:"))
        assert get(server) == STATUS.to_json()


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)) + b"\r\n\r\n",
        b"\0" * 30_000,
        b"GET /" + b"a" * 100_000,
        b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n\r\n",
        b"POST /status.json HTTP/1.1\r\nContent-Length: 999999999\r\n\r\n",
        b"GET /%ff%00 HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
    ],
    ids=["tls", "zeros", "endless path", "chunks", "large body", "path", "negative"],
)
def test_garbage_is_refused_and_delays_nobody(sent: bytes) -> None:
    with serving() as server:
        client = connected(server)
        try:
            client.sendall(sent)
            assert not client.recv(65_536).startswith(b"HTTP/1.1 200")
        except ConnectionError:
            pass  # It was cut off while it was still sending.
        client.close()
        assert get(server) == STATUS.to_json()


def test_a_silent_client_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    """So connections are there again after an attack."""
    monkeypatch.setattr(http_connection, "REQUEST_S", 1)
    with serving() as server, connected(server, b"GET / HTTP/1.1\r\n") as client:
        assert client.recv(1) == b""


def test_connections_above_the_limit_wait_and_the_program_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files and connections are not used up; those that wait come in when others are closed."""
    monkeypatch.setattr(http_server, "_CONNECTIONS", 10)
    monkeypatch.setattr(http_connection, "REQUEST_S", 1)
    with serving() as server, ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(connected(server, b"GET / HTTP/1.1\r\n"))
        with connected(server, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n") as client:
            client.settimeout(15)
            assert client.recv(15) == b"HTTP/1.1 200 OK"


def test_requests_of_clients_that_have_gone_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """They wait for an answer that nobody takes: one client filled the memory with them, one connection at a time."""
    monkeypatch.setattr(http_server, "_CONNECTIONS", 10)
    asked, go_on = list[None](), Event()

    def read() -> JobStatus:
        asked.append(None)
        go_on.wait(30)
        return STATUS

    with StatusServer(ANY_PORT, read) as server:
        assert server._http is not None
        queue = server._http._answering._calls
        try:
            for _ in range(100):
                connected(server, b"GET /status.json HTTP/1.1\r\nHost: localhost\r\n\r\n").close()
            wait_until(lambda: len(asked) >= 2, "both threads answer", 30)
            time.sleep(0.5)
            assert queue.qsize() <= 10
        finally:
            go_on.set()
        assert get(server) == STATUS.to_json()


def test_a_connection_is_closed_after_a_request_with_a_body() -> None:
    """It may have no end, and would be parsed for as long as the client sends."""
    with serving() as server:
        head = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"
        answer = received(connected(server, head))
        assert answer.startswith(b"HTTP/1.1 200 OK")
        assert b"connection: close" in answer.lower()


def test_clients_that_send_or_read_byte_by_byte_do_not_take_the_connections_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each byte was progress, so 300 connections with one header byte every few seconds ended /healthz for good."""
    monkeypatch.setattr(http_server, "_CONNECTIONS", 10)
    monkeypatch.setattr(http_connection, "REQUEST_S", 1)
    with serving() as server, ExitStack() as stack, ThreadPoolExecutor() as asking:
        slow = [stack.enter_context(connected(server, b"GET / HTTP/1.1\r\nX: ")) for _ in range(20)]
        answer = asking.submit(get, server)
        while not answer.done():
            for client in slow:
                with suppress(OSError):
                    client.sendall(b"a")
            time.sleep(0.1)
        assert answer.result() == STATUS.to_json()
        for client in slow[:5]:
            with suppress(ConnectionResetError):
                assert client.recv(1) == b""


def test_a_connection_that_is_used_again_and_again_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Prometheus' is: the time counts from its last answer."""
    monkeypatch.setattr(http_connection, "REQUEST_S", 2)
    with serving() as server, connected(server) as client:
        started = time.monotonic()
        while time.monotonic() - started < 4:
            client.sendall(b"HEAD /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert client.recv(65_536).startswith(b"HTTP/1.1 200 OK")
            time.sleep(0.4)


def test_an_answer_may_take_longer_than_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program may be slow, and that is not the client's fault."""
    monkeypatch.setattr(http_connection, "REQUEST_S", 0.5)

    def read() -> JobStatus:
        time.sleep(1.5)
        return STATUS

    with StatusServer(ANY_PORT, read) as server:
        assert get(server) == STATUS.to_json()


def test_the_programs_own_thread_is_not_delayed() -> None:
    """While clients ask as fast as they can, and others hang, a step of the program takes as long as before."""
    with serving() as server, ExitStack() as stack:
        for _ in range(50):
            stack.enter_context(connected(server, b"GET /"))
        clients = [stack.enter_context(connected(server)) for _ in range(10)]
        for client in clients:
            client.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        longest_s, started = 0.0, time.monotonic()
        while time.monotonic() - started < 0.5:
            before = time.monotonic()
            time.sleep(0.005)
            longest_s = max(longest_s, time.monotonic() - before)
    assert longest_s < 3


def test_a_client_that_asks_in_a_loop_leaves_most_of_the_time_to_the_program() -> None:
    """Each of the two threads rests four times as long as it took for the answer."""

    def read() -> JobStatus:
        time.sleep(0.01)
        return STATUS

    with StatusServer(ANY_PORT, read) as server:
        started = time.monotonic()
        for _ in range(10):
            assert get(server) == STATUS.to_json()
        assert time.monotonic() - started > 10 * (1 + 4) * 0.01


def test_leaving_stops_every_thread_within_a_moment_whatever_clients_do(caplog: pytest.LogCaptureFixture) -> None:
    """Nor do clients write into the program's log."""
    server = StatusServer(StatusConfig("127.0.0.1", 0, ("http://127.0.0.1:9",)), lambda: STATUS)
    with caplog.at_level(logging.INFO), ExitStack() as stack:
        with server:
            for _ in range(50):
                stack.enter_context(connected(server, b"GET / HTTP/1.1\r\n"))
            assert get(server) == STATUS.to_json()
            started = time.monotonic()
        assert time.monotonic() - started < 9
    # Clients are disconnected after 15 s in any case.
    wait_until(_no_thread, "no thread", 9)
    with pytest.raises(ConnectionRefusedError):
        connected(server)
    assert not caplog.records


def test_an_answer_under_way_at_the_end_delays_nothing_and_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """It is for a connection and a loop that there are no more."""
    reading, may_read = Event(), Event()

    def read() -> JobStatus:
        reading.set()
        may_read.wait(60)
        return STATUS

    with caplog.at_level(logging.INFO), ExitStack() as stack:
        with StatusServer(ANY_PORT, read) as server:
            stack.enter_context(connected(server, b"GET /status.json HTTP/1.1\r\nHost: localhost\r\n\r\n"))
            assert reading.wait(60)
            started = time.monotonic()
        assert time.monotonic() - started < 30
        may_read.set()
        wait_until(_no_thread, "no thread", 60)
    assert not caplog.records


def test_a_server_that_is_closed_at_once_frees_its_port() -> None:
    for _ in range(20):
        with serving() as server:
            taken = StatusConfig("127.0.0.1", server.port)
    with serving(taken) as again:
        assert get(again) == STATUS.to_json()


def test_a_taken_port_is_refused_with_its_key() -> None:
    with serving() as server:
        taken = StatusConfig("127.0.0.1", server.port)
        with pytest.raises(ConfigError) as caught, serving(taken):
            pass
        assert get(server) == STATUS.to_json()
    assert str(caught.value) == (
        f"status.listen is 127.0.0.1:{taken.listen_port}, where nothing can be served: Address already in use; "
        "stop what listens there, or name another address"
    )
    with serving(taken) as again:
        assert get(again) == STATUS.to_json()


def test_an_address_of_another_machine_is_refused_with_its_key() -> None:
    with pytest.raises(ConfigError, match=r"status\.listen is 192\.0\.2\.1:0, where nothing can be served: "):
        StatusServer(StatusConfig("192.0.2.1", 0), lambda: STATUS).__enter__()


def test_all_addresses_can_be_served() -> None:
    """The page's address is then one that works on this machine."""
    with serving(StatusConfig("0.0.0.0", 0)) as server:  # noqa: S104
        assert server.url == f"http://127.0.0.1:{server.port}/"
        assert get(server) == STATUS.to_json()


def test_a_failing_status_does_not_end_the_server() -> None:
    """The next one may be readable."""
    known: list[JobStatus] = []
    with StatusServer(ANY_PORT, lambda: known[0]) as server:
        for path in ("healthz", "status.json", "metrics"):
            with pytest.raises(urllib.error.HTTPError, match="503"):
                get(server, path)
        known.append(STATUS)
        assert get(server) == STATUS.to_json()
