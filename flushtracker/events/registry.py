"""``Registry``: the current entries of the ``shapes`` topic, by key."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from flushtracker.events.registry_events import (
    PartitionEntry,
    RegistryEntry,
    ShapeEntry,
    SourceEntry,
    TableEntry,
    bound_now,
)
from flushtracker.shapes.table_binding import TableBinding
from flushtracker.wal.source_name import SourceName

EntryKey: TypeAlias = tuple[str, str, str]
"""The source, the kind of entry, and an id within the kind."""


@dataclass(frozen=True, slots=True)
class Registry:
    entries: Mapping[EntryKey, RegistryEntry] = field(default_factory=dict)
    partitions: Mapping[tuple[str, int], Sequence[PartitionEntry]] = field(default_factory=dict)
    """The entries of partitions, by source and OID of the parent table."""
    sources: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """The sources that have, or had, a shape, by its id."""

    @classmethod
    def of(cls, entries: Iterable[RegistryEntry]) -> "Registry":
        """Build it from entries in stream order: a later one replaces an earlier one with the same key."""
        found = {entry_key(entry): entry for entry in entries}
        partitions = defaultdict[tuple[str, int], list[PartitionEntry]](list)
        sources = defaultdict[str, set[str]](set)
        for each in found.values():
            if isinstance(each, PartitionEntry):
                partitions[each.source, each.table_oid].append(each)
            elif isinstance(each, ShapeEntry):
                sources[each.definition.id].add(each.source)
        return cls(found, dict(partitions), {shape_id: frozenset(names) for shape_id, names in sources.items()})

    def sources_of(self, shape_id: str) -> frozenset[str]:
        return self.sources.get(shape_id, frozenset())

    def server_of(self, source: str) -> str | None:
        """``<system identifier>/<timeline>`` of the server on which the source is captured; ``None`` if unknown."""
        name = SourceName.parse(source)
        if name is None:
            return None
        entry = self.entries.get((source, "source", ""))
        if not isinstance(entry, SourceEntry) or entry.history is None:
            return name.server
        return f"{entry.server_id}/{entry.history.timeline}"

    def earlier_timelines(self, source: str) -> int:
        """The sum of the last timelines of the servers before the source's major upgrades."""
        entry = self.entries.get((source, "source", ""))
        return entry.earlier_timelines if isinstance(entry, SourceEntry) else 0

    def shape(self, source: str, shape_id: str) -> ShapeEntry | None:
        found = self.entries.get((source, "shape", shape_id))
        return found if isinstance(found, ShapeEntry) else None

    def table_of(self, shape: ShapeEntry) -> TableBinding | None:
        """The shape's table as it was when the shape was last correct; ``None`` if unknown."""
        return self._table(shape.source, shape.table_oid)

    def _table(self, source: str, oid: int) -> TableBinding | None:
        found = self.entries.get((source, "table", str(oid)))
        if not isinstance(found, TableEntry):
            return None
        return bound_now(found.binding, self.partitions.get((source, oid), ()))

    def tables_of(self, shape: ShapeEntry) -> tuple[TableBinding, ...] | None:
        """All tables of the shape, its own first, as in :meth:`table_of`; ``None`` unless all are known."""
        found = [self._table(shape.source, oid) for oid in shape.table_oids]
        tables = tuple(table for table in found if table is not None)
        return tables if len(tables) == len(found) else None


def goes_back(entry: RegistryEntry, known: RegistryEntry) -> bool:
    """Whether a shape's entry is older than the known one, which has its end or a later incarnation.

    Neither is ever undone, so a reader that rereads old entries, or lags behind another reader, ignores them.
    """
    if not (isinstance(entry, ShapeEntry) and isinstance(known, ShapeEntry)):
        return False
    return _progress(entry) < _progress(known)


def _progress(entry: ShapeEntry) -> tuple[int, bool]:
    return entry.definition.incarnation, entry.removed_at is not None


def entry_key(entry: RegistryEntry) -> EntryKey:
    match entry:
        case ShapeEntry():
            return entry.source, "shape", entry.definition.id
        case TableEntry():
            return entry.source, "table", str(entry.binding.oid)
        case PartitionEntry():
            return entry.source, "partition", f"{entry.table_oid}/{entry.binding.oid}"
        case SourceEntry():
            return entry.source, "source", ""
