"""``DefinitionCache``: finds the shape for a definition, in a thread, and caches it until the registry changes.

A definition on demand is kept as long as it is asked for, and refused if there are too many.

Conditions are parsed one at a time, and the queue is bounded: a long one does not delay requests with known
definitions.
"""

import hashlib
from collections import OrderedDict
from typing import Final

from flushtracker.events.registry import Registry
from flushtracker.serve.definitions import Definitions, Target
from flushtracker.serve.on_demand.on_demand import OnDemand
from flushtracker.serve.shape_request import RequestedDefinition
from flushtracker.serve.single_flight import Flight, SingleFlight
from flushtracker.wal.changes import TableName

_MOST_KNOWN: Final = 10_000


class DefinitionCache:
    """``source``: whose shapes are served; ``flights`` must have one thread. For the event loop."""

    def __init__(self, source: str | None, flights: SingleFlight, on_demand: OnDemand | None = None) -> None:
        self._source = source
        self._flights = flights
        self._on_demand = on_demand
        self._registry: Registry | None = None
        self._number = 0
        """The number of the registry."""
        self._known: OrderedDict[bytes, tuple[int, Target | None]] = OrderedDict()
        """By definition, with the number of the registry that it was last looked up in; none of those on demand."""
        self._definitions: tuple[Registry, Definitions] | None = None
        """Used only by that thread."""

    def is_on_demand(self, asked: RequestedDefinition) -> bool:
        """Whether it may be: not if it was found to be none, also in an earlier registry."""
        return self._on_demand is not None and _key(asked) not in self._known

    async def target(self, registry: Registry, asked: RequestedDefinition, now_s: float) -> Target | None:
        """The shape that answers this definition; ``None`` if there is none.

        Raises:
            RefusalError: as ``Definitions.target``, or too many definitions are queued or kept.
        """
        if registry is not self._registry:
            self._registry, self._number = registry, self._number + 1
            if self._on_demand is not None:
                self._on_demand.kept.look_up_again()
        key, known, number = _key(asked), self._known, self._number
        if key in known and known[key][0] == number:
            known.move_to_end(key)
            return known[key][1]
        if self._on_demand is not None and (kept := self._on_demand.kept.get(key, now_s)) is not None:
            return kept
        tables = frozenset[TableName]() if self._on_demand is None else self._on_demand.tables

        def find(_flight: Flight[Target | None]) -> Target | None:
            return self._definitions_of(registry).target(asked, tables)

        def keep(found: Target | None) -> None:
            known.pop(key, None)
            if found is not None and found.selection is not None:
                return
            known[key] = number, found
            while len(known) > _MOST_KNOWN:
                known.popitem(last=False)

        found = await self._flights.share((id(registry), key), find, keep)
        is_current = registry is self._registry
        if self._on_demand is not None and found is not None and found.selection is not None and is_current:
            self._on_demand.kept.add(key, found, asked.characters, now_s)
        return found

    def _definitions_of(self, registry: Registry) -> Definitions:
        known = self._definitions
        if known is None or known[0] is not registry:
            before = None if known is None else known[1]
            known = self._definitions = registry, Definitions(registry, self._source, before)
        return known[1]


def _key(asked: RequestedDefinition) -> bytes:
    """Clients' texts are not kept, because they may be long."""
    return hashlib.sha256(repr(asked).encode()).digest()
