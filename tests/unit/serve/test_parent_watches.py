"""Waiting clients of definitions on demand are woken only by changes that concern them, and miss none."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, Final

import pytest

from flushtracker.errors import SinkError
from flushtracker.events.registry_events import ShapeEntry, TableEntry
from flushtracker.serve.follower import Follower
from flushtracker.serve.on_demand import selected_log
from flushtracker.serve.on_demand.selected_log import STEP_ROWS, ParentChanges
from flushtracker.serve.on_demand.selection import Selection
from flushtracker.serve.reads import LogReads
from flushtracker.serve.shape_request import ShapeRequest
from flushtracker.shapes.table_binding import ColumnBinding
from flushtracker.wal.changes import Row
from flushtracker.wal.log_offset import LogOffset
from tests.support.on_demand_log import BINDING, ORDERS, WHOLE, order_entry
from tests.support.sample_registry import again
from tests.support.serve_client import Client, Response, Server, serving
from tests.support.shape_log_rows import SOURCE
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
    await _when(lambda: server.served.answers.waiting == count)


async def _when(condition: Callable[[], bool]) -> None:
    async def wait() -> None:
        while not condition():
            await asyncio.sleep(0.01)

    await asyncio.wait_for(wait(), 20)


def _insert(log: str, tx: int, number: int, **values: str) -> None:
    change(log, tx, "insert", number, "orders", **order(number, **values))


def _clients() -> list[Client]:
    return [Client({"table": "orders", "where": where}) for where in _ASKED]


async def _follower(server: Server, client: Client) -> Follower:
    """A client that has everything and asks for more."""
    await client.sync(server)
    return await server.served.answers.follow(ShapeRequest.of({**client.query(live=True)}, None))


class _Judging:
    """From now on, a read that judges is held once it has its result, until ``go_on``; it is ``done`` by then."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done, self.go_on = asyncio.Event(), asyncio.Event()
        loop, judge = asyncio.get_running_loop(), LogReads.unconcerned

        def read(*arguments: Any, **named: Any) -> Any:
            found = judge(*arguments, **named)
            loop.call_soon_threadsafe(self.done.set)
            asyncio.run_coroutine_threadsafe(self.go_on.wait(), loop).result(20)
            return found

        monkeypatch.setattr(LogReads, "unconcerned", read)


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
    async with serving(log, live_s=_LONG_S, on_demand=frozenset([ORDERS])) as server:
        client, parts, answers = _clients()[1], server.served.parts, server.served.answers
        assert parts.on_demand is not None
        async with _waiting(server, [client]) as tasks:
            reads = parts.on_demand.log_flights.started
            _insert(log, 24, 3, b="f")
            await _when(lambda: [each.tx for each in answers._watches._watches] == [24])
            answers._now_s = lambda: time.monotonic() + _LONG_S
            (waiter,) = answers._watches._waiting
            waiter.set_result(None)
            found = await asyncio.wait_for(tasks[0], 20)
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
    async with serving(log, live_s=_LONG_S, on_demand=frozenset([ORDERS])) as server:
        watches, clients = server.served.answers._watches, _clients()
        follower = await _follower(server, clients.pop())
        async with _waiting(server, clients) as tasks:
            judging = _Judging(monkeypatch)
            _insert(log, 24, 3, b="t", i4="4")
            await asyncio.wait_for(judging.done.wait(), 20)
            waiter = watches.changed(follower)
            judging.go_on.set()
            await asyncio.wait_for(waiter, 20)
            assert watches.passed(follower, waiter) == follower
            assert (await asyncio.wait_for(tasks[0], 20)).json[0]["key"] == key(3)
            await _until(server, 1)


async def test_who_comes_unproven_while_its_definition_is_judged_for_others_is_not_proven_by_that(
    log: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The read did not check whether the log has what it was shown, so it reads for itself."""
    begin(log, WHOLE)
    async with serving(log, live_s=_LONG_S, on_demand=frozenset([ORDERS])) as server:
        watches, client = server.served.answers._watches, _clients()[1]
        unproven = replace(await _follower(server, _clients()[1]), is_proven=False)
        async with _waiting(server, [client]):
            judging = _Judging(monkeypatch)
            (watch,) = watches._watches.values()
            assert [*watch.waiting.values()] == [unproven.seen.selection]
            _insert(log, 24, 3, b="f")
            await asyncio.wait_for(judging.done.wait(), 20)
            waiter = watches.changed(unproven)
            assert len(watch.waiting) == 2
            judging.go_on.set()
            await asyncio.wait_for(waiter, 20)
            assert watches.passed(unproven, waiter) == unproven
            assert [each.tx for each in watches._watches] == [24], "the other one waits on"


@pytest.mark.parametrize(
    "entry",
    [
        replace(order_entry(), removed_at=LogOffset(24, 2**62)),
        TableEntry(SOURCE, replace(BINDING, columns=(*BINDING.columns, ColumnBinding(90, "later", 25, -1, 5)))),
    ],
    ids=["ended", "other columns"],
)
async def test_what_becomes_of_the_parent_while_its_changes_are_judged_is_told_at_once(
    entry: ShapeEntry | TableEntry, log: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The round of that look is over before those who wait on do so, and later looks find nothing else."""
    begin(log, WHOLE)
    async with serving(log, live_s=_LONG_S, on_demand=frozenset([ORDERS])) as server:
        poller = server.served.parts.poller
        async with _waiting(server, [_clients()[1]]) as tasks:
            judging = _Judging(monkeypatch)
            _insert(log, 24, 3, b="f")
            await asyncio.wait_for(judging.done.wait(), 20)
            again(log, entry, 10)
            await poller.current(fresh=True)
            assert (poller._known, poller.rounds.is_running) == (poller.view.shapes, False)
            judging.go_on.set()
            assert (await asyncio.wait_for(tasks[0], 20)).status in {409, 503}


async def test_a_lost_cancel_takes_no_place_of_those_who_have_come_since(
    log: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``asyncio.wait_for`` may swallow it: the judgement goes on, for nobody."""
    begin(log, WHOLE)
    async with serving(log, live_s=_LONG_S, on_demand=frozenset([ORDERS])) as server:
        poller, watches = server.served.parts.poller, server.served.answers._watches
        follower, shape = await _follower(server, _clients()[0]), poller.shape
        looking, go_on = asyncio.Event(), asyncio.Event()

        async def lose(*arguments: Any) -> Any:
            monkeypatch.setattr(poller, "shape", shape)
            looking.set()
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(_LONG_S)
            await go_on.wait()
            return await shape(*arguments)

        gone = watches.changed(follower)
        (watch,) = watches._watches.values()
        monkeypatch.setattr(poller, "shape", lose)
        watch.changed.set_result(None)
        await asyncio.wait_for(looking.wait(), 20)
        watches.passed(follower, gone)
        waiter = watches.changed(follower)
        await asyncio.sleep(0)
        go_on.set()
        assert watch.task is not None
        await asyncio.wait_for(watch.task, 20)
        _insert(log, 24, 3, b="t")
        await asyncio.wait_for(waiter, 20)
        assert watches.passed(follower, waiter) == follower
        assert watches._watches == {}


async def test_those_that_cannot_be_judged_in_time_are_woken(log: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reads for itself, and waits on; a definition that needs no time is judged in any case."""
    begin(log, WHOLE)
    monkeypatch.setattr(selected_log, "_JUDGE_S", 0.0)
    async with serving(log, live_s=_LONG_S, on_demand=frozenset([ORDERS])) as server:
        on_demand = server.served.parts.on_demand
        assert on_demand is not None
        flights = on_demand.log_flights
        async with _waiting(server, _clients()) as tasks:
            reads = flights.started
            _insert(log, 24, 3, b="f")
            await _when(lambda: flights.started >= reads + 3 and not flights.running)
            await _until(server, 3)
            assert flights.started == reads + 3
            _insert(log, 32, 4, b="t")
            assert (await asyncio.wait_for(tasks[0], 20)).json[0]["key"] == key(4)


def test_a_judgement_takes_no_longer_however_many_rows_a_condition_hides(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor however long it is: what is not known by then counts as shown."""
    unused: Any = None
    parent = ParentChanges(unused, unused, 0)
    parent._versions = [(str(n), 1, 2, f'{{"id":"{n}"}}') for n in range(10 * STEP_ROWS)]
    now_s, judged, checks = 0.0, list[Row](), list[None]()

    def hide(row: Row) -> bool:
        nonlocal now_s
        now_s += 0.001
        judged.append(row)
        return False

    def selection(**more: Any) -> Selection:
        return Selection(unused, "", hide, None, "", unused, has_old=False, **more)

    monkeypatch.setattr(selected_log, "thread_time", lambda: now_s)
    monkeypatch.setattr(selected_log, "_JUDGE_S", 1.5 * STEP_ROWS / 1_000)
    known = selection(required=(("id", "none"),))
    assert parent.show_nothing([selection(), selection(), known], lambda: checks.append(None)) == {known}
    assert len(judged) == 1.5 * STEP_ROWS
    assert len(checks) >= len(judged), "a stalled read, or one that nobody waits for, is known before the next row"
    monkeypatch.setattr(selected_log, "_JUDGE_S", 1_000.0)
    every = [selection(), selection(), known]
    assert parent.show_nothing(every, lambda: None) == {*every}


async def test_those_whose_changes_are_judged_when_the_server_stops_are_answered_then(
    log: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(log, WHOLE)
    async with serving(log, live_s=_LONG_S, on_demand=frozenset([ORDERS])) as server:
        async with _waiting(server, _clients()) as tasks:
            judging = _Judging(monkeypatch)
            _insert(log, 24, 3, b="t")
            await asyncio.wait_for(judging.done.wait(), 20)
            server.served.parts.poller.close()
            judging.go_on.set()
            found = await asyncio.wait_for(asyncio.gather(*tasks), 20)
        assert [(each.status, each.json[0].get("key")) for each in found] == [(200, key(3)), (200, None), (200, None)]
        assert (server.served.answers.waiting, server.served.answers._watches._watches) == (0, {})


async def test_all_are_woken_when_the_server_stops_and_nobody_is_left(log: str) -> None:
    begin(log, WHOLE)
    async with serving(log, live_s=_LONG_S, on_demand=frozenset([ORDERS])) as server:
        async with _waiting(server, _clients()) as tasks:
            server.served.parts.poller.close()
            for found in await asyncio.wait_for(asyncio.gather(*tasks), 20):
                assert found.status == 200
        assert (server.served.answers.waiting, server.served.answers._watches._watches) == (0, {})
