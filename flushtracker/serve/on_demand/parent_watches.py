"""``ParentWatches``: wakes clients of definitions on demand, but only those whom a change of the parent concerns.

Clients that have the same of a parent's log wait at one *place*. Once the parent has changed, and its own clients are
answered, one read of the changes judges all definitions there. If none of the changed rows was shown by a definition or
is shown now, its clients wait on at the later place, and are not even woken. The others are woken, a few at a time, and
read what they are shown. If the changes cannot be read, all are, and each finds out by itself.

For the event loop.
"""

import asyncio
import logging
from collections.abc import Collection
from dataclasses import dataclass, field, replace

from flushtracker.errors import FlushtrackerError
from flushtracker.serve.follower import Follower
from flushtracker.serve.on_demand.selection import Selection
from flushtracker.serve.parts import Parts
from flushtracker.serve.rate_limited_log import RateLimitedLog
from flushtracker.serve.refusals import RefetchError, RefusalError
from flushtracker.serve.rounds import Waiter
from flushtracker.serve.shape_looks import ShapeLooks
from flushtracker.serve.single_flight import AbandonedError, Flight
from flushtracker.shape_log.position import Position

_log = RateLimitedLog(logging.getLogger(__name__))

_Judged = tuple[int, Collection[Selection]]
"""The last transaction of the changes, and the selections that show nothing of them."""


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
    def __init__(self, parts: Parts, looks: ShapeLooks) -> None:
        self._parts, self._looks = parts, looks
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
        reached, unconcerned = await self._judged(watch)
        del self._watches[watch.place]
        later = replace(watch.place, tx=reached)
        for waiter in [waiter for waiter, each in watch.waiting.items() if each in unconcerned]:
            self._join(later, waiter, watch.waiting.pop(waiter), is_proven=True)
        for waiter in [*watch.waiting]:
            await precedence.turn()
            if not waiter.done():
                waiter.set_result(None)

    async def _judged(self, watch: _Watch) -> _Judged:
        try:
            if not self._parts.poller.is_closed:
                return await self._judge(watch)
        except (AbandonedError, FlushtrackerError, RefetchError, RefusalError):
            # Whoever is woken gets the reason.
            pass
        except Exception:  # noqa: BLE001  it is logged
            _log(logging.ERROR, "changes cannot be judged for definitions on demand", exc_info=True)
        return watch.place.tx, ()

    async def _judge(self, watch: _Watch) -> _Judged:
        parts, place, selections = self._parts, watch.place, frozenset(watch.waiting.values())
        seen = await self._looks.look(place.shape_id, next(iter(selections)))
        if seen.facts.parent != place.parent:
            raise RefetchError
        position, is_proven = Position(seen.found.source, place.tx, place.attempt), watch.is_proven

        def read(flight: Flight[_Judged]) -> _Judged:
            check = parts.check_for(seen, flight.check)
            check()
            return parts.reads.unconcerned(seen, position, selections, check, is_proven=is_proven)

        key = place, selections, seen.found.version
        return await parts.log_flights_for(seen).share(key, read, lambda _: None, group=place.shape_id)
