"""``Matching``: the shape that a definition means, found in a thread, and remembered until the registry changes.

Conditions are parsed one at a time, and only so many may wait: a long one delays nobody whose definition is known.
"""

import hashlib
from collections import OrderedDict
from typing import Final

from flushtracker.events.registry import Registry
from flushtracker.serve.definitions import Definitions
from flushtracker.serve.flights import Flight, Flights
from flushtracker.serve.shape_request import AskedDefinition

_MOST_KNOWN: Final = 10_000


class Matching:
    """``source``: whose shapes are served; ``flights`` have one thread. For the event loop."""

    def __init__(self, source: str | None, flights: Flights) -> None:
        self._source = source
        self._flights = flights
        self._registry: Registry | None = None
        self._known: OrderedDict[bytes, str | None] = OrderedDict()
        self._definitions: tuple[Registry, Definitions] | None = None
        """Only the thread reads or writes it."""

    async def shape_id(self, registry: Registry, asked: AskedDefinition) -> str | None:
        """The id of the shape that is defined so; ``None`` if there is none.

        Raises:
            RefusalError: as ``Definitions.shape_id``, or too many definitions wait to be read.
        """
        if registry is not self._registry:
            self._registry, self._known = registry, OrderedDict()
        known = self._known
        # Texts of clients are not kept: they may be long.
        key = hashlib.sha256(repr(asked).encode()).digest()
        if key in known:
            known.move_to_end(key)
            return known[key]

        def find(_flight: Flight[str | None]) -> str | None:
            return self._in(registry).shape_id(asked)

        def keep(found: str | None) -> None:
            known[key] = found
            while len(known) > _MOST_KNOWN:
                known.popitem(last=False)

        return await self._flights.share((id(registry), key), find, keep)

    def _in(self, registry: Registry) -> Definitions:
        known = self._definitions
        if known is None or known[0] is not registry:
            before = None if known is None else known[1]
            known = self._definitions = registry, Definitions(registry, self._source, before)
        return known[1]
