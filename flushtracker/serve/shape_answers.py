"""``ShapeAnswers``: answers the clients of shapes.

Each answer goes from the client's offset to a later one, or to the same, and both are ends of whole transactions. It
says that the client is up to date only if a sufficiently recent poll found so: the last one, or, if the client may have
seen answers of another server that is ahead, one that began after its request.

1. A new client gets the rows that the shape had at some transaction: the newest, or one with cached rows. It continues
   with the log from there, so the choice only affects how soon it is up to date.
2. A returning client gets what follows its offset, if the log still has it. Before it is told to start over, the tables
   are polled once more, because another server may be ahead of this one.
3. A waiting client is answered as soon as a poll, or the tail, has more. If it is ahead of the log, and the tail has
   nothing for it, it waits for the log.
4. A client that waits for what a definition on demand shows of its parent's changes waits on while that is nothing.
5. A client that starts over waits for a log that has everything that it was shown before, by any server.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from flushtracker.errors import PositionError
from flushtracker.events.registry import Registry
from flushtracker.serve.answer import Answer, is_newest, log_answer, offset_after, state_answer
from flushtracker.serve.beginning import as_conflict, initial_handle, shown_to
from flushtracker.serve.body import Body, Page
from flushtracker.serve.cache import PageCache, PageKey, StateCache
from flushtracker.serve.definition_cache import DefinitionCache
from flushtracker.serve.definitions import Target
from flushtracker.serve.disconnect import DisconnectedError, until_disconnected
from flushtracker.serve.follower import Follower, require_current, require_followed
from flushtracker.serve.handle import ClientOffset, Handle
from flushtracker.serve.on_demand.on_demand import OnDemand
from flushtracker.serve.on_demand.selection import Selection
from flushtracker.serve.poller import Poller
from flushtracker.serve.reads import LogReads
from flushtracker.serve.refusals import RefetchError, RefusalError, UnavailableError
from flushtracker.serve.seen_shape import SeenShape
from flushtracker.serve.shape_request import NOW, RequestedDefinition, ShapeRequest
from flushtracker.serve.single_flight import Flight, SingleFlight
from flushtracker.serve.state_rows import StateRows
from flushtracker.serve.tail.tail_pages import TailPages

LIVE_S: Final = 20.0
"""How long a client waits for a change."""

BEGIN_S: Final = 10.0
"""How long a client that starts over waits for a log that has what it was shown."""

_TRIES: Final = 3


@dataclass(frozen=True, slots=True)
class Parts:
    """The components used for answers."""

    poller: Poller
    reads: LogReads
    log_flights: SingleFlight
    row_flights: SingleFlight
    definition_flights: SingleFlight
    pages: PageCache
    states: StateCache
    tail_pages: TailPages | None = None
    on_demand: OnDemand | None = None

    @property
    def flights(self) -> tuple[SingleFlight, ...]:
        """All work in threads."""
        more = () if self.on_demand is None else self.on_demand.flights
        return self.log_flights, self.row_flights, self.definition_flights, *more

    def log_flights_for(self, seen: SeenShape) -> SingleFlight:
        """The threads that read this shape's log for clients."""
        return self.log_flights if seen.selection is None or self.on_demand is None else self.on_demand.log_flights

    def row_flights_for(self, seen: SeenShape) -> SingleFlight:
        """The threads that read this shape's rows for clients."""
        return self.row_flights if seen.selection is None or self.on_demand is None else self.on_demand.row_flights


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
        self._live_s, self._begin_s = live_s, begin_s
        self._now_s = now_s
        self._definitions = DefinitionCache(source, parts.definition_flights, parts.on_demand)

    @property
    def is_closing(self) -> bool:
        """Whether the server is stopping, so that clients must not wait."""
        return self._poller.is_closed

    async def answer(self, request: ShapeRequest, disconnected: "asyncio.Future[None]") -> Answer:
        """The answer to a request, whose client is ``disconnected`` when that is done.

        Raises:
            BeginAgainError: the client must start over.
            DisconnectedError: the client has closed the connection.
            RefusalError, FlushtrackerError: there is none.
        """
        if not isinstance(request.start, ClientOffset):
            seen = await self._reached(request, await self._seen(request, fresh=request.is_returning))
            with as_conflict(request, seen):
                return await self._begin(request, seen)
        if request.start.rows:
            seen, handle = await self._shape_of_handle(request)
            with as_conflict(request, seen):
                return await self._rows(request, seen, handle, request.start)
        follower = await self.follow(request)
        with as_conflict(request, follower.seen):
            end_s = self._now_s() + self._live_s
            if request.live:
                follower = await self.more(follower, disconnected, end_s)
            page = await until_disconnected(self.page(follower), disconnected)
            while request.live and self._shows_nothing(follower, page) and self._now_s() < end_s:
                follower = await self.more(replace(follower, tx=page.tx, is_proven=True), disconnected, end_s)
                page = await until_disconnected(self.page(follower), disconnected)
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
            seen = await self._seen(request, fresh=True)
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
        while True:
            # The wait begins before the shape is looked up, so that no change in between is missed.
            place = max(follower.tx, follower.sent_lsn)
            changed = self._poller.changed(shape_id, place, or_cut=follower.cuts)
            try:
                follower = require_current(follower.at(await self._look(shape_id, follower.seen.selection)))
                if follower.has_update or self.has_more(follower) or is_late:
                    return follower
                await asyncio.wait(
                    {changed, disconnected}, timeout=max(end_s - self._now_s(), 0), return_when="FIRST_COMPLETED"
                )
            finally:
                self._poller.drop(shape_id, changed, or_cut=follower.cuts)
            if disconnected.done():
                raise DisconnectedError
            is_late = self._now_s() >= end_s or self._poller.is_closed

    async def page(self, follower: Follower) -> Page:
        """The next content for a follower, as much as fits in one answer; raises as :meth:`more`."""
        tail = self._tail_for(follower)
        if tail is not None and (page := tail.page(follower)) is not None:
            return page
        if not follower.has_more:
            return Page(Body(), follower.tx, 0, is_end=True, version=follower.seen.found.version)
        parts, seen, position = self._parts, follower.seen, follower.position
        key = PageKey(follower.handle.digest, follower.handle.attempt, follower.tx)
        page = parts.pages.get(key)
        if page is not None and (not page.is_end or self.is_up_to_date(page, follower)):
            return page

        def read(flight: Flight[list[Page]]) -> list[Page]:
            return parts.reads.log_pages(seen, position, flight.check, is_proven=follower.is_proven)

        def keep(pages: list[Page]) -> None:
            parts.pages.add(key, pages)

        try:
            pages = await parts.log_flights_for(seen).share((key, seen.found.version), read, keep, group=seen.shape_id)
        except RefetchError as error:
            if error.unsent_tx is not None:
                parts.states.begin_after(follower.handle, error.unsent_tx)
            raise
        return pages[0]

    def is_up_to_date(self, page: Page, follower: Follower) -> bool:
        """Whether a client with the page has everything that the poll found."""
        return page.is_end and is_newest(page.tx, page.version, follower.seen)

    def has_more(self, follower: Follower) -> bool:
        """Whether the next page has something."""
        tail = self._tail_for(follower)
        return follower.has_more or (tail is not None and tail.has_more(follower))

    def _tail_for(self, follower: Follower) -> TailPages | None:
        """The tail, unless it has what the client must not see: of a parent, only the log tells what is shown."""
        return self._parts.tail_pages if follower.seen.selection is None else None

    def _shows_nothing(self, follower: Follower, page: Page) -> bool:
        """Whether a page has nothing of its parent's changes that the client waits for."""
        is_empty = page.is_end and not page.body.length
        return is_empty and follower.seen.selection is not None and not follower.cuts and not self.is_closing

    async def _seen(self, request: ShapeRequest, *, fresh: bool) -> SeenShape:
        target = await self._target(request.shape)
        return await self._look(target.shape_id, target.selection, fresh=fresh)

    async def _look(self, shape_id: str, selection: Selection | None, *, fresh: bool = False) -> SeenShape:
        """The shape, or what the selection shows of it, as of the last poll; raises as ``Poller.shape``."""
        try:
            return (await self._poller.shape(shape_id, fresh=fresh)).selected(selection)
        except (RefusalError, PositionError) as error:
            if selection is None or (isinstance(error, RefusalError) and error.status != 410):
                raise
            # Another shape may contain the definition.
            raise UnavailableError("the shape that contains the definition has changed; try again") from error

    async def _target(self, asked: str | RequestedDefinition) -> Target:
        """The requested shape; the tables are polled before there is said to be none."""
        for fresh in (False, True):
            view = await self._poller.current(fresh=fresh)
            if isinstance(asked, str):
                found = Target(asked) if asked in view.shape_ids else None
            else:
                found = await self._defined(view.registry, asked, may_raise=fresh)
            if found is not None:
                return found
        what = "with this id" if isinstance(asked, str) else "that is defined so; shapes are defined by the operator"
        raise RefusalError(404, f"there is no shape {what}")

    async def _defined(self, registry: Registry, asked: RequestedDefinition, *, may_raise: bool) -> Target | None:
        """What answers a definition; ``None`` for nothing, also if the reason ``may_raise`` only later."""
        try:
            return await self._definitions.target(registry, asked, self._now_s())
        except RefusalError as error:
            if may_raise or error.status != 404:
                raise
            return None

    async def _shape_of_handle(self, request: ShapeRequest) -> tuple[SeenShape, Handle]:
        """The shape of a client with a handle, and a current handle for it."""
        handle = request.handle
        seen = await self._seen(request, fresh=False)
        if handle is None or handle.digest != seen.facts.digest:
            seen = await self._seen(request, fresh=True)
        with as_conflict(request, seen):
            if handle is None or handle.digest != seen.facts.digest or request.handle_text == request.expired_text:
                raise RefetchError
        return seen, handle

    async def _reached(self, request: ShapeRequest, seen: SeenShape) -> SeenShape:
        """The shape, once its log or the cut has what the client was shown; raises ``UnavailableError``."""
        shape_id, end_s = seen.shape_id, self._now_s() + self._begin_s
        while seen.is_behind(shown_to(request, seen)):
            changed = self._poller.changed(shape_id, shown_to(request, seen) - 1, or_cut=True)
            try:
                seen = await self._look(shape_id, seen.selection)
                if not seen.is_behind(shown_to(request, seen)):
                    break
                if self._now_s() >= end_s or self._poller.is_closed:
                    raise UnavailableError("the client was shown more than the log has yet; try again")
                await asyncio.wait({changed}, timeout=max(end_s - self._now_s(), 0))
            finally:
                self._poller.drop(shape_id, changed, or_cut=True)
        return seen

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
            return parts.reads.state(seen, begun, at, flight.check, flight.show)

        def keep(state: StateRows) -> None:
            parts.states.add(state, self._now_s())
            state.wake()

        # Rows that another client waits for are correct for this one too, even if the log has grown since.
        key = seen.handle if begun is None else begun
        return await parts.row_flights_for(seen).share((key.begun, at), read, keep, group=seen.shape_id)
