"""``SourceEntries``: what the registry has of one source."""

from dataclasses import dataclass

from flushtracker.events.registry_events import ShapeEntry, SourceEntry, TableEntry


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
