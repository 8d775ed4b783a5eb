"""``DefinitionCache``: finds the shape for a definition, in a thread, and caches it until the registry changes.

Conditions are parsed one at a time, and the queue is bounded: a long one does not delay requests with known
definitions.
"""

import hashlib
from collections import OrderedDict
from typing import Final

from flushtracker.events.registry import Registry
from flushtracker.serve.definitions import Definitions
from flushtracker.serve.shape_request import RequestedDefinition
from flushtracker.serve.single_flight import Flight, SingleFlight

_MOST_KNOWN: Final = 10_000


class DefinitionCache:
    """``source``: whose shapes are served; ``flights`` must have one thread. For the event loop."""

    def __init__(self, source: str | None, flights: SingleFlight) -> None:
        self._source = source
        self._flights = flights
        self._registry: Registry | None = None
        self._known: OrderedDict[bytes, str | None] = OrderedDict()
        self._definitions: tuple[Registry, Definitions] | None = None
        """Used only by that thread."""

    async def shape_id(self, registry: Registry, asked: RequestedDefinition) -> str | None:
        """The id of the shape with this definition; ``None`` if there is none.

        Raises:
            RefusalError: as ``Definitions.shape_id``, or too many definitions are queued.
        """
        if registry is not self._registry:
            self._registry, self._known = registry, OrderedDict()
        known = self._known
        # Clients' texts are not kept, because they may be long.
        key = hashlib.sha256(repr(asked).encode()).digest()
        if key in known:
            known.move_to_end(key)
            return known[key]

        def find(_flight: Flight[str | None]) -> str | None:
            return self._definitions_of(registry).shape_id(asked)

        def keep(found: str | None) -> None:
            known[key] = found
            while len(known) > _MOST_KNOWN:
                known.popitem(last=False)

        return await self._flights.share((id(registry), key), find, keep)

    def _definitions_of(self, registry: Registry) -> Definitions:
        known = self._definitions
        if known is None or known[0] is not registry:
            before = None if known is None else known[1]
            known = self._definitions = registry, Definitions(registry, self._source, before)
        return known[1]
