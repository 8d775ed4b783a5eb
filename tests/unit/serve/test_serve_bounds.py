"""What one client can make the server use: of each resource no more than its bound (docs/http.md has the table)."""

import asyncio
import contextlib
import gc
import logging
import re
import resource
import select
import socket
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from flushtracker.config.write_config import LogConfig
from flushtracker.errors import DecodeError
from flushtracker.serve.disconnect import DisconnectedError, until_disconnected
from flushtracker.serve.open_tables import OpenTables
from flushtracker.serve.rate_limited_log import RateLimitedLog
from flushtracker.serve.reads import LogReads
from flushtracker.serve.single_flight import AbandonedError
from flushtracker.serve.state_rows import StateRows
from flushtracker.shape_log.position import Position
from tests.support.sample_registry import register, shape_entry, table_entry, users_log
from tests.support.serve_client import Client, Server, serving
from tests.support.serve_process import Process, configuration
from tests.support.shape_log_rows import append, commit, inserts, item

_MB: Final = 1_000_000
_CONNECTIONS: Final = 50
_HEADERS: Final = b" HTTP/1.1\r\nhost: localhost\r\n\r\n"
_HEALTH: Final = b"GET /healthz" + _HEADERS
_LARGE_BYTES: Final = 12 * _MB


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """It serves a shape with a row of 12 MB in its log, and few connections."""
    folder = tmp_path_factory.mktemp("serve")
    log = users_log(folder)
    append(log, inserts(10, "a"))
    append(log, [item((20, 0), "insert", "large", {"id": "2", "name": "x" * _LARGE_BYTES}), commit(20)])
    found = Process(configuration(folder, log, connections=_CONNECTIONS))
    for _ in range(5):
        # What it loads and allocates once.
        handle = found.get("/v1/shape?shape=users&offset=-1")[1]["electric-handle"]
        assert found.get(f"/v1/shape?shape=users&offset=10_0&handle={handle}")[0] == 200
    yield found
    _, lines = found.stop()
    assert [line for line in lines if " INFO " not in line] == []


def _queued_bytes(server: Process) -> list[int]:
    """What the kernel has of answers for each of the server's connections."""
    found = []
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, _, state, queues, *_ = line.split()
        if int(local.partition(":")[2], 16) == server.port and state == "01":
            found.append(int(queues.partition(":")[0], 16))
    return found


def _received(client: socket.socket, most: int) -> bytes:
    """What has come, up to ``most`` bytes. A connection that the server has closed would return nothing for ever."""
    found = client.recv(most)
    assert found, "the server has closed the connection"
    return found


def _answered(client: socket.socket, request: bytes) -> None:
    """Send a request, and take the whole answer, which is a 200."""
    client.sendall(request)
    answer = b""
    while b"\r\n\r\n" not in answer:
        answer += _received(client, 65_536)
    assert answer.startswith(b"HTTP/1.1 200 ")
    length = re.search(rb"content-length: ([0-9]+)", answer)
    assert length is not None
    left = int(length[1]) - len(answer.partition(b"\r\n\r\n")[2])
    while left:
        left -= len(_received(client, left))


def _until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_requests_ahead_of_their_answers_are_not_buffered(server: Process) -> None:
    """A client that sends as fast as it can is read no faster than it is answered."""
    request = b"GET /v1/shape?shape=users&offset=now" + _HEADERS
    requests = memoryview(request * (_MB // len(request)))
    with server.open() as client:
        _answered(client, _HEALTH)
        before = server.resident_bytes
        client.setblocking(False)  # noqa: FBT003
        answered = sent = 0
        while answered < 1_000:
            with contextlib.suppress(BlockingIOError):
                while sent < 200 * _MB:
                    sent += client.send(requests[sent % len(request) :])
            readable, _, _ = select.select([client], [], [], 60)
            assert readable
            answered += _received(client, 2_000).count(b"200 OK")
        assert server.resident_bytes - before < 20 * _MB
        assert sent < 20 * _MB


def _stalled(server: Process, query: bytes) -> socket.socket:
    """A client that asks, and takes nothing."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    client.settimeout(60)
    client.connect(("127.0.0.1", server.port))
    client.sendall(b"GET /v1/shape?shape=users&" + query + _HEADERS)
    return client


@pytest.mark.parametrize("kind", ["rows", "log", "events"])
def test_clients_that_take_nothing_are_kept_in_little_memory(server: Process, kind: str) -> None:
    """Each has one part of its answer in the process, and little more in the kernel, also of one large message."""
    _, headers, _ = server.get("/v1/shape?shape=users&offset=-1")
    after_tx = f"handle={headers['electric-handle']}&offset=10_0"
    after_rows = f"handle={headers['electric-handle']}&offset={headers['electric-offset']}"
    query = {"rows": after_rows, "log": after_tx, "events": f"{after_tx}&live=true&live_sse=true"}[kind].encode()
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(_stalled(server, query))
        assert b"200 OK" in first.recv(1_000)
        _until(lambda: max(_queued_bytes(server)) > 4_096)
        before = server.resident_bytes
        for _ in range(_CONNECTIONS - 10):
            client = stack.enter_context(_stalled(server, query))
            assert client.recv(12) == b"HTTP/1.1 200"
        queued = [size for size in _queued_bytes(server) if size]
        assert len(queued) > _CONNECTIONS // 2
        assert max(queued) < 200_000
        assert server.resident_bytes - before < 200_000 * _CONNECTIONS
    _until(lambda: not [size for size in _queued_bytes(server) if size])


def test_reset_connections_keep_nothing(server: Process) -> None:
    """Neither what they have sent, nor what they were sent."""
    ahead = _HEALTH + b"GET /healthz HTTP/1.1\r\nx: " + b"y" * 30_000

    def come_and_go() -> None:
        with server.open() as client:
            _answered(client, ahead)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    for _ in range(100):
        come_and_go()
    before = server.resident_bytes
    for _ in range(1_000):
        come_and_go()
    assert server.resident_bytes - before < 10 * _MB


@pytest.mark.parametrize("query", ["live=true", "live=true&live_sse=true"])
def test_data_after_the_last_request_of_a_connection_only_ends_it(server: Process, query: str) -> None:
    """Also while its answer is being sent; the log is not told, which the server's fixture checks in the end."""
    _, headers, _ = server.get("/v1/shape?shape=users&offset=now")
    query = f"shape=users&offset=20_0&handle={headers['electric-handle']}&{query}"
    with server.open() as client:
        client.sendall(f"GET /v1/shape?{query} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode())
        if "sse" in query:
            assert client.recv(1_000).startswith(b"HTTP/1.1 200 ")
        client.sendall(_HEALTH)
        with contextlib.suppress(ConnectionError):
            while client.recv(65_536):
                pass


def test_burst_of_connections_takes_no_file_that_others_need(tmp_path: Path) -> None:
    """Those over the limit are closed as they come, and neither the log nor other clients are told of them."""
    log = users_log(tmp_path)
    append(log, inserts(10, "a"))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 6_000:
        pytest.skip("the limit of open files is too low")
    resource.setrlimit(resource.RLIMIT_NOFILE, (1_024, hard))
    server = Process(configuration(tmp_path, log, connections=20))
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 6_000), hard))
    clients = []
    try:
        regular = server.open()
        _answered(regular, _HEALTH)
        for _ in range(4_000):
            client = socket.socket()
            client.setblocking(False)  # noqa: FBT003
            client.connect_ex(("127.0.0.1", server.port))
            clients.append(client)
        _answered(regular, b"GET /v1/shape?shape=users&offset=-1" + _HEADERS)
    finally:
        for client in clients:
            client.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        _, lines = server.stop()
    assert [line for line in lines if " INFO " not in line] == []


def _open_files() -> int:
    """Temporary files of this process."""
    found = 0
    for each in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found += str(each.readlink()).endswith("(deleted)")
    return found


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Cycles of references are not found."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("uncollected")
async def test_files_of_dropped_reads_are_gone_at_once(log: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows and logs: those that were kept, those that were being sent, and those of reads that have failed.

    Without the collector of cycles, which runs when it likes, and until then the disk has them all.
    """
    monkeypatch.setattr("flushtracker.serve.cache.MAX_CACHED_FILES", 2)
    monkeypatch.setattr("flushtracker.serve.body.SMALL_BYTES", 10)
    monkeypatch.setattr("flushtracker.serve.body.PAGE_BYTES", 100)
    monkeypatch.setattr("flushtracker.serve.state_rows.PAGE_BYTES", 100)
    shapes = [replace(shape_entry(f"s{n}")) for n in range(20)]
    register(log, *shapes, table_entry())
    for n in range(20):
        append(log, [row for tx in (10, 20) for row in _inserts(tx, f"s{n}")])
    add, fails = StateRows.add, [False]

    def add_or_fail(state: StateRows, messages: list[bytes]) -> bool:
        found = add(state, messages)
        if fails[0]:
            raise AbandonedError
        return found

    monkeypatch.setattr(StateRows, "add", add_or_fail)
    before = _open_files()

    async def read_all(server: Server) -> None:
        for n in range(20):
            client = Client({"shape": f"s{n}"})
            await client.step(server)
            if client.handle is not None:
                client.offset = "10_0"
                await client.step(server)
                gone = asyncio.Event()
                stream = asyncio.create_task(
                    server.get(client.query(live=False) | {"live": "true", "live_sse": "true"}, gone=gone)
                )
                while not server.served.parts.poller.waiting:
                    await asyncio.sleep(0.005)
                gone.set()
                await stream
                del stream

    async with serving(log) as server:
        await read_all(server)
        assert _open_files() - before <= 2 * 2
        fails[0] = True
        await read_all(server)
        assert _open_files() - before <= 2 * 2


def test_shapes_that_nobody_asks_for_any_more_are_forgotten(log: str) -> None:
    """By the thread that looks at the tables, and by those that read them, whatever their readers remember."""
    shape_ids = [f"s{n}" for n in range(200)]
    register(log, *map(shape_entry, shape_ids), table_entry())
    append(log, [row for shape_id in shape_ids for row in _inserts(10, shape_id)])
    config = LogConfig(log, f"{log}_shapes")
    reads, tables = LogReads(config, None), OpenTables(config, None)
    tables.refresh()
    for first in range(0, len(shape_ids), 50):
        wanted = frozenset(shape_ids[first : first + 50])
        seen = [tables.seen(shape_id) for shape_id in wanted]
        tables.forget(wanted)
        for each in seen:
            reads.log_pages(each, Position(each.found.source, 0, 0), lambda: None, is_proven=True)
    for opened in (tables, reads._threads.tables):
        assert len(opened._facts) <= 151
        assert len(opened._finder._ends._known) <= 151


async def test_client_fills_no_log(log: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """What it causes is logged, a few times a minute: a shape that cannot be read, and an error."""
    register(log, shape_entry(), table_entry())
    append(log, inserts(10, "a"))
    reasons: list[Exception] = []

    def broken(*_arguments: object) -> StateRows:
        raise reasons[-1]

    monkeypatch.setattr(LogReads, "state", broken)
    async with serving(log) as server:
        for reason, status in ((DecodeError("a broken log"), 422), (RuntimeError("a mistake"), 500)):
            reasons.append(reason)
            for _ in range(100):
                assert (await server.get({"shape": "users", "offset": "-1"})).status == status
    texts = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    # Clients share a read, and its error is one line.
    assert texts == ["request refused reason=a broken log"] + ["request failed"] * 10


async def test_work_that_fails_as_its_client_leaves_is_no_error_of_the_program() -> None:
    """Its exception is told to nobody, and the log is not filled with it."""
    sent_lsn: list[object] = []

    async def work() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            raise DecodeError("at the last moment")

    asyncio.get_running_loop().set_exception_handler(lambda _, context: sent_lsn.append(context["message"]))
    gone = asyncio.get_running_loop().create_future()
    gone.set_result(None)
    with pytest.raises(DisconnectedError):
        await until_disconnected(work(), gone)
    await asyncio.sleep(0.01)
    gc.collect()
    assert sent_lsn == []


def test_rate_limited_log_says_how_much_it_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """For each event on its own, and once its minute is over."""
    now_s = [0.0]
    log = RateLimitedLog(logging.getLogger("test"), lambda: now_s[0])
    for n in range(25):
        log(logging.WARNING, "happened n=%s", n)
    log(logging.WARNING, "other")
    now_s[0] = 60.0
    log(logging.WARNING, "happened n=%s", 25)
    log(logging.WARNING, "happened n=%s", 26)
    texts = [record.getMessage() for record in caplog.records]
    expected = [f"happened n={n}" for n in range(10)]
    assert texts == [*expected, "other", "happened n=25 left_out=15", "happened n=26"]


def _inserts(tx: int, shape_id: str) -> list[dict[str, object]]:
    rows = [item((tx, n), "insert", f"{tx}-{n}", {"id": str(n), "name": "x" * 20}, shape_id=shape_id) for n in range(9)]
    return [*rows, commit(tx, shape_id=shape_id)]
