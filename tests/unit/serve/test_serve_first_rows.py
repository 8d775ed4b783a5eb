"""Rows for a new client that are sent while the rest of them is made."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from flushtracker.errors import SinkError
from flushtracker.serve.messages import row_messages
from flushtracker.serve.rendering import Rendering
from tests.support.sample_registry import register, shape_entry, table_entry
from tests.support.serve_client import Client, Response, Server, serving
from tests.support.shape_log_rows import append, inserts

USERS = {"shape": "users"}


@pytest.fixture
def log(log: str) -> str:
    register(log, shape_entry(), table_entry())
    return log


_ROWS = 200
_KEYS = [f"k{n:03}" for n in range(_ROWS)]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("body", "log_pages", "state_rows"):
        monkeypatch.setattr(f"flushtracker.serve.{module}.PAGE_BYTES", 1_000)
    monkeypatch.setattr("flushtracker.shape_log.table.external_sort.ROWS", 20)


class _Slow:
    """Rows are made up to the fifth table, and then only if they may ``go_on``; the end ``fails`` if that is set."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.fails = False
        self.tables = 0

    def __call__(self, rows: Any, rendering: Rendering) -> list[bytes]:
        self.tables += 1
        if self.tables > 5:
            assert self.go_on.wait(60)
            if self.fails:
                raise SinkError("no space is left")
        return row_messages(rows, rendering)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> _Slow:
    found = _Slow()
    monkeypatch.setattr("flushtracker.serve.reads.row_messages", found)
    return found


async def _until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.01)


async def _pages(client: Client, server: Server) -> list[Response]:
    """All answers up to the one that says that the client is up to date."""
    found = []
    while not client.is_up_to_date:
        found.append(await client.step(server))
        assert found[-1].status == 200
    return found


async def test_first_rows_come_while_the_others_are_made(log: str, slow: _Slow) -> None:
    """A client takes what there is, and waits for what is not. Others share the read, and get the same answers."""
    append(log, inserts(10, *_KEYS))
    async with serving(log) as server:
        one, other, flights = Client(USERS), Client(USERS), server.served.parts.row_flights
        first = await asyncio.wait_for(one.step(server), 30)
        assert (first.status, flights.running, one.is_up_to_date) == (200, 1, False)
        taken = [asyncio.create_task(_pages(client, server)) for client in (one, other)]
        await _until(lambda: len(one.rows) == len(other.rows) > 50)
        await asyncio.sleep(0.2)
        assert not any(task.done() for task in taken)
        slow.go_on.set()
        pages = [await task for task in taken]
        assert [first.body, *(page.body for page in pages[0])] == [page.body for page in pages[1]]
        assert list(one.rows) == list(other.rows) == _KEYS
        assert flights.started == 1
        assert server.served.parts.states.disk_bytes > 10_000


async def test_server_beside_makes_the_same_answers(log: str, slow: _Slow) -> None:
    """Also for a client that comes from a server that was killed in the middle of its rows, and after a change."""
    append(log, inserts(10, *_KEYS))
    async with serving(log) as killed, serving(log) as other:
        client, whole = Client(USERS), Client(USERS)
        begun = [await client.step(killed) for _ in range(3)]
        append(log, inserts(20, "later"))
        rest = asyncio.create_task(_pages(client, other))
        slow.go_on.set()
        await rest
        pages = await _pages(whole, killed)
        assert [page.body for page in begun] == [page.body for page in pages[:3]]
        assert [page.headers["etag"] for page in begun] == [page.headers["etag"] for page in pages[:3]]
        assert list(client.rows) == [*_KEYS, "later"]


async def test_client_that_leaves_in_the_rows_ends_no_read(log: str, slow: _Slow) -> None:
    """Between two requests nobody waits, and the rows are made all the same; a server that stops ends them."""
    append(log, inserts(10, *_KEYS))
    async with serving(log) as server:
        client, flights = Client(USERS), server.served.parts.row_flights
        await client.step(server)
        gone = asyncio.Event()
        far = {**client.query(live=False), "offset": f"10_{_ROWS}"}
        lost = asyncio.create_task(server.get(far, gone=gone))
        await asyncio.sleep(0.2)
        gone.set()
        assert (await lost).status == 0
        slow.go_on.set()
        await client.sync(server)
        assert (len(client.rows), flights.started) == (_ROWS, 1)
        slow.go_on.clear()
        slow.tables = 0
    async with serving(log) as server:
        await Client(USERS).step(server)
        flights = server.served.parts.row_flights
        await _until(lambda: slow.tables == 6)
        server.served.close()
        slow.go_on.set()
        await _until(lambda: not flights.running)
        assert slow.tables == 6


async def test_rows_that_fail_in_the_middle_are_made_again(log: str, slow: _Slow) -> None:
    """Whoever waits for more of them gets a 503, and goes on with the same offset then."""
    append(log, inserts(10, *_KEYS))
    slow.fails = True
    async with serving(log) as server:
        client, states = Client(USERS), server.served.parts.states
        while len(client.rows) < 90:
            await client.step(server)
        failing = asyncio.create_task(server.get({**client.query(live=False), "offset": f"10_{_ROWS}"}))
        await asyncio.sleep(0.2)
        slow.go_on.set()
        response = await failing
        assert (response.status, response.headers["retry-after"]) == (503, "2")
        await _until(lambda: not len(states))
        assert states.disk_bytes == 0
        slow.fails = False
        await client.sync(server)
        assert list(client.rows) == _KEYS
        assert server.served.parts.row_flights.started == 2


async def test_rows_larger_than_the_cache_are_made_once(log: str, slow: _Slow) -> None:
    """Or each of a client's answers would fold the whole shape; they make room for others that are used later."""
    append(log, inserts(10, *_KEYS))
    slow.go_on.set()
    async with serving(log) as server:
        states, flights = server.served.parts.states, server.served.parts.row_flights
        states._limit = 2_000
        client = Client(USERS)
        await client.sync(server)
        assert (len(client.rows), flights.started, len(states)) == (_ROWS, 1, 1)
        append(log, inserts(20, "later"))
        await server.served.parts.poller.current(fresh=True)
        await server.get({**USERS, "offset": "-1", "expired_handle": "x"})
        assert (flights.started, len(states)) == (2, 1)
