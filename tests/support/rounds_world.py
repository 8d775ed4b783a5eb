"""``RoundsWorld``: a ``TailWorld`` whose clients wait at servers, which wake them in rounds.

Each request waits for its turn before, as in the application. The tests let one request through in a turn, and a round
wake one client at a time, so that much happens meanwhile. Whatever that is:

- Nobody is shown more than the server had when the round began.
- A round ends once all whom it has woken have resumed, and the requests that waited when it began have had their turns.
  So at most one round begins while a request waits for its turn.
- Each turn of the event loop lets a request through as long as any waits, in their order, and few.
- While no round runs, nobody waits for what the server has.
- In the end, all clients have the last transaction.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

from flushtracker.errors import SnapshotMissingError
from flushtracker.serve import rounds
from flushtracker.serve.body import Body, Page
from flushtracker.serve.disconnect import DisconnectedError
from flushtracker.serve.follower import Follower, require_followed
from flushtracker.serve.handle import Handle
from flushtracker.serve.parts import Parts
from flushtracker.serve.poller import Poller
from flushtracker.serve.precedence import Precedence
from flushtracker.serve.refusals import RefetchError
from flushtracker.serve.rounds import Waiter
from flushtracker.serve.seen_shape import SeenShape
from flushtracker.serve.shape_answers import ShapeAnswers
from flushtracker.serve.table_view import Outcome, ShapeProblem, TableView
from flushtracker.serve.tail.shape_tail import ShapeTail
from flushtracker.serve.tail.tails import TailPage, Tails
from flushtracker.serve.turns import Turns
from tests.support.shape_log_rows import SOURCE
from tests.support.tail_source import SHAPES
from tests.support.tail_world import MEMORY_BYTES, PAGE_BYTES, TailClient, TailServer, TailWorld

_LONG_S: Final = 1e6
_SETTLED: Final = 200
"""Turns of the event loop after which no round runs that nothing new has come for."""


_CHECKED: Final = 8
"""The steps between checks of who waits."""
_TURNS: Final = 3
"""Turns of the event loop for the marker of a round, for the first request, and for it to go on."""


@dataclass(eq=False)
class _Queued:
    """A request that waits for its turn: since when, how many rounds had begun by then, and how many are before it."""

    turn: int
    rounds: int
    before: int


@dataclass
class _Begun:
    """A round: whom it wakes, who waits for a turn, and what the server had of each shape.

    That is the view, the tail, and its last transaction.
    """

    waiters: frozenset[Waiter] = frozenset()
    queued: frozenset[_Queued] = frozenset()
    began_s: float = 0.0
    had: dict[str, tuple[Outcome | None, ShapeTail | None, int]] = field(default_factory=dict)


class RoundsServer(TailServer):
    """``round`` is the last that has begun, of ``rounds``; ``is_due`` if something has come since.

    ``begins_early`` if a round has begun before the last one had ended. ``queued`` are the requests that wait for their
    turn, and ``let_through`` counts the others by turn of the event loop.
    """

    def __init__(self) -> None:
        self.now_s = 0.0
        self.poller = Poller(_cannot_open, _LONG_S, now_s=lambda: self.now_s)
        super().__init__(Tails(MEMORY_BYTES, lambda: self.poller.rounds.holding))
        unused: Any = None
        pages: Any = self
        parts = Parts(
            self.poller, unused, unused, unused, unused, unused, Precedence(bool), unused, unused, tail_pages=pages
        )
        self.answers = ShapeAnswers(parts, SOURCE)
        self.round, self.rounds = _Begun(), 0
        self.poller.rounds.turns = Turns(1)
        self.queued, self.let_through = set[_Queued](), Counter[int]()
        self.is_due = self.begins_early = False
        self._concerned, self.poller.rounds._concerned = self.poller.rounds._concerned, self._begin

    def _begin(self) -> list[Waiter]:
        self.begins_early |= self._is_unfinished
        found, had = list(self._concerned()), {each: self.has(each) for each in SHAPES}
        self.round, self.is_due = _Begun(frozenset(found), frozenset(self.queued), self.now_s, had), False
        self.rounds += 1
        return found

    def has(self, shape_id: str) -> tuple[Outcome | None, ShapeTail | None, int]:
        tail = self.tails._tails.get((SOURCE, shape_id))
        return self.poller.view.shapes.get(shape_id), tail, 0 if tail is None else _last(tail)

    @property
    def waiters(self) -> frozenset[Waiter]:
        return frozenset(waiter for waiting in self.poller._changes.values() for waiter in waiting)

    @property
    def _is_unfinished(self) -> bool:
        return bool(self.round.waiters & self.waiters or self.round.queued & self.queued)

    @property
    def is_in_round(self) -> bool:
        return self._is_unfinished or self.is_due

    @property
    def holds_back(self) -> bool:
        return self.is_in_round and self.now_s - self.round.began_s < rounds.LONGEST_S

    def peek(self, follower: Follower) -> Page | None:
        """As ``TailPages.peek``, without messages."""
        found = self.page(follower)
        return None if found is None or not found.transactions else Page(Body(), found.tx)

    def page(self, follower: Follower, place: int | None = None) -> TailPage | None:
        at = max(follower.tx, follower.sent_lsn) if place is None else place
        return self.tails.page(follower.seen, follower.handle, at, PAGE_BYTES)

    def publish(self, shapes: dict[str, Outcome]) -> None:
        """A poll has found this."""
        self.is_due = True
        self.poller._publish(TableView(shapes=shapes, began_s=self.now_s))

    def wake(self, changed: list[str]) -> None:
        if changed:
            self.is_due = True
            self.poller.wake(changed)


def _cannot_open() -> Any:
    raise NotImplementedError


def _last(tail: ShapeTail) -> int:
    return tail.transactions[-1].tx_offset if tail.transactions else tail.base.tx_offset


@dataclass
class RoundsClient(TailClient):
    """``follower`` is what it waits as, at ``server``, after its turn; ``disconnected`` is done when it goes away."""

    server: RoundsServer | None = None
    follower: Follower | None = None
    task: "asyncio.Task[None] | None" = None
    disconnected: "asyncio.Future[None] | None" = None
    queued: _Queued | None = None

    @property
    def is_idle(self) -> bool:
        return self.task is None or self.task.done()


class RoundsWorld(TailWorld):
    """:meth:`play_rounds` raises ``AssertionError`` at the first wrong answer, or lack of one."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.serving = [RoundsServer() for _ in range(3)]
        self.servers = [*self.serving]
        self.turn = 0
        self.waiting = [RoundsClient(shape_id, cuts=n % 2 == 1) for shape_id in SHAPES for n in range(12)]

    async def play_rounds(self, steps: int) -> Counter[str]:
        for server in self.serving:
            self._look(server)
        self._next_turn()
        try:
            for number in range(steps):
                self.step(number)
                if self.rng.random() < 0.5:
                    await asyncio.sleep(0)
                    self._raise_failures()
                    if number % _CHECKED == 0:
                        self._check_waits()
                elif self.rng.random() < 0.03:
                    await self._settle()
            await self._end()
        finally:
            tasks = [client.task for client in self.waiting if client.task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return self.counts

    @cached_property
    def _actions(self) -> dict[Callable[[], None], float]:
        return {**super()._actions, self.leave: 1, self.take_long: 2}

    def _next_turn(self) -> None:
        """Count the turns of the event loop."""
        self.turn += 1
        asyncio.get_running_loop().call_soon(self._next_turn)

    def _raise_failures(self) -> None:
        for client in self.waiting:
            if client.task is not None and client.task.done() and not client.task.cancelled():
                client.task.result()

    # Servers.

    def look(self) -> None:
        self._look(self.rng.choice(self.serving))

    def _look(self, server: RoundsServer) -> None:
        missing = ShapeProblem(SnapshotMissingError, "it has begun again")
        server.publish({shape_id: self.seen(shape_id) or missing for shape_id in SHAPES})

    def read_topic(self) -> None:
        self._read(self.rng.choice(self.serving), self.rng.randint(1, 8))

    def _read(self, server: RoundsServer, most: int) -> None:
        events = self.topic[server.read : server.read + most]
        server.read += len(events)
        server.wake([shape_id for shape_id, event in events if server.tails.add((SOURCE, shape_id), event)])

    def take_long(self) -> None:
        """Some round takes too long."""
        self.rng.choice(self.serving).now_s += rounds.LONGEST_S

    # Clients.

    def request(self) -> None:
        idle = [client for client in self.waiting if client.is_idle]
        if idle:
            self._ask(self.rng.choice(idle), self.rng.choice(self.serving))

    def _ask(self, client: RoundsClient, server: RoundsServer) -> None:
        client.server, client.disconnected = server, asyncio.get_running_loop().create_future()
        client.task = asyncio.create_task(self._follow(client, server, client.disconnected))

    def leave(self) -> None:
        """A client goes away, perhaps when it has just been woken, or while its request waits for its turn."""
        client = self.rng.choice(self.waiting)
        if client.disconnected is not None and not client.disconnected.done():
            client.disconnected.set_result(None)
            if client.task is not None and client.queued is not None:
                self.counts["gone before its turn"] += 1
                if self.rng.random() < 0.5:
                    # As by a server that stops.
                    client.task.cancel()

    async def _follow(self, client: RoundsClient, server: RoundsServer, disconnected: "asyncio.Future[None]") -> None:
        """Some requests, one after the other, at one server."""
        while self.rng.random() < 0.8:
            await self._wait_turn(client, server)
            server.tails.ask((SOURCE, client.shape_id), self.now_s)
            try:
                await self._request(client, server, disconnected)
            except (DisconnectedError, SnapshotMissingError):
                return
            finally:
                client.follower = None
            self.check(client)
            # Its answer is sent.
            await asyncio.sleep(0)

    async def _wait_turn(self, client: RoundsClient, server: RoundsServer) -> None:
        request = client.queued = _Queued(self.turn, server.rounds, len(server.queued))
        server.queued.add(request)
        try:
            await server.poller.rounds.turns.wait()
        finally:
            server.queued.remove(request)
            client.queued = None
        took, rounds_begun = self.turn - request.turn, server.rounds - request.rounds
        assert took <= request.before + _TURNS, f"{took} turns for a request with {request.before} before it"
        assert rounds_begun <= 1, f"{rounds_begun} rounds have begun before the turn of a request"
        server.let_through[self.turn] += 1
        assert server.let_through[self.turn] <= 2, "many are let through in one turn"
        self.counts["waits for its turn"] += took > 1
        self.counts["a round waits for turns"] += request in server.round.queued

    async def _request(self, client: RoundsClient, server: RoundsServer, disconnected: "asyncio.Future[None]") -> None:
        view, handle = await server.answers._looks.look(client.shape_id, None), client.handle
        if handle is None or handle.digest != view.facts.digest:
            self._look(server)
            view = await server.answers._looks.look(client.shape_id, None, newest=True)
            if handle is None or handle.digest != view.facts.digest:
                self.begin(client, view)
                return
        place = client.place
        client.follower = Follower(view, handle, min(place, view.tx), place, client.cuts).at(view)
        try:
            follower = await server.answers.more(client.follower, disconnected, time.monotonic() + _LONG_S)
        except RefetchError:
            self._check_conflict(client, server, handle)
            self.begin(client, self.seen(client.shape_id))
            return
        # Until here, nothing has happened since it was looked up.
        view, page = follower.seen, server.page(follower, place)
        assert (follower.tail_page is not None) == (page is not None and bool(page.transactions))
        self._check_round(client, server, view, page)
        if page is not None:
            rest = server.page(follower, page.tx)
            self.show(client, handle, view, page, is_end=rest is not None and not rest.transactions)
        if page is None or (not page.transactions and view.tx > client.place):
            self.read_log(client, handle, view)

    def _check_round(self, client: RoundsClient, server: RoundsServer, view: SeenShape, page: TailPage | None) -> None:
        """Nothing is shown that has come since the round began, unless the shape has changed, or the tail was late."""
        newest, now, last_now = server.has(client.shape_id)
        if not server.holds_back:
            assert view is newest, f"it is shown {view.tx}, but there is more"
            self.counts["a round takes long"] += server.is_in_round
            return
        before, tail, last = server.round.had[client.shape_id]
        if not isinstance(before, SeenShape) or not view.continues(before):
            return
        assert view is before, f"a round shows {view.tx}, but it began with {before.tx}"
        self.counts["a later view is held back"] += newest is not before
        if page is not None and tail is now and last >= view.tx:
            assert page.tx <= max(last, client.place), f"a round shows {page.tx}, but it began with {last}"
            self.counts["later transactions are held back"] += last_now > last

    def _check_conflict(self, client: TailClient, server: RoundsServer, handle: Handle) -> None:
        """It must begin again by the last that its server has found."""
        newest = server.poller.view.shapes[client.shape_id]
        if isinstance(newest, SeenShape):
            try:
                require_followed(newest, handle, client.place)
            except RefetchError:
                return
            raise AssertionError("it is told to begin again, but it need not")

    def _check_waits(self) -> None:
        """While no round runs, nobody waits for what there is.

        Except for what only a later cut has linked to the tail: that wakes nobody, because the log has it soon.
        """
        for client in self.waiting:
            server, follower = client.server, client.follower
            if client.is_idle or server is None or follower is None or server.is_in_round:
                continue
            found = server.poller.view.shapes[client.shape_id]
            assert isinstance(found, SeenShape), "it waits for a shape that has begun again"
            assert found.facts.digest == follower.handle.digest, "it waits for a shape that has changed"
            follower = follower.at(found if client.cuts else replace(found, cut=None))
            assert not replace(follower, tail_page=server.peek(follower)).has_update, "it waits for what there is"
            self.counts["waits for what is next"] += 1

    async def _settle(self) -> None:
        for _ in range(_SETTLED):
            await asyncio.sleep(0)
            self._raise_failures()
        assert not any(server.is_in_round for server in self.serving), "a round does not end"
        assert not any(server.begins_early for server in self.serving), "a round begins before the last one has ended"
        self._check_waits()

    async def _end(self) -> None:
        """All that there is comes to all servers, and so to all clients, wherever they wait."""
        await self._settle()
        while self._parts or self.sent < len(self.transactions):
            self.publish()
        for server in self.serving:
            self._read(server, len(self.topic))
        await self._settle()
        self.written, self.cut = self.published, self.lsn
        for shape_id in SHAPES:
            self.logged[shape_id].schema = self.schema
        while any(self.seen(shape_id) is None for shape_id in SHAPES):
            self.take_snapshot()
        for server in self.serving:
            self._look(server)
        await self._settle()
        for client in self.waiting:
            while client.is_idle:
                self._ask(client, self.rng.choice(self.serving))
                await self._settle()
            expected = [each.lsn for each in self._of(client) if self._has(client, each)]
            last = max((each.lsn for each in self.transactions if client.shape_id in each.shapes), default=0)
            assert client.place >= last, f"a client waits at {client.place}, but the last one is {last}"
            assert sorted(client.has) == expected
