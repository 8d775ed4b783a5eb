"""``ShapeLooks``: the shapes that requests ask for, as of a look at the tables that is recent enough for the client."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from flushtracker.errors import PositionError
from flushtracker.events.registry import Registry
from flushtracker.events.registry_events import ShapeEntry
from flushtracker.serve.beginning import shown_to
from flushtracker.serve.definition_cache import DefinitionCache
from flushtracker.serve.definitions import Target
from flushtracker.serve.on_demand.selection import Selection
from flushtracker.serve.poller import Poller
from flushtracker.serve.refusals import RefusalError, UnavailableError
from flushtracker.serve.seen_shape import SeenShape, ShapeFacts
from flushtracker.serve.shape_request import RequestedDefinition, ShapeRequest

BEGIN_S: Final = 10.0
"""How long a client that starts over waits for a log that has what it was shown."""

_LOOK_AGAIN_S: Final = 1.0
"""It looks again after this time, and does not wait for a round to end."""

_CHANGED: Final = "the shape that is defined so has changed; try again"


def require_same(request: ShapeRequest, seen: SeenShape, facts: ShapeFacts) -> None:
    """Raise ``UnavailableError`` if a shape that was found by its definition has begun again meanwhile.

    It may be defined otherwise now, and have rows that the definition hides.
    """
    if not isinstance(request.shape, str) and facts.digest != seen.facts.digest:
        raise UnavailableError(_CHANGED)


class ShapeLooks:
    """Looks for the shapes of ``definitions``. For the event loop."""

    def __init__(
        self,
        poller: Poller,
        definitions: DefinitionCache,
        begin_s: float = BEGIN_S,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._poller = poller
        self._definitions = definitions
        self._begin_s, self._now_s = begin_s, now_s

    async def seen(self, request: ShapeRequest, *, fresh: bool) -> SeenShape:
        target = await self._target(request.shape)
        seen = await self.look(target.shape_id, target.selection, fresh=fresh)
        # The look may be later than that of the registry.
        if target.entry is not None and not _are_alike(target.entry, seen.found.entry):
            raise UnavailableError(_CHANGED)
        return seen

    def is_on_demand(self, asked: str | RequestedDefinition) -> bool:
        """Whether it may be a definition on demand."""
        return not isinstance(asked, str) and self._definitions.is_on_demand(asked)

    async def look(
        self, shape_id: str, selection: Selection | None, *, fresh: bool = False, newest: bool = False
    ) -> SeenShape:
        """The shape, or what the selection shows of it; raises as ``Poller.shape``."""
        try:
            return (await self._poller.shape(shape_id, fresh=fresh, newest=newest)).selected(selection)
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

    async def reached(self, request: ShapeRequest, seen: SeenShape) -> SeenShape:
        """The shape, once its log or the cut has what the client was shown; raises ``UnavailableError``."""
        first, shape_id, end_s = seen, seen.shape_id, self._now_s() + self._begin_s
        while seen.is_behind(shown_to(request, seen)):
            changed = self._poller.changed(shape_id, shown_to(request, seen) - 1, or_cut=True)
            try:
                seen = await self.look(shape_id, seen.selection, newest=True)
                require_same(request, first, seen.facts)
                if not seen.is_behind(shown_to(request, seen)):
                    break
                if self._now_s() >= end_s or self._poller.is_closed:
                    raise UnavailableError("the client was shown more than the log has yet; try again")
                await asyncio.wait({changed}, timeout=min(max(end_s - self._now_s(), 0), _LOOK_AGAIN_S))
            finally:
                self._poller.drop(shape_id, changed, or_cut=True)
        return seen


def _are_alike(one: ShapeEntry, other: ShapeEntry | None) -> bool:
    """Whether two entries of a shape are of one incarnation: of that, only flushes and dependencies may change."""
    if other is None or one.source != other.source:
        return False
    return one.definition == replace(other.definition, flush=one.definition.flush, depends_on=one.definition.depends_on)
