"""``ShapeRegistry``: the shapes that a source has had, compared with those that its owner wants now.

An id stands for one definition for good. What decides which changes a shape gets must not change under an id; when its
writer flushes, and which shapes it comes after, may.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from flushtracker.errors import ShapeError
from flushtracker.registry_events import ShapeEntry
from flushtracker.shape_definition import ShapeDefinition


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
        self._entries = {entry.definition.id: entry for entry in entries}

    def __getitem__(self, shape_id: str) -> ShapeEntry:
        return self._entries[shape_id]

    def put(self, entry: ShapeEntry) -> None:
        """Take an entry in the place of the one before."""
        self._entries[entry.definition.id] = entry

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
