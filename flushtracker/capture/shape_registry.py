"""``ShapeRegistry``: the shapes that a source has had, compared with those that its owner wants now.

An id stands for one definition for good. What decides which changes a shape gets must not change under an id; when its
writer flushes, and which shapes it comes after, may.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from flushtracker.errors import ShapeError
from flushtracker.events.registry_events import ShapeEntry
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.wal.changes import TableName


@dataclass(frozen=True, slots=True)
class Wanted:
    """What has to be done so that the registry has the shapes that are wanted.

    ``ended``: wanted still, but they could not be delivered, and stay ended.
    """

    added: tuple[ShapeDefinition, ...]
    updated: tuple[ShapeEntry, ...]
    removed: tuple[str, ...]
    ended: tuple[ShapeEntry, ...]


class ShapeRegistry:
    """The entries of one source by shape id; the caller publishes each before it is put here."""

    def __init__(self, entries: Iterable[ShapeEntry] = ()) -> None:
        self._entries: dict[str, ShapeEntry] = {}
        self._by_table: dict[TableName, set[str]] = {}
        self._by_oid: dict[int, set[str]] = {}
        for entry in entries:
            self.put(entry)

    def __getitem__(self, shape_id: str) -> ShapeEntry:
        return self._entries[shape_id]

    def put(self, entry: ShapeEntry) -> None:
        """Take an entry in the place of the one before."""
        definition = entry.definition
        self._entries[definition.id] = entry
        self._by_table.setdefault(definition.table, set()).add(definition.id)
        self._by_oid.setdefault(entry.table_oid, set()).add(definition.id)

    def live_on(self, tables: Iterable[TableName], oid: int | None = None) -> tuple[ShapeEntry, ...]:
        """The shapes that are routed to and are on one of the tables, by name or by OID. O(those shapes)."""
        ids = set[str]().union(*(self._by_table.get(table, ()) for table in tables), self._by_oid.get(oid or 0, ()))
        entries = (self._entries[shape_id] for shape_id in sorted(ids))
        return tuple(entry for entry in entries if entry.removed_at is None)

    @property
    def live(self) -> tuple[ShapeEntry, ...]:
        """The shapes that are routed to."""
        return tuple(entry for entry in self._entries.values() if entry.removed_at is None)

    @property
    def removed(self) -> tuple[ShapeEntry, ...]:
        """The shapes that are gone, for good."""
        return tuple(entry for entry in self._entries.values() if entry.removed_at is not None)

    def compare(self, definitions: Iterable[ShapeDefinition]) -> Wanted:
        """What the wanted definitions ask for; changes nothing.

        Raises:
            ShapeError: an id was removed, or stands for another definition.
        """
        added, updated, ended = [], [], []
        wanted = {definition.id: definition for definition in definitions}
        for shape_id, definition in wanted.items():
            entry = self._entries.get(shape_id)
            if entry is None:
                added.append(definition)
                continue
            _require_same(entry, definition)
            if entry.removed_at is not None:
                ended.append(entry)
                continue
            known = replace(entry.definition, depends_on=definition.depends_on, flush=definition.flush)
            if known != entry.definition:
                updated.append(replace(entry, definition=known))
        removed = [entry.definition.id for entry in self.live if entry.definition.id not in wanted]
        return Wanted(tuple(added), tuple(updated), tuple(removed), tuple(ended))


def _require_same(entry: ShapeEntry, wanted: ShapeDefinition) -> None:
    known = entry.definition
    if entry.removed_at is not None and entry.ended_because is None:
        raise ShapeError(
            f"shape {known.id!r} was removed at {entry.removed_at}; an id is never used twice, so give it a new one"
        )
    # Where the definition leaves the key or the partitions open, the catalog has filled them in.
    differs = [
        name for name in ("table", "columns", "where", "replica") if getattr(known, name) != getattr(wanted, name)
    ]
    if wanted.primary_key is not None and wanted.primary_key != known.primary_key:
        differs.append("primary_key")
    if not set(wanted.partitions) <= set(known.partitions):
        differs.append("partitions")
    if differs:
        raise ShapeError(
            f"shape {known.id!r} has another {' and '.join(differs)} than when it was defined; a changed definition "
            "needs a new id"
        )
