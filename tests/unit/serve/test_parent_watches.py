"""Waiting clients of definitions on demand are woken only by changes that concern them, and miss none."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest

from flushtracker.errors import SinkError
from flushtracker.serve.reads import LogReads
from flushtracker.serve.shape_request import ShapeRequest
from tests.support.on_demand_log import ORDERS, WHOLE
from tests.support.serve_client import Client, Response, Server, serving
from tests.unit.serve.test_on_demand import begin, change, key, order

_LONG_S: Final = 60.0
_ASKED: Final = ("b", "t = 'three'", "i4 > 3")


@asynccontextmanager
async def _waiting(server: Server, clients: list[Client]) -> AsyncIterator[list["asyncio.Task[Response]"]]:
    """All of them, once each waits for a change."""
    for client in clients:
        await client.sync(server)
    tasks = [asyncio.create_task(client.step(server, live=True)) for client in clients]
    try:
        await _until(server, len(clients))
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _until(server: Server, count: int) -> None:
    async def wait() -> None:
        while server.served.answers.waiting != count:
            await asyncio.sleep(0.01)

    await asyncio.wait_for(wait(), 20)


def _insert(log: str, tx: int, number: int, **values: str) -> None:
    change(log, tx, "insert", number, "orders", **order(number, **values))


def _clients() -> list[Client]:
    return [Client({"table": "orders", "where": where}) for where in _ASKED]


async def test_a_change_wakes_whom_it_concerns_and_the_others_wait_on_at_the_later_place(log: str) -> None:
    """One read judges for all, and one answers; those who wait on have nothing to read for it later."""
    begin(log, WHOLE)
    async with serving(log, live_s=_LONG_S, on_demand=frozenset([ORDERS])) as server:
        parts, clients = server.served.parts, _clients()
        assert parts.on_demand is not None
        flights = parts.on_demand.log_flights
        async with _waiting(server, clients) as tasks:
            assert parts.poller.waiting == 1, "they wait at one place"
            for number, (tx, values) in enumerate(((24, {"b": "t"}), (32, {"t": "three"}), (40, {"i4": "4"}))):
                reads = flights.started
                _insert(log, tx, number + 3, **values)
                found = await asyncio.wait_for(tasks[number], 20)
                assert [each.get("key") for each in found.json] == [key(number + 3), None]
                assert clients[number].offset == f"{tx}_0"
                await _until(server, 2 - number)
                assert [each.done() for each in tasks] == [n <= number for n in range(3)]
                assert flights.started == reads + 2


async def test_a_client_that_nothing_concerned_is_answered_in_the_end_without_a_read(log: str) -> None:
    begin(log, WHOLE)
    async with serving(log, live_s=1.0, on_demand=frozenset([ORDERS])) as server:
        client, parts = _clients()[1], server.served.parts
        assert parts.on_demand is not None
        async with _waiting(server, [client]) as tasks:
            reads = parts.on_demand.log_flights.started
            _insert(log, 24, 3, b="f")
            found = await tasks[0]
        assert [each["headers"] for each in found.json] == [{"control": "up-to-date"}]
        assert client.offset == "24_0"
        assert parts.on_demand.log_flights.started == reads + 1
        assert server.served.answers.waiting == 0


@pytest.mark.parametrize("error", [SinkError("the store does not answer"), ValueError("a mistake")])
async def test_all_are_woken_if_the_changes_cannot_be_judged(
    log: str, error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each reads for itself, and the one who is not concerned waits on."""
    begin(log, WHOLE)

    def fail(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr(LogReads, "unconcerned", fail)
    async with serving(log, live_s=_LONG_S, on_demand=frozenset([ORDERS])) as server:
        clients = _clients()
        async with _waiting(server, clients) as tasks:
            _insert(log, 24, 3, b="t", i4="4")
            for number in (0, 2):
                assert (await asyncio.wait_for(tasks[number], 20)).json[0]["key"] == key(3)
            await _until(server, 1)
            assert not tasks[1].done()
    assert ("cannot be judged" in caplog.text) == isinstance(error, ValueError)


async def test_who_comes_while_changes_are_judged_misses_none(log: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits at the place whose definitions are judged already, without its own."""
    begin(log, WHOLE)
    judge, judging, go_on = LogReads.unconcerned, asyncio.Event(), asyncio.Event()
    async with serving(log, live_s=_LONG_S, on_demand=frozenset([ORDERS])) as server:
        loop, answers = asyncio.get_running_loop(), server.served.answers

        def wait(*arguments: Any, **named: Any) -> Any:
            loop.call_soon_threadsafe(judging.set)
            asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result(20)
            return judge(*arguments, **named)

        clients = _clients()
        late = clients.pop()
        await late.sync(server)
        request = ShapeRequest.of({**late.query(live=True)}, None)
        follower = await answers.follow(request)
        async with _waiting(server, clients) as tasks:
            monkeypatch.setattr(LogReads, "unconcerned", wait)
            _insert(log, 24, 3, b="t", i4="4")
            await asyncio.wait_for(judging.wait(), 20)
            waiter = answers._watches.changed(follower)
            go_on.set()
            await asyncio.wait_for(waiter, 20)
            assert answers._watches.passed(follower, waiter) == follower
            assert (await asyncio.wait_for(tasks[0], 20)).json[0]["key"] == key(3)
            await _until(server, 1)


async def test_all_are_woken_when_the_server_stops_and_nobody_is_left(log: str) -> None:
    begin(log, WHOLE)
    async with serving(log, live_s=_LONG_S, on_demand=frozenset([ORDERS])) as server:
        async with _waiting(server, _clients()) as tasks:
            server.served.parts.poller.close()
            for found in await asyncio.wait_for(asyncio.gather(*tasks), 20):
                assert found.status == 200
        assert (server.served.answers.waiting, server.served.answers._watches._watches) == (0, {})
