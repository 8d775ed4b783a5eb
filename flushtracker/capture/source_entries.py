"""``SourceEntries``: what the registry has of one source."""

from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter

from flushtracker.events.registry_events import ShapeEntry, SourceEntry, TableEntry
from flushtracker.status.capture_status import Eviction


def evictions_of(entries: Iterable[ShapeEntry]) -> tuple[Eviction, ...]:
    """Those of the shapes that were evicted, oldest first."""
    found = [
        Eviction(entry.definition.id, entry.evicted_at_ms, entry.ended_because or "")
        for entry in entries
        if entry.evicted_at_ms is not None
    ]
    return tuple(sorted(found, key=attrgetter("at_ms")))


@dataclass(frozen=True, slots=True)
class SourceEntries:
    """A source's entries in the registry; ``source`` is ``None`` until it has begun."""

    source: SourceEntry | None = None
    shapes: tuple[ShapeEntry, ...] = ()
    tables: tuple[TableEntry, ...] = ()

    def are_same(self, others: "SourceEntries") -> bool:
        """Whether ``others`` are the same entries, in any order."""
        return (self.source, set(self.shapes), set(self.tables)) == (
            others.source,
            set(others.shapes),
            set(others.tables),
        )
