"""``ShapeRegistry``: the shapes that a source has ever had, compared with the current definitions.

``SourceEntries`` are all entries of one source in the topic, from which capture starts.

An incarnation of a shape has one definition permanently. Only its flush policy and its dependencies may change, nothing
that determines which changes it gets. A greater incarnation in the file resyncs the shape, whether or not the previous
one is still live, and may have another definition.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Final

from flushtracker.errors import ShapeError, listed
from flushtracker.events.registry_events import NO_TABLE, PartitionEntry, ShapeEntry, SourceEntry, TableEntry
from flushtracker.shapes.definition import ShapeDefinition, ShapeFault, dependency_cycle
from flushtracker.status.capture_status import EndedShape, Eviction
from flushtracker.wal.log_offset import LogOffset

_MOST_ENDED: Final = 100
"""The status shows this many ended shapes; the registry has all."""

_MOST_EVICTIONS: Final = 100
"""More than ``evict`` allows in the hour that its policy considers."""


@dataclass(frozen=True, slots=True)
class SourceEntries:
    """A source's entries in the registry; ``source`` is ``None`` until it has begun."""

    source: SourceEntry | None = None
    shapes: tuple[ShapeEntry, ...] = ()
    tables: tuple[TableEntry, ...] = ()
    partitions: tuple[PartitionEntry, ...] = ()

    def are_same(self, others: "SourceEntries", confirmed_lsn: int) -> bool:
        """Whether ``others`` are the same entries, in any order, whoever has claimed the source.

        Partitions that were lost before ``confirmed_lsn`` may have been forgotten.
        """
        own, other = (None if each is None else each.unclaimed() for each in (self.source, others.source))
        kept = [
            {each for each in found.partitions if not each.is_lost_before(confirmed_lsn)} for found in (self, others)
        ]
        are_alike = all(set(getattr(self, name)) == set(getattr(others, name)) for name in ("shapes", "tables"))
        return own == other and are_alike and kept[0] == kept[1]

    def unbound_shapes(self) -> list[str]:
        """The live shapes without an entry of their table, which capture publishes before theirs."""
        bound = {entry.binding.oid for entry in self.tables}
        live = (entry for entry in self.shapes if entry.removed_at is None)
        return sorted(entry.definition.id for entry in live if not bound.issuperset(entry.table_oids))


def trimmed(entry: ShapeEntry) -> ShapeEntry:
    """A shape's entry as kept in memory; a removed shape keeps only its id, its writer, and where routing ended.

    An ended shape is not trimmed: it may still be defined, and is compared with its definition.
    """
    if entry.removed_at is None or entry.ended_because is not None or entry.definition.table == NO_TABLE:
        return entry
    known = entry.definition
    definition = ShapeDefinition(known.id, NO_TABLE, incarnation=known.incarnation, writer=known.writer)
    return ShapeEntry(
        entry.source, definition, 0, LogOffset.before_all(), entry.removed_at, earlier_writers=entry.earlier_writers
    )


def last_evictions(entries: Iterable[ShapeEntry], others: Iterable[Eviction] = ()) -> tuple[Eviction, ...]:
    """The last hundred of ``others`` and of the entries, oldest first; a live shape has its previous incarnation's
    eviction.

    Those in ``others`` take precedence.
    """
    found = [
        Eviction(entry.definition.id, entry.evicted_at_ms, entry.ended_because or "the shape has begun again since")
        for entry in entries
        if entry.evicted_at_ms is not None
    ]
    evictions = {(each.shape_id, each.at_ms): each for each in (*found, *others)}
    return tuple(sorted(evictions.values(), key=attrgetter("at_ms"))[-_MOST_EVICTIONS:])


def ended_shapes(entries: Iterable[ShapeEntry], others: Iterable[EndedShape] = ()) -> tuple[EndedShape, ...]:
    """The first, by id, of the ended shapes among the entries and of ``others``."""
    found = [
        EndedShape(
            entry.definition.id,
            entry.definition.incarnation,
            entry.removed_at.tx_offset,
            entry.ended_because,
            entry.evicted_at_ms,
        )
        for entry in entries
        if entry.removed_at is not None and entry.ended_because is not None
    ]
    return tuple(sorted([*found, *others], key=attrgetter("shape_id"))[:_MOST_ENDED])


@dataclass(frozen=True, slots=True)
class RegistryDiff:
    """What to change so that the registry matches the definitions.

    ``added`` are new shapes and new incarnations; a live previous one must then end. ``ended`` are still defined, but
    capture has ended them, permanently. ``refused`` are definitions that contradict the registry; live shapes with
    these ids are not changed.
    """

    added: tuple[ShapeDefinition, ...]
    updated: tuple[ShapeEntry, ...]
    removed: tuple[str, ...]
    ended: tuple[ShapeEntry, ...]
    refused: tuple[ShapeFault, ...] = ()


class ShapeRegistry:
    """The entries of one source by shape id; the caller must publish each before it is stored here."""

    def __init__(self, entries: Iterable[ShapeEntry] = ()) -> None:
        self._live: dict[str, ShapeEntry] = {}
        self._removed: dict[str, ShapeEntry] = {}
        # Removed shapes whose entries are not condensed, in the order of their removal.
        self._whole: dict[str, None] = {}
        self._by_oid: dict[int, set[str]] = {}
        """The live shapes on each table that has any."""
        # The live shapes that depend on others. Most depend on none.
        self._dependent: set[str] = set()
        for entry in entries:
            self.put(entry)

    def __getitem__(self, shape_id: str) -> ShapeEntry:
        return self._live[shape_id] if shape_id in self._live else self._removed[shape_id]

    def put(self, entry: ShapeEntry) -> None:
        """Store an entry, which replaces the last one of the shape."""
        shape_id = entry.definition.id
        self._unlist(shape_id)
        if entry.removed_at is not None:
            self._live.pop(shape_id, None)
            self._removed[shape_id] = trimmed(entry)
            self._whole.pop(shape_id, None)
            if not entry.is_condensed:
                self._whole[shape_id] = None
            return
        self._removed.pop(shape_id, None)
        self._whole.pop(shape_id, None)
        self._live[shape_id] = entry
        for oid in entry.table_oids:
            self._by_oid.setdefault(oid, set()).add(shape_id)
        if entry.definition.depends_on:
            self._dependent.add(shape_id)

    def _unlist(self, shape_id: str) -> None:
        self._dependent.discard(shape_id)
        last = self._live.get(shape_id)
        for oid in () if last is None else last.table_oids:
            shapes = self._by_oid[oid]
            shapes.discard(shape_id)
            if not shapes:
                del self._by_oid[oid]

    def live_on(self, table_oid: int) -> tuple[ShapeEntry, ...]:
        """The live shapes with rows of the table with this OID. O(those shapes)."""
        return tuple(self._live[shape_id] for shape_id in sorted(self._by_oid.get(table_oid, ())))

    def last_ended(self, shape_id: str) -> ShapeEntry | None:
        """The shape's last incarnation if it has ended; ``None`` if it is live, or there was none."""
        return self._removed.get(shape_id)

    def has_begun(self, definition: ShapeDefinition) -> bool:
        entry = self._live.get(definition.id)
        return entry is not None and entry.definition.incarnation >= definition.incarnation

    def is_live(self, shape_id: str) -> bool:
        """Whether the shape exists and changes are routed to it."""
        return shape_id in self._live

    @property
    def dependencies(self) -> Mapping[str, tuple[str, ...]]:
        """The live shapes that depend on others, with their live dependencies. O(these shapes)."""
        return {
            shape_id: tuple(filter(self.is_live, self._live[shape_id].definition.depends_on))
            for shape_id in self._dependent
        }

    @property
    def table_oids(self) -> Set[int]:
        return self._by_oid.keys()

    @property
    def live(self) -> tuple[ShapeEntry, ...]:
        return tuple(self._live.values())

    @property
    def removed(self) -> tuple[ShapeEntry, ...]:
        """The shapes that were removed or ended, permanently."""
        return tuple(self._removed.values())

    def condensable(self, lsn: int, defined: Set[str] | None) -> Iterator[ShapeEntry]:
        """The condensed entries of shapes removed before ``lsn`` whose entries in the topic are not condensed yet.

        An ended shape's definition is kept while the file still has the shape, or may have it, because the two are
        compared.
        """
        for shape_id in self._whole:
            entry = self._removed[shape_id]
            if entry.removed_at is None or entry.removed_at.tx_offset >= lsn:
                continue
            if entry.ended_because is None or (defined is not None and shape_id not in defined):
                yield entry.condensed()

    def compare(
        self,
        definitions: Iterable[ShapeDefinition],
        allow_removing: int = 0,
        faults: Collection[ShapeFault] = (),
    ) -> RegistryDiff:
        """Compare the registry with ``definitions``; changes nothing.

        ``faults`` are those of other entries of the file. A live shape whose entry has a fault is not changed. If the
        id of an entry cannot be read, no shape is removed, because it may be the id of any.

        Raises:
            ShapeError: more than half of the live shapes would be removed, and more than ``allow_removing``.
        """
        added, updated, ended, refused = [], [], [], []
        defined = {definition.id: definition for definition in definitions}
        for shape_id, definition in defined.items():
            entry = self._live.get(shape_id) or self._removed.get(shape_id)
            if entry is None or definition.incarnation > entry.definition.incarnation:
                added.append(definition)
            elif entry.is_condensed and entry.ended_because is not None:
                ended.append(entry)
            elif (error := _contradiction(entry, definition)) is not None:
                refused.append(ShapeFault(shape_id, error))
            elif entry.removed_at is not None:
                ended.append(entry)
            else:
                known = replace(entry.definition, depends_on=definition.depends_on, flush=definition.flush)
                if known != entry.definition:
                    updated.append(replace(entry, definition=known))
        live = [entry.definition.id for entry in self.live]
        kept = {fault.shape_id for fault in faults}
        removed = [shape_id for shape_id in live if shape_id not in defined and shape_id not in kept]
        if None in kept:
            removed = []
        if must_be_allowed(len(removed), len(live)) and len(removed) > allow_removing:
            raise ShapeError(_too_many(removed, len(live)))
        new_dependencies = {each.id: each.depends_on for each in (*added, *(entry.definition for entry in updated))}
        cyclic = self._cyclic(new_dependencies, frozenset(removed))
        for shape_id, cycle in cyclic.items():
            fact = f"depends_on has a cycle, with the dependencies that live shapes keep: {' → '.join(cycle)}"
            refused.append(ShapeFault(shape_id, ShapeError(f"{defined[shape_id].subject('depends_on')}: {fact}")))
        return RegistryDiff(
            tuple(each for each in added if each.id not in cyclic),
            tuple(entry for entry in updated if entry.definition.id not in cyclic),
            tuple(removed),
            tuple(ended),
            tuple(refused),
        )

    def _cyclic(self, changed: Mapping[str, Sequence[str]], removed: Set[str]) -> dict[str, tuple[str, ...]]:
        """The shapes whose new dependencies would close a cycle, each with the cycle.

        A file without a cycle may close one together with the old dependencies of a shape whose entry is refused.
        """
        if not any(changed.values()):
            return {}
        before = self.dependencies
        graph = {shape_id: others for shape_id, others in before.items() if shape_id not in removed} | dict(changed)
        found: dict[str, tuple[str, ...]] = {}
        while (cycle := dependency_cycle(graph)) and (new := set(cycle) & changed.keys() - found.keys()):
            for shape_id in new:
                found[shape_id] = cycle
                graph[shape_id] = before.get(shape_id, ())
        return found


def must_be_allowed(removed: int, live: int) -> bool:
    """Whether the shapes file must explicitly allow removing this many of the live shapes: it may have been
    truncated.
    """
    return 2 * removed > live


def _too_many(removed: Sequence[str], live: int) -> str:
    names = listed([repr(shape_id) for shape_id in sorted(removed)])
    return (
        f"the shapes file would remove {len(removed)} of the {live} live shapes, permanently: {names}. Complete the "
        f"file; or, if they are to be removed, add the line 'allow_removing: {len(removed)}' to it"
    )


def _contradiction(entry: ShapeEntry, definition: ShapeDefinition) -> ShapeError | None:
    """Why this definition contradicts the registered one; ``None`` if it does not."""
    known = entry.definition
    if definition.incarnation < known.incarnation:
        return ShapeError(
            f"{definition.subject('incarnation')} has incarnation {definition.incarnation}, but {known.incarnation} "
            f"has begun; one that has ended does not return, so define incarnation {known.incarnation}"
        )
    if entry.removed_at is not None and entry.ended_because is None:
        return ShapeError(
            f"{definition.subject('id')} was removed at {entry.removed_at}; an id is never used twice, so use a new "
            "one, or begin the shape again with flushtracker resync"
        )
    # Values that the definition omits were filled in at registration, from the catalog or by default.
    differs = [
        name
        for name in ("table", "columns", "where", "replica", "writer")
        if getattr(known, name) != getattr(definition, name)
    ]
    if definition.primary_key is not None and definition.primary_key != known.primary_key:
        differs.append("primary_key")
    if definition.snapshot not in {None, known.snapshot}:
        differs.append("snapshot")
    if not differs:
        return None
    return ShapeError(
        f"{definition.subject(differs[0])} differs from its registered definition in {' and '.join(differs)}; a "
        "changed definition needs a new id, or flushtracker resync, by which the shape begins again"
    )
