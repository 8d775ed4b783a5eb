"""``ParentWatches``: wakes clients of definitions on demand, but only those whom a change of the parent concerns.

Clients that have the same of a parent's log wait at one *place*. Once the parent has changed, and its own clients are
answered, one read of the changes judges all definitions there. If none of the changed rows was shown by a definition or
is shown now, its clients wait on at the later place, and are not even woken. The others are woken, a few at a time, and
read what they are shown. So are those who came meanwhile. If the changes cannot be read, all are, and each finds out by
itself.

For the event loop.
"""

import asyncio
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from flushtracker.errors import FlushtrackerError
from flushtracker.serve.follower import Follower
from flushtracker.serve.on_demand.selection import Selection
from flushtracker.serve.parts import Parts
from flushtracker.serve.rate_limited_log import RateLimitedLog
from flushtracker.serve.refusals import RefetchError, RefusalError
from flushtracker.serve.rounds import Waiter
from flushtracker.serve.seen_shape import SeenShape
from flushtracker.serve.single_flight import AbandonedError, Flight
from flushtracker.serve.table_view import is_update
from flushtracker.shape_log.position import Position

_log = RateLimitedLog(logging.getLogger(__name__))

_Read = tuple[int, Collection[Selection]]
"""The last transaction of the changes, and the selections that show nothing of them."""
_Judged = tuple[SeenShape | None, int, Collection[Selection]]
"""The parent as it was looked up before the read, and the result of that."""


@dataclass(frozen=True, slots=True)
class _Place:
    """``parent``: the digest of the parent's facts. Clients that started from another attempt read otherwise."""

    shape_id: str
    parent: str | None
    attempt: int
    tx: int


@dataclass(eq=False, slots=True)
class _Watch:
    """Those that wait at a place; ``is_proven`` if that is known to be in the log for all of them."""

    place: _Place
    changed: Waiter
    waiting: dict[Waiter, Selection] = field(default_factory=dict)
    is_proven: bool = True
    task: "asyncio.Task[None] | None" = None


class ParentWatches:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._watches: dict[_Place, _Watch] = {}
        self._waiting: dict[Waiter, _Watch] = {}

    @property
    def waiting(self) -> int:
        """Clients that wait here, without the one for each watch that the poller counts."""
        return len(self._waiting) - sum(not each.changed.done() for each in [*self._watches.values()])

    def changed(self, follower: Follower) -> Waiter:
        """Done when a change may concern the client of a selection; call :meth:`passed` in the end."""
        selection, seen = follower.seen.selection, follower.seen
        if selection is None:
            raise TypeError("only a selection has a parent")
        place = _Place(seen.shape_id, seen.facts.parent, follower.handle.attempt, follower.tx)
        waiter: Waiter = asyncio.get_running_loop().create_future()
        self._join(place, waiter, selection, is_proven=follower.is_proven)
        return waiter

    def passed(self, follower: Follower, waiter: Waiter) -> Follower:
        """The follower, which waits no longer, after the changes that did not concern it."""
        watch = self._waiting.pop(waiter)
        watch.waiting.pop(waiter, None)
        if not watch.waiting and self._watches.get(watch.place) is watch:
            del self._watches[watch.place]
            # A task that has not begun cannot do it when it is cancelled.
            self._parts.poller.drop(watch.place.shape_id, watch.changed)
            if watch.task is not None:
                watch.task.cancel()
        tx = watch.place.tx
        return follower if tx <= follower.tx else replace(follower, tx=tx, is_proven=True)

    def _join(self, place: _Place, waiter: Waiter, selection: Selection, *, is_proven: bool) -> None:
        watch = self._watches.get(place)
        if watch is None:
            watch = _Watch(place, self._parts.poller.changed(place.shape_id, place.tx, is_last=True))
            watch.task = asyncio.create_task(self._run(watch))
            self._watches[place] = watch
        watch.waiting[waiter] = selection
        watch.is_proven &= is_proven
        self._waiting[waiter] = watch

    async def _run(self, watch: _Watch) -> None:
        poller, precedence = self._parts.poller, self._parts.precedence
        await watch.changed
        poller.drop(watch.place.shape_id, watch.changed)
        await precedence.others_answered()
        waiting = dict(watch.waiting)
        seen, reached, unconcerned = await self._judged(watch, waiting, is_proven=watch.is_proven)
        # A cancel may get lost, and others wait at the place by now.
        if self._watches.get(watch.place) is watch:
            del self._watches[watch.place]
        later = replace(watch.place, tx=reached)
        moved = [waiter for waiter in watch.waiting if waiting.get(waiter) in unconcerned]
        for waiter in moved:
            self._join(later, waiter, watch.waiting.pop(waiter), is_proven=True)
        if moved and seen is not None:
            self._look_again(self._watches[later], seen)
        for waiter in [*watch.waiting]:
            await precedence.turn()
            if not waiter.done():
                waiter.set_result(None)

    def _look_again(self, watch: _Watch, seen: SeenShape) -> None:
        """Judge at once if the parent has changed since it was ``seen``: the rounds compare only what comes later."""
        now = self._parts.poller.shown(watch.place.shape_id)
        if now is not None and is_update(seen, now, watch.place.tx, or_cut=False) and not watch.changed.done():
            watch.changed.set_result(None)

    async def _judged(self, watch: _Watch, waiting: Mapping[Waiter, Selection], *, is_proven: bool) -> _Judged:
        try:
            if not self._parts.poller.is_closed:
                return await self._judge(watch.place, frozenset(waiting.values()), is_proven=is_proven)
        except (AbandonedError, FlushtrackerError, RefetchError, RefusalError):
            # Whoever is woken gets the reason.
            pass
        except Exception:  # noqa: BLE001  it is logged
            _log(logging.ERROR, "changes cannot be judged for definitions on demand", exc_info=True)
        return None, watch.place.tx, ()

    async def _judge(self, place: _Place, selections: frozenset[Selection], *, is_proven: bool) -> _Judged:
        parts, parent = self._parts, await self._parts.poller.shape(place.shape_id)
        seen = parent.selected(next(iter(selections)))
        if seen.facts.parent != place.parent:
            raise RefetchError
        position = Position(seen.found.source, place.tx, place.attempt)

        def read(flight: Flight[_Read]) -> _Read:
            check = parts.check_for(seen, flight.check)
            check()
            return parts.reads.unconcerned(seen, position, selections, check, is_proven=is_proven)

        key = place, selections, is_proven, seen.found.version
        flights = parts.log_flights_for(seen)
        return parent, *await flights.share(key, read, lambda _: None, group=place.shape_id)
