"""``ShapeAnswers``: answers the clients of shapes.

Each answer goes from the client's offset to a later one, or to the same, and both are ends of whole transactions. It
says that the client is up to date only if a recent poll found so. That is the last poll, or one that began after the
request, if the client may have seen answers of another server that is ahead.

1. A new client gets the rows that the shape had at some transaction: the newest, or one with cached rows. It continues
   with the log from there, so the choice only affects how soon it is up to date.
2. A returning client gets what follows its offset, if the log still has it. Before it is told to start over, the tables
   are polled once more, because another server may be ahead of this one.
3. A waiting client is answered as soon as a poll, or the tail, has more. If it is ahead of the log, and the tail has
   nothing for it, it waits for the log.
4. A client of a definition on demand waits on while its parent's changes contain nothing that the definition shows.
5. A client that starts over waits for a log that has everything that it was shown before, by any server.
"""

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from flushtracker.errors import PositionError
from flushtracker.serve.answer import Answer, is_newest, log_answer, offset_after, state_answer
from flushtracker.serve.beginning import as_conflict, initial_handle
from flushtracker.serve.body import Body, Page
from flushtracker.serve.cache import PageKey
from flushtracker.serve.definition_cache import DefinitionCache
from flushtracker.serve.disconnect import DisconnectedError, until_disconnected
from flushtracker.serve.follower import Follower, require_current, require_followed
from flushtracker.serve.handle import ClientOffset, Handle
from flushtracker.serve.on_demand.parent_watches import ParentWatches
from flushtracker.serve.parts import Parts
from flushtracker.serve.refusals import RefetchError, UnavailableError
from flushtracker.serve.rounds import Waiter
from flushtracker.serve.seen_shape import SeenShape
from flushtracker.serve.shape_looks import BEGIN_S, ShapeLooks, require_same
from flushtracker.serve.shape_request import NOW, ShapeRequest
from flushtracker.serve.single_flight import Flight
from flushtracker.serve.state_rows import StateRows
from flushtracker.serve.subset.subset_answers import SubsetAnswers
from flushtracker.serve.tail.tail_pages import TailPages

LIVE_S: Final = 20.0
"""The longest time that a client waits for a change."""

_LEAST: Final = 0.75
"""The part of the longest time after which the first of those requests end that began at the same time."""
_TRIES: Final = 3


def spread_s(longest_s: float) -> float:
    """How long a request lasts: not equally long, because thousands that began after a restart would return at once.

    The kernel drops connections that do not fit into its queue, and such a client waits up to half a minute.
    """
    return longest_s * random.uniform(_LEAST, 1)  # noqa: S311  not a secret


class ShapeAnswers:
    """Answers requests for the shapes of ``source``. For the event loop."""

    def __init__(
        self,
        parts: Parts,
        source: str | None,
        live_s: float = LIVE_S,
        begin_s: float = BEGIN_S,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._parts = parts
        self._poller = parts.poller
        self._live_s = live_s
        self._now_s = now_s
        definitions = DefinitionCache(source, parts.definition_flights, parts.on_demand)
        self._looks = ShapeLooks(parts.poller, definitions, begin_s, now_s)
        self._watches = ParentWatches(parts)
        self.subsets = SubsetAnswers(parts, self._looks)

    @property
    def is_closing(self) -> bool:
        """Whether the server is stopping, so that clients must not wait."""
        return self._poller.is_closed

    @property
    def waiting(self) -> int:
        return self._poller.waiting + self._watches.waiting

    async def turn(self, request: ShapeRequest, disconnected: "asyncio.Future[None]") -> None:
        """Wait for the turn of a client that continues; those of definitions on demand come after the others.

        Raises:
            DisconnectedError: the client has closed the connection.
        """
        if self._looks.is_on_demand(request.shape):
            await self._parts.precedence.turn(disconnected)
            return
        with self._parts.precedence.answering():
            await self._poller.rounds.turns.wait(disconnected)

    async def answer(self, request: ShapeRequest, disconnected: "asyncio.Future[None]") -> Answer:
        """The answer to a request, whose client is ``disconnected`` when that is done.

        Raises:
            BeginAgainError: the client must start over.
            DisconnectedError: the client has closed the connection.
            RefusalError, FlushtrackerError: there is none.
        """
        if not isinstance(request.start, ClientOffset):
            seen = await self._looks.reached(request, await self._looks.seen(request, fresh=request.is_returning))
            with as_conflict(request, seen):
                return await self._begin(request, seen)
        if request.start.rows:
            seen, handle = await self._shape_of_handle(request)
            with as_conflict(request, seen):
                return await self._rows(request, seen, handle, request.start)
        follower = await self.follow(request)
        with as_conflict(request, follower.seen):
            end_s = self._now_s() + spread_s(self._live_s)
            if request.live:
                follower = await self.more(follower, disconnected, end_s)
            page = await self.page_until(follower, disconnected)
            while request.live and self.shows_nothing(follower, page) and self._now_s() < end_s:
                follower = await self.more(replace(follower, tx=page.tx, is_proven=True), disconnected, end_s)
                page = await self.page_until(follower, disconnected)
        return log_answer(request, follower, page, is_up_to_date=self.is_up_to_date(page, follower))

    async def follow(self, request: ShapeRequest) -> Follower:
        """The follower for a request whose offset is the end of a transaction; raises as :meth:`answer`."""
        offset = request.start
        if not isinstance(offset, ClientOffset):
            raise TypeError("a follower has an offset")
        seen, handle = await self._shape_of_handle(request)
        try:
            seen.require_followed(handle, offset.tx)
            # A client that waits gets the result of the next poll anyway.
            is_doubted = not request.live and seen.is_behind(offset.tx)
        except PositionError:
            is_doubted = True
        if is_doubted:
            seen = await self._looks.seen(request, fresh=True)
            with as_conflict(request, seen):
                require_followed(seen, handle, offset.tx)
        return Follower.of(request, seen, handle, offset)

    async def stream(self, request: ShapeRequest) -> tuple[Follower, Page]:
        """A follower that keeps its connection open, and its first page; raises as :meth:`answer`."""
        follower = await self.follow(request)
        with as_conflict(request, follower.seen):
            return follower, await self.page(follower)

    async def more(self, follower: Follower, disconnected: "asyncio.Future[None]", end_s: float) -> Follower:
        """The follower once there is something that it waits for, or at ``end_s``.

        Raises:
            RefetchError: the log cannot be continued for it.
            DisconnectedError, UnavailableError, FlushtrackerError: as :meth:`answer`.
        """
        shape_id, is_late = follower.seen.shape_id, False
        is_watched = follower.seen.selection is not None and not follower.cuts
        while True:
            # The wait begins before the shape is looked up, so that no change in between is missed.
            changed = self._watches.changed(follower) if is_watched else self._changed(follower)
            try:
                follower = require_current(follower.at(await self._looks.look(shape_id, follower.seen.selection)))
                tail = self._tail_for(follower)
                follower = replace(follower, tail_page=None if tail is None else tail.peek(follower))
                if follower.has_update or is_late:
                    return follower
                await asyncio.wait(
                    {changed, disconnected}, timeout=max(end_s - self._now_s(), 0), return_when="FIRST_COMPLETED"
                )
            finally:
                if is_watched:
                    follower = self._watches.passed(follower, changed)
                else:
                    self._poller.drop(shape_id, changed, or_cut=follower.cuts)
            if disconnected.done():
                raise DisconnectedError
            if follower.seen.selection is not None:
                # Those that began at the same time also end so.
                await self._parts.precedence.turn(disconnected)
            is_late = self._now_s() >= end_s or self._poller.is_closed

    def _changed(self, follower: Follower) -> Waiter:
        seen, place = follower.seen, max(follower.tx, follower.sent_lsn)
        is_last = seen.selection is not None
        return self._poller.changed(seen.shape_id, place, or_cut=follower.cuts, is_last=is_last)

    async def page(self, follower: Follower) -> Page:
        """The next content for a follower, as much as fits in one answer; raises as :meth:`more`."""
        return self._kept_page(follower) or await self._read_page(follower)

    async def page_until(self, follower: Follower, disconnected: "asyncio.Future[None]") -> Page:
        """As :meth:`page`, of a client that may close the connection meanwhile. Most pages need no wait, nor a task."""
        page = self._kept_page(follower)
        # A read may end before the task begins.
        return page if page is not None else await until_disconnected(self.page(follower), disconnected)

    def _kept_page(self, follower: Follower) -> Page | None:
        tail = self._tail_for(follower)
        if tail is not None and (page := tail.page(follower)) is not None:
            return page
        if not follower.has_more:
            return Page(Body(), follower.tx, 0, is_end=True, version=follower.seen.found.version)
        page = self._parts.pages.get(_page_key(follower))
        return page if page is not None and (not page.is_end or self.is_up_to_date(page, follower)) else None

    async def _read_page(self, follower: Follower) -> Page:
        parts, seen, position, key = self._parts, follower.seen, follower.position, _page_key(follower)

        def read(flight: Flight[list[Page]]) -> list[Page]:
            check = parts.check_for(seen, flight.check)
            check()
            return parts.reads.log_pages(seen, position, check, is_proven=follower.is_proven)

        def keep(pages: list[Page]) -> None:
            parts.pages.add(key, pages)

        if seen.selection is not None:
            await parts.precedence.others_answered()
        try:
            with parts.answering(seen):
                flights = parts.log_flights_for(seen)
                pages = await flights.share((key, seen.found.version), read, keep, group=seen.shape_id)
        except RefetchError as error:
            if error.unsent_tx is not None:
                parts.states.begin_after(follower.handle, error.unsent_tx)
            raise
        return pages[0]

    def is_up_to_date(self, page: Page, follower: Follower) -> bool:
        """Whether a client with the page has everything that the poll found."""
        return page.is_end and is_newest(page.tx, page.version, follower.seen)

    def _tail_for(self, follower: Follower) -> TailPages | None:
        """The tail, but none for a definition on demand: only the log tells which of the parent's rows to show."""
        return self._parts.tail_pages if follower.seen.selection is None else None

    def shows_nothing(self, follower: Follower, page: Page) -> bool:
        """Whether a page has nothing of its parent's changes that the client waits for."""
        is_empty = page.is_end and not page.body.length
        return is_empty and follower.seen.selection is not None and not follower.cuts and not self.is_closing

    async def _shape_of_handle(self, request: ShapeRequest) -> tuple[SeenShape, Handle]:
        handle = request.handle
        seen = await self._looks.seen(request, fresh=False)
        if handle is None or handle.digest != seen.facts.digest:
            seen = await self._looks.seen(request, fresh=True)
        with as_conflict(request, seen):
            if handle is None or handle.digest != seen.facts.digest or request.handle_text == request.expired_text:
                raise RefetchError
        return seen, handle

    async def _begin(self, request: ShapeRequest, seen: SeenShape) -> Answer:
        if request.handle_text is not None and request.handle_text == request.expired_text:
            raise RefetchError
        if request.start == NOW or request.changes_only:
            if seen.found.has_subqueries or seen.selection is not None:
                # Without all rows of its tables, the changes of the query cannot be determined.
                seen.found.require_snapshot()
            handle, lsn = initial_handle(request, seen.handle), seen.lsn(seen.tx)
            offset = offset_after(seen.tx, lsn, request)
            return Answer(handle, offset, seen.facts.schema, Body(), is_up_to_date=True, lsn=lsn)
        seen.found.require_snapshot()
        state = await self._newest_state(seen, seen.tx if request.is_returning else 0)
        require_same(request, seen, state.facts)
        return await state_answer(request, state, initial_handle(request, state.handle), 0, seen)

    async def _rows(self, request: ShapeRequest, seen: SeenShape, handle: Handle, offset: ClientOffset) -> Answer:
        """The next of the rows that a client has begun to fetch."""
        state = self._parts.states.at(handle, offset.tx) or await self._state(seen, handle, offset.tx)
        return await state_answer(request, state, handle, offset.rows, seen)

    async def _newest_state(self, seen: SeenShape, least: int) -> StateRows:
        """Rows for a new client, after the transaction ``least`` or a later one."""
        states = self._parts.states
        for _ in range(_TRIES):
            kept = states.newest(seen.handle, self._now_s())
            state = kept if kept is not None and kept.tx >= least else await self._state(seen, None, None)
            # One that others have waited for may be too old by now.
            if states.can_begin(state) and state.tx >= least:
                return state
        raise UnavailableError("the shape must be begun again and again")

    async def _state(self, seen: SeenShape, begun: Handle | None, at: int | None) -> StateRows:
        parts = self._parts

        def read(flight: Flight[StateRows]) -> StateRows:
            return parts.reads.state(seen, begun, at, parts.check_for(seen, flight.check), flight.show)

        def keep(state: StateRows) -> None:
            parts.states.add(state, self._now_s())
            state.wake()

        # Rows that another client waits for are correct for this one too, even if the log has grown since.
        key = seen.handle if begun is None else begun
        return await parts.row_flights_for(seen).share((key.begun, at), read, keep, group=seen.shape_id)


def _page_key(follower: Follower) -> PageKey:
    return PageKey(follower.handle.digest, follower.handle.attempt, follower.tx)
