"""Reads of a store that does not answer: every request gets an answer in time, and other shapes go on."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from flushtracker.serve.open_tables import OpenTables
from flushtracker.serve.single_flight import SingleFlight
from flushtracker.shape_log.table.reader import ShapeLogReader
from tests.support.sample_registry import again, register, shape_entry, table_entry
from tests.support.serve_client import Client, Response, Server, serving
from tests.support.shape_log_rows import append, commit, inserts, item

_USERS: Final = {"shape": "users"}
_OTHERS: Final = {"shape": "others"}
_HUNG_S: Final = 300
_READS: Final = 2
_REQUESTS: Final = 83


@pytest.fixture
def log(log: str) -> str:
    register(log, shape_entry(), table_entry())
    again(log, shape_entry("others"), 5)
    append(log, [row for tx in range(10, 50) for row in inserts(tx, str(tx))])
    append(log, [item((60, 0), "insert", "o", {"id": "o"}, shape_id="others"), commit(60, shape_id="others")])
    return log


class _Store:
    """Leaves reads of the shape users unanswered, until it is healed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.healed = threading.Event()
        self.hung = 0
        for name in ("log", "rows"):
            monkeypatch.setattr(OpenTables, name, self._hanging(getattr(OpenTables, name)))

    def _hanging(self, read: Callable[..., Any]) -> Callable[..., Any]:
        def hanging(tables: OpenTables, shape_id: str, *arguments: Any) -> Any:
            if shape_id == "users" and not self.healed.is_set():
                self.hung += 1
                assert self.healed.wait(_HUNG_S)
            return read(tables, shape_id, *arguments)

        return hanging


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Store]:
    found = _Store(monkeypatch)
    yield found
    found.healed.set()


def _hurry(*flights: SingleFlight) -> None:
    """Wait for a read for half a second, and take it for stalled after a tenth."""
    for each in flights:
        each.wait_s, each.stalled_s = 0.5, 0.1


async def _until(holds: Callable[[], object]) -> None:
    while not holds():
        await asyncio.sleep(0.01)


async def _retry(client: Client, server: Server) -> None:
    """Ask until it is up to date, and again after each 503."""
    while not client.is_up_to_date:
        assert (await client.step(server)).status in {200, 503}


async def _ask(server: Server, handle: str) -> list[Response]:
    """Many clients ask for the rows of users, and at each place of its log."""
    logs = ({**_USERS, "offset": f"{10 + n % 40}_0", "handle": handle, "log": "full"} for n in range(_REQUESTS))
    rows = ({**_USERS, "offset": "-1"} for _ in range(_REQUESTS))
    return await asyncio.gather(*map(server.get, [*logs, *rows]))


async def test_store_that_does_not_answer_leaves_no_request_unanswered(log: str, store: _Store) -> None:
    """83 requests for a shape got nothing for 40 s, and those of other shapes waited behind them."""
    async with serving(log) as server:
        parts = server.served.parts
        _hurry(*parts.flights)
        handle = str((await parts.poller.shape("users")).handle)
        for _ in range(3):
            answers = await asyncio.wait_for(_ask(server, handle), 120)
            # At the end of the log nothing is read.
            refused = [each for each in answers if each.status != 200]
            assert len(refused) >= 2 * _REQUESTS - 3
            assert {(each.status, each.headers["retry-after"]) for each in refused} == {(503, "2")}
            other = Client(_OTHERS)
            await asyncio.wait_for(_retry(other, server), 120)
            assert list(other.rows) == ["o"]
        assert store.hung <= 2 * _READS
        store.healed.set()
        await _until(lambda: not parts.row_flights.running + parts.log_flights.running)
        client = Client(_USERS)
        await client.sync(server)
        assert len(client.rows) == 40


async def test_requests_are_refused_at_once_if_all_reads_stall(store: _Store) -> None:
    """They would wait for threads that do not become free. Nothing stays in the queue, and later requests are read."""
    flights = SingleFlight("test", _READS, spare=_READS)
    _hurry(flights)

    def hang(_: object) -> int:
        assert store.healed.wait(_HUNG_S)
        return 1

    def refused(key: int, group: int) -> Any:
        return flights.share(key, hang, lambda _: None, group=group)

    for _ in range(3):
        found = await asyncio.gather(*(refused(n, n) for n in range(20)), return_exceptions=True)
        assert {type(each).__name__ for each in found} == {"UnavailableError"}
        assert flights.running == len(flights._flights) == 2 * _READS
    flights.wait_s = _HUNG_S
    before = flights.refused
    with pytest.raises(Exception, match="try again"):
        await refused(100, 100)
    assert flights.refused == before + 1
    store.healed.set()
    await _until(lambda: not flights.running)
    assert await refused(100, 100) == 1
    flights.close()


async def test_read_that_takes_long_goes_on_for_those_who_ask_again(log: str, store: _Store) -> None:
    """Otherwise a shape whose rows take longer than a request may wait would never be served."""
    async with serving(log) as server:
        flights = server.served.parts.row_flights
        flights.wait_s = 0.05
        client = Client(_USERS)
        assert (await client.step(server)).status == 503
        assert flights.running == 1
        store.healed.set()
        await _until(lambda: not flights.running)
        await client.sync(server)
        assert (len(client.rows), flights.started) == (40, 1)


async def test_forged_offset_in_the_rows_costs_no_read(log: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No transaction ends there, so no server has given it; each had the rows of the whole shape made."""
    reads = list[object]()
    row_tables = ShapeLogReader.row_tables

    def counted(*arguments: Any) -> Any:
        reads.append(arguments)
        return row_tables(*arguments)

    monkeypatch.setattr(ShapeLogReader, "row_tables", counted)
    append(log, inserts(1_000, "last"))
    async with serving(log) as server:
        handle = str((await server.served.parts.poller.shape("users")).handle)
        for tx in range(100, 120):
            answer = await server.get({**_USERS, "offset": f"{tx}_1", "handle": handle})
            assert answer.status == 409
        assert reads == []
        assert (await server.get({**_USERS, "offset": "30_1", "handle": handle})).status == 409
        assert (await server.get({**_USERS, "offset": "30_0", "handle": handle})).status == 200
