"""Definitions on demand stand back while a look, or an answer to others, is in progress, but not for long."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest

from flushtracker.events.registry import Registry
from flushtracker.serve import precedence
from flushtracker.serve.definition_cache import DefinitionCache
from flushtracker.serve.on_demand.on_demand import OnDemand
from flushtracker.serve.precedence import Precedence
from flushtracker.serve.refusals import UnavailableError
from flushtracker.serve.shape_request import RequestedDefinition, ShapeRequest
from flushtracker.serve.single_flight import SingleFlight
from flushtracker.serve.turns import AT_ONCE
from tests.support.on_demand_log import ORDERS, WHOLE, order_entries
from tests.support.serve_client import Client, serving
from tests.support.waiting import wait_until
from tests.unit.serve.test_on_demand import PAID, begin


def held_timers(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """The event loop's from now on, which go off only when a test calls them."""
    found = list[Callable[[], None]]()
    monkeypatch.setattr(asyncio.get_running_loop(), "call_later", lambda _, timer: found.append(timer))
    return found


async def turned() -> None:
    """Turns of the event loop in which whoever may go on does."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_clients_on_demand_go_on_once_the_others_are_answered() -> None:
    found = Precedence(lambda: False)
    gone_on = list[int]()

    async def client(number: int) -> None:
        await found.turn()
        gone_on.append(number)

    with found.answering():
        with found.answering():
            waiting = [asyncio.create_task(client(number)) for number in range(5)]
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.05)
        assert gone_on == []
    for _ in range(2):
        await asyncio.sleep(0)
    assert len(gone_on) < 5, "all in one turn of the event loop"
    await asyncio.gather(*waiting)
    assert gone_on == [0, 1, 2, 3, 4]


def test_a_read_goes_on_for_as_long_as_it_stood_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after less than a step: it asks before each row, and would find the next answer in progress."""
    now_s, rows = 0.0, 0

    def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    def row() -> None:
        nonlocal now_s, rows
        now_s, rows = now_s + 0.001, rows + 1

    monkeypatch.setattr(precedence, "time", SimpleNamespace(monotonic=lambda: now_s, sleep=sleep))
    step = Precedence(lambda: now_s % 0.044 < 0.040).standing_back(row)
    while now_s < 4.0:
        step()
    assert rows > 1_800


async def test_clients_on_demand_that_have_asked_before_stand_back_as_well() -> None:
    """And keep their places before those who ask meanwhile."""
    found, gone_on = Precedence(lambda: False), list[int]()

    async def client(number: int) -> None:
        await found.turn()
        gone_on.append(number)

    waiting = [asyncio.create_task(client(number)) for number in range(5)]
    await asyncio.sleep(0)
    with found.answering():
        waiting += [asyncio.create_task(client(number)) for number in range(5, 9)]
        await turned()
        assert gone_on == [0, 1]
    await asyncio.gather(*waiting)
    assert gone_on == list(range(9))


async def test_nobody_stands_back_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a server that is never idle, definitions are answered, too."""
    monkeypatch.setattr(precedence, "TURN_S", 0.1)
    monkeypatch.setattr(precedence, "STEP_S", 2.0)
    found = Precedence(lambda: True)
    with found.answering():
        await asyncio.wait_for(found.turn(), 10)
        step, began_s = found.standing_back(lambda: None), time.monotonic()
        await asyncio.to_thread(step)
        waited_s = time.monotonic() - began_s
        assert waited_s >= precedence.STEP_S
        for _ in range(100):
            step()
        assert time.monotonic() - began_s - waited_s < precedence.STEP_S, "it stands back more than half of the time"


async def test_clients_on_demand_stand_back_again_after_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a server that is never idle, they have half of the time, and not all that follows."""
    found, timers = Precedence(lambda: False), held_timers(monkeypatch)
    with found.answering():
        for _ in range(3):
            waiting = asyncio.create_task(found.turn())
            await turned()
            assert not waiting.done()
            timers.pop()()
            await turned()
            assert waiting.done()
            timers.pop()()


async def test_their_time_comes_if_the_others_pause_for_less_than_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    found, timers = Precedence(lambda: False), held_timers(monkeypatch)
    with found.answering():
        waiting = asyncio.create_task(found.turn())
        await turned()
    with found.answering():
        await turned()
        assert not waiting.done()
        (timer,) = timers
        timer()
        await turned()
        assert waiting.done()


async def test_a_read_goes_on_at_once_if_nobody_else_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after an answer that took long."""
    monkeypatch.setattr(precedence, "STEP_S", 60.0)
    looking = [True]
    found = Precedence(lambda: looking[0])
    with found.answering():
        await asyncio.sleep(0)
    looking[0] = False
    began_s = time.monotonic()
    step = found.standing_back(lambda: None)
    for _ in range(100):
        step()
    await found.turn()
    assert time.monotonic() - began_s < precedence.STEP_S


async def test_clients_of_a_shape_that_continue_have_their_turns_first(
    log: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However few of them go on at once, nobody with a definition on demand does before the last."""
    monkeypatch.setattr(precedence, "TURN_S", 60.0)
    begin(log, WHOLE)
    async with serving(log, on_demand=frozenset([ORDERS])) as server:
        own, other, turns = Client({"shape": "orders"}), Client(PAID), list[bool]()
        for client in (own, other):
            await client.sync(server)
        turn = server.served.answers.turn

        async def noted(request: ShapeRequest, disconnected: "asyncio.Future[None]") -> None:
            await turn(request, disconnected)
            turns.append(request.shape == "orders")

        monkeypatch.setattr(server.served.answers, "turn", noted)
        asking = [own] * 30 * AT_ONCE + [other] * AT_ONCE
        responses = await asyncio.gather(*(server.get(client.query(live=False)) for client in asking))
        assert {response.status for response in responses} == {200}
        assert turns == [client is own for client in asking]


@pytest.mark.parametrize("live", [False, True], ids=["ask", "have waited for a change"])
async def test_clients_on_demand_that_leave_do_not_wait_on(
    log: str, monkeypatch: pytest.MonkeyPatch, *, live: bool
) -> None:
    """However long the others take."""
    monkeypatch.setattr(precedence, "TURN_S", 60.0)
    begin(log, WHOLE)
    async with serving(log, live_s=0.1, on_demand=frozenset([ORDERS])) as server:
        client, gone, found = Client(PAID), asyncio.Event(), server.served.parts.precedence
        await client.sync(server)
        if live:

            async def at_once(*_: object) -> None:
                """They have had their turns before."""

            monkeypatch.setattr(server.served.answers, "turn", at_once)
        with found.answering():
            asking = [asyncio.create_task(server.get(client.query(live=live), gone=gone)) for _ in range(20)]
            await asyncio.to_thread(wait_until, lambda: len(found._turns._queue) == 20, "all stand back", 20)
            gone.set()
            left, _ = await asyncio.wait(asking, timeout=20)
            assert len(left) == 20
            assert all(turn.done() for turn in found._turns._queue)


@pytest.mark.parametrize("begins", [False, True], ids=["continue", "begin"])
async def test_clients_of_a_shape_that_leave_wait_for_no_turn(log: str, *, begins: bool) -> None:
    """However long the others take, and nobody stands back for them any longer."""
    begin(log, WHOLE)
    async with serving(log) as server:
        client, gone = Client({"shape": "orders"}), asyncio.Event()
        query = client.query(live=False)
        await client.sync(server)
        app, rounds = server.served.app, server.served.parts.poller.rounds
        turns = app._turns if begins else rounds.turns
        turns.close()
        query = query if begins else client.query(live=False)
        asking = [asyncio.create_task(server.get(query, gone=gone)) for _ in range(20)]
        while len(turns._queue) < len(asking):
            await asyncio.sleep(0)
        gone.set()
        left, _ = await asyncio.wait(asking, timeout=10)
        assert len(left) == len(asking)
        # A round may have begun, and waits with a marker of its own.
        assert sum(not turn.done() for turn in turns._queue) <= 1
        assert server.served.parts.precedence._answers == 0
        turns.open()
        assert (await server.get(query)).status == 200


async def test_a_definition_is_on_demand_unless_it_was_a_shape_s_when_last_looked_up() -> None:
    """Also while it is unknown, as after a restart, or refused for lack of room; a shape's own clients stay first."""
    whole, paid, late = (RequestedDefinition("orders", where, None, "default") for where in (None, "b", "i4 = 1"))
    cache = DefinitionCache(None, SingleFlight("definitions", 1, 10), OnDemand.of(frozenset([ORDERS]), 1))

    def on_demand() -> list[bool]:
        return [cache.is_on_demand(each) for each in (whole, paid, late)]

    first, then = (
        Registry.of(order_entries(*shapes)) for shapes in ([WHOLE], [WHOLE, replace(WHOLE, id="p", where="b")])
    )
    assert on_demand() == [True, True, True]
    for each in (whole, paid):
        await cache.target(first, each, 0.0)
    with pytest.raises(UnavailableError):
        await cache.target(first, late, 0.0)
    assert on_demand() == [False, True, True]
    await cache.target(then, paid, 0.0)
    assert on_demand() == [False, False, True]
    await cache.target(first, paid, 0.0)
    assert on_demand() == [False, True, True]
    found = await cache.target(then, paid, 0.0)
    assert found is not None
    assert (found.shape_id, found.selection) == ("p", None)
