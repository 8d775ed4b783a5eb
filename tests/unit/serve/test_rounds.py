"""Rounds: a change for many clients leaves others their turns, and none is answered twice before all are answered."""

import asyncio
import time
from itertools import pairwise

import pytest

from flushtracker.serve.poller import Poller
from flushtracker.serve.rounds import AT_ONCE, LONGEST_S, Rounds, Waiter
from flushtracker.serve.table_view import TableView
from flushtracker.serve.turns import AT_ONCE as TURNS_AT_ONCE
from flushtracker.serve.turns import Turns
from tests.support.folded_log import dated
from tests.support.sample_registry import register, shape_entry, table_entry
from tests.support.serve_client import Client, Server, serving
from tests.support.shape_log_rows import append, inserts
from tests.support.tail_servers import PublishedRows, publish, schema_of, serving_tail

_USERS = {"shape": "users"}
_LONG_S = 600.0
_CLIENTS = 100


class Waiting:
    """Waiters that a test resumes; each round concerns those that wait when it begins."""

    def __init__(self, count: int) -> None:
        self.now_s = 0.0
        self.rounds = Rounds(self._concerned, lambda: self.now_s)
        self.waiters = [self.waiter() for _ in range(count)]
        self.begun: list[int] = []

    def waiter(self) -> Waiter:
        return asyncio.get_running_loop().create_future()

    def _concerned(self) -> list[Waiter]:
        self.begun.append(len(self.waiters))
        return list(self.waiters)

    @property
    def woken(self) -> list[Waiter]:
        return [each for each in self.waiters if each.done()]

    async def resume(self, *waiters: Waiter) -> None:
        for each in waiters:
            self.waiters.remove(each)
            self.rounds.resumed(each)
        await asyncio.sleep(0)


async def test_others_are_woken_once_the_first_have_resumed() -> None:
    waiting = Waiting(25)
    waiting.rounds.begin()
    for _ in range(5):
        assert len(waiting.woken) == AT_ONCE
        await asyncio.sleep(0)
    await waiting.resume(*waiting.woken[:4])
    assert len(waiting.woken) == AT_ONCE
    for left in (11, 1, 0):
        await waiting.resume(*waiting.woken)
        assert len(waiting.waiters) == left
    assert (waiting.begun, waiting.rounds.holding) == ([25], None)


async def test_next_round_begins_after_the_last_has_resumed() -> None:
    """However often it is asked for; it concerns who waits then."""
    waiting = Waiting(2)
    waiting.rounds.begin()
    first = waiting.rounds.holding
    one, other = waiting.woken
    for _ in range(3):
        waiting.rounds.begin()
    await waiting.resume(one)
    waiting.waiters.append(waiting.waiter())
    assert (waiting.begun, waiting.rounds.holding, first) == ([2], first, 1)
    await waiting.resume(other)
    assert (waiting.begun, waiting.rounds.holding) == ([2, 1], 2)
    await waiting.resume(*waiting.woken)
    assert (waiting.begun, waiting.rounds.holding) == ([2, 1], None)


async def test_clients_that_go_away_do_not_delay_a_round() -> None:
    """Neither before they are woken, nor after, nor if all do."""
    waiting = Waiting(25)
    waiting.rounds.begin()
    waiting.rounds.begin()
    await waiting.resume(*waiting.waiters[10:])
    await waiting.resume(*waiting.woken)
    assert (waiting.begun, waiting.waiters, waiting.rounds.holding) == ([25, 0], [], None)
    waiting.rounds.begin()
    assert waiting.begun == [25, 0, 0]


async def test_round_ends_once_who_waited_for_a_turn_has_had_it() -> None:
    """Who comes later belongs to the next round, and nobody else waits for it."""
    waiting, through = Waiting(1), list[int]()

    async def ask(number: int) -> None:
        await waiting.rounds.turns.wait()
        through.append(number)

    tasks = [asyncio.create_task(ask(number)) for number in range(3 * TURNS_AT_ONCE)]
    await asyncio.sleep(0)
    waiting.rounds.begin()
    waiting.rounds.begin()
    tasks += [asyncio.create_task(ask(number)) for number in range(len(tasks), 6 * TURNS_AT_ONCE)]
    await waiting.resume(*waiting.woken)
    assert (waiting.begun, waiting.rounds.holding, through) == ([1], 1, [*range(TURNS_AT_ONCE)])
    while len(waiting.begun) == 1:
        await asyncio.sleep(0)
    assert (waiting.rounds.holding, through[: 3 * TURNS_AT_ONCE]) == (2, [*range(3 * TURNS_AT_ONCE)])
    assert len(through) < len(tasks)
    await asyncio.gather(*tasks)
    await asyncio.sleep(0)
    assert (waiting.begun, waiting.rounds.holding) == ([1, 0], None)


async def test_round_ends_after_who_has_just_had_a_turn() -> None:
    """It has to go on yet: another round in between would be one more that is shown to others first."""
    waiting, through = Waiting(0), list[int]()

    async def ask(number: int) -> None:
        await waiting.rounds.turns.wait()
        through.append(number)

    tasks = [asyncio.create_task(ask(number)) for number in range(TURNS_AT_ONCE + 1)]
    for _ in range(2):
        await asyncio.sleep(0)
    assert len(through) == TURNS_AT_ONCE
    waiting.rounds.begin()
    waiting.rounds.begin()
    assert waiting.begun == [0]
    while len(waiting.begun) == 1:
        await asyncio.sleep(0)
    assert len(through) == len(tasks)


async def test_long_round_holds_nothing_back() -> None:
    waiting = Waiting(1)
    waiting.rounds.begin()
    waiting.now_s = LONGEST_S - 1
    assert waiting.rounds.holding == 1
    waiting.now_s = LONGEST_S
    assert waiting.rounds.holding is None


async def test_few_requests_are_let_through_in_a_turn_in_their_order() -> None:
    """Nobody waits if there are few."""
    turns, through, counts = Turns(), list[int](), [0]

    async def ask(number: int) -> None:
        await turns.wait()
        through.append(number)

    tasks = [asyncio.create_task(ask(number)) for number in range(35)]
    tasks[20].cancel()
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0)
        counts.append(len(through))
    assert through == [number for number in range(35) if number != 20]
    assert {after - before for before, after in pairwise(counts)} <= {0, 4, 9, 10}
    last = asyncio.create_task(ask(99))
    await asyncio.sleep(0)
    assert last.done()


@pytest.fixture
def log(log: str) -> str:
    register(log, shape_entry(), table_entry())
    append(log, dated(inserts(10, "a")))
    return log


@pytest.fixture
def capture(log: str) -> PublishedRows:
    found = PublishedRows(schema_of(log, "users"))
    found.events(inserts(10, "a"))
    return found


def polled(server: Server) -> TableView:
    """What a poll finds that ends now."""
    reads = server.served.parts.reads
    poller = Poller(reads.open, 0.5)
    poller.drop("users", poller.changed("users"))
    return poller._poll(reads.open(), time.monotonic())


class Crowd:
    """Clients of one shape that ask again after each answer. ``order``: whom each answer was for."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.clients = [Client(_USERS) for _ in range(_CLIENTS)]
        self.order: list[int] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def begin(self) -> None:
        for client in self.clients:
            await client.sync(self._server)
        # The tail begins once somebody has asked for what follows.
        await self.clients[0].step(self._server)
        self._tasks = [asyncio.create_task(self._follow(number)) for number in range(_CLIENTS)]
        while self._server.served.parts.poller.waiting < _CLIENTS:
            await asyncio.sleep(0.01)

    async def _follow(self, number: int) -> None:
        while True:
            await self.clients[number].step(self._server, live=True)
            self.order.append(number)

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def test_nobody_is_answered_twice_before_all_are_answered(log: str, capture: PublishedRows) -> None:
    """Whatever comes during a round, from the tail and the log, is shown in the next one, at once."""
    async with serving_tail(log, live_s=_LONG_S) as server:
        crowd, poller = Crowd(server), server.served.parts.poller
        await crowd.begin()
        try:
            assert publish(server, *capture.events(inserts(20, "b"))) == _CLIENTS
            append(log, dated(inserts(20, "b")))
            append(log, dated(inserts(30, "c")))
            later = [*capture.events(inserts(30, "c")), *capture.events(inserts(40, "d"))]
            while len(crowd.order) < _CLIENTS // 2:
                await asyncio.sleep(0)
            assert poller.rounds.holding is not None
            publish(server, later[0])
            poller._publish(polled(server))
            publish(server, later[1])
            while len(crowd.order) < 2 * _CLIENTS:
                await asyncio.sleep(0)
        finally:
            await crowd.end()
        first, second = crowd.order[:_CLIENTS], crowd.order[_CLIENTS:]
        assert sorted(first) == sorted(second) == [*range(_CLIENTS)]
        assert {client.offset for client in crowd.clients} == {"40_0"}
        assert server.served.parts.log_flights.started == 0


async def test_who_waits_for_a_definition_on_demand_is_woken_last_and_by_no_tail(log: str) -> None:
    """The tail has nothing for them, and the shape's own clients come first."""
    async with serving(log, live_s=_LONG_S) as server:
        poller = server.served.parts.poller
        await poller.shape("users")
        last = poller.changed("users", 10, is_last=True)
        others = [poller.changed("users", 10) for _ in range(AT_ONCE)]
        poller.wake(["users"])
        assert (last.done(), {each.done() for each in others}) == (False, {True})
        for each in others:
            poller.drop("users", each)
        others = [poller.changed("users", 10) for _ in range(AT_ONCE)]
        append(log, dated(inserts(20, "b")))
        await poller.current(fresh=True)
        assert (last.done(), {each.done() for each in others}) == (False, {True})
        for each in others:
            poller.drop("users", each)
        await asyncio.wait_for(last, 10)
        poller.drop("users", last)
        assert (poller.waiting, poller.rounds.is_running) == (0, False)


async def test_health_check_is_answered_amid_a_round(log: str, capture: PublishedRows) -> None:
    """So is a new client: within a few turns of the event loop, before many others are answered."""
    async with serving_tail(log, live_s=_LONG_S) as server:
        crowd = Crowd(server)
        await crowd.begin()
        try:
            publish(server, *capture.events(inserts(20, "b")))
            health = asyncio.create_task(server.request(path=b"/healthz"))
            await health
            assert len(crowd.order) <= 3 * AT_ONCE
            new = Client(_USERS)
            await new.sync(server)
            assert len(crowd.order) <= _CLIENTS // 2
            while len(crowd.order) < _CLIENTS:
                await asyncio.sleep(0)
        finally:
            await crowd.end()
