"""Which shapes need a snapshot, according to the registry table and the shape log."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from flushtracker.errors import ConfigError, ShapeEndedError
from flushtracker.events.registry import Registry
from flushtracker.events.registry_events import ShapeEntry
from flushtracker.shape_log.shape_snapshot import ShapeKey
from flushtracker.shapes.table_binding import TableBinding
from flushtracker.wal.names import LOG_WRITER
from flushtracker.wal.source_name import SourceName, successors

SHAPES_PER_ATTEMPT: Final = 500
"""With more shapes, one pass over the table instead of two saves little, because each row is tested against all
conditions.
"""

_CHARACTERS_PER_ATTEMPT: Final = 500_000
"""Limits the conditions, which the server parses again for each range."""


@dataclass(frozen=True, slots=True)
class DueTable:
    """Shapes of one source on one table; ``table`` is the registry's entry.

    Shapes with subqueries are grouped with those that read the same ``inner`` tables. ``server`` is the system
    identifier and timeline on which the source is captured, if they differ from its name; ``earlier_timelines`` is from
    the source's entry.
    """

    source: str
    table: TableBinding
    shapes: tuple[ShapeEntry, ...]
    server: str | None = None
    earlier_timelines: int = 0
    inner: tuple[TableBinding, ...] = ()

    @property
    def slot(self) -> str:
        """The slot from which the source is captured; empty if its name does not have it."""
        name = SourceName.parse(self.source)
        return "" if name is None else name.slot

    @property
    def oids(self) -> frozenset[int]:
        """Those of its tables and their partitions, as recorded."""
        tables = (self.table, *self.inner)
        return frozenset(oid for table in tables for oid in (table.oid, *(each.oid for each in table.partitions)))

    @property
    def source_now(self) -> str:
        """The source, named by the timeline on which it is now captured."""
        return self.source if self.server is None else f"{self.server}/{self.slot}"

    def without(self, is_left_out: Callable[[str], bool]) -> "DueTable":
        return replace(self, shapes=tuple(each for each in self.shapes if not is_left_out(each.definition.id)))

    def divided(self, most: int) -> tuple["DueTable", "DueTable"]:
        """The first shapes, to be read in one attempt, at least one and at most ``most``; and the others."""
        count = characters = 0
        for entry in self.shapes[:most]:
            characters += len(entry.definition.where or "")
            if count and characters > _CHARACTERS_PER_ATTEMPT:
                break
            count += 1
        return replace(self, shapes=self.shapes[:count]), replace(self, shapes=self.shapes[count:])


@dataclass(frozen=True, slots=True)
class DueShapes:
    """``tables`` has each table, or set of tables, once.

    ``waiting``: the shapes that capture has not yet declared ``starts_visible``. ``locked``: the OIDs of the database's
    tables that nobody can read now.
    """

    tables: tuple[DueTable, ...]
    waiting: tuple[str, ...]
    locked: frozenset[int] = frozenset()


def due_shapes(
    registry: Registry,
    taken: Mapping[ShapeKey, int],
    server: str,
    shape_ids: Collection[str] = (),
    again: Collection[str] = (),
    takes: Callable[[str], bool] = LOG_WRITER.__eq__,
) -> DueShapes:
    """The shapes of this server whose incarnation has no snapshot, or should get one ``again``.

    Only shapes of writers whose snapshots the store ``takes``; with ``shape_ids``, only these shapes.
    """
    tables, waiting = defaultdict[tuple[str, tuple[int, ...]], list[ShapeEntry]](list), list[str]()
    for entry in _shapes(registry, server):
        shape_id = entry.definition.id
        if not takes(entry.definition.writer):
            continue
        has_one = taken.get((entry.source, shape_id), 0) >= entry.definition.incarnation
        if (shape_ids and shape_id not in shape_ids) or (has_one and shape_id not in again):
            continue
        if entry.starts_visible and registry.tables_of(entry) is not None:
            own, *inner = entry.table_oids
            tables[entry.source, (own, *sorted(inner))].append(entry)
        else:
            waiting.append(shape_id)
    return DueShapes(tuple(_groups(registry, tables, server)), tuple(waiting))


def require_known(
    registry: Registry, server: str, shape_ids: Sequence[str], takes: Callable[[str], bool] = LOG_WRITER.__eq__
) -> None:
    """Check the shapes named by a user.

    Raises:
        ShapeEndedError: one was removed or has ended.
    """
    replaced = successors({source for source, _, _ in registry.entries})
    known = {entry.definition.id: entry.definition.writer for entry in _shapes(registry, server)}
    for shape_id in shape_ids:
        if shape_id in known:
            _require_taken(shape_id, known[shape_id], takes)
            continue
        entries = [registry.shape(source, shape_id) for source in registry.sources_of(shape_id)]
        of_server = [entry for entry in entries if entry is not None and registry.server_of(entry.source) == server]
        if not of_server:
            raise ConfigError(f"the registry has no shape {shape_id} of server {server}; check its id, and postgres")
        current = [entry for entry in of_server if entry.source not in replaced]
        if not current:
            before = of_server[-1].source
            raise ConfigError(
                f"shape {shape_id} is one of source {before}, which {replaced[before]} has replaced, and that has no "
                "such shape; check the shapes file, and that capture runs"
            )
        for entry in current:
            if entry.removed_at is not None:
                how = "was removed by its owner" if entry.ended_because is None else f"ended: {entry.ended_because}"
                raise ShapeEndedError(f"shape {shape_id} of source {entry.source} {how}, so it needs no snapshot")
        raise ConfigError(f"shape {shape_id} has snapshot: false; set snapshot: true, and run flushtracker resync")


def _require_taken(shape_id: str, writer: str, takes: Callable[[str], bool]) -> None:
    if takes(writer):
        return
    remedy = (
        "run flushtracker snapshot with snapshot.into: log"
        if writer == LOG_WRITER
        else "run flushtracker snapshot with snapshot.into: kafka, which publishes them"
    )
    raise ConfigError(f"shape {shape_id} has the writer {writer!r}, whose snapshots do not go here: {remedy}")


def _shapes(registry: Registry, server: str) -> Iterator[ShapeEntry]:
    """The live shapes of the server that have, or will have, a snapshot; not of a source that another has replaced.

    The logs of such a source are history: today's rows do not follow from its changes.
    """
    replaced = successors({source for source, _, _ in registry.entries})
    for entry in registry.entries.values():
        if not isinstance(entry, ShapeEntry) or entry.removed_at is not None or entry.source in replaced:
            continue
        if entry.definition.snapshot and registry.server_of(entry.source) == server:
            yield entry


def _groups(
    registry: Registry, tables: Mapping[tuple[str, tuple[int, ...]], list[ShapeEntry]], server: str
) -> Iterator[DueTable]:
    for (source, _), entries in sorted(tables.items()):
        entries.sort(key=lambda entry: entry.definition.id)
        own, *inner = registry.tables_of(entries[0]) or ()
        yield DueTable(source, own, tuple(entries), server, registry.earlier_timelines(source), tuple(inner))
