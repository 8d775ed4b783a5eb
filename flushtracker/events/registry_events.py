"""The entries of the ``shapes`` topic, the registry: every shape of a source, past and present, its start and its end.

The topic is compacted: an entry replaces the previous one with the same key. An entry of type ``shape`` holds a shape's
definition. The entry of type ``source`` is capture's own record that a source exists and where it starts. Parsing is
as strict as in :mod:`flushtracker.events.stream_events`.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from msgspec import DecodeError as MalformedError
from msgspec import Struct, convert
from msgspec.json import decode

from flushtracker.errors import START_ANEW, DecodeError
from flushtracker.events import structs
from flushtracker.events.event_json import EventReader, dump_json
from flushtracker.events.stream_events import offset_of, written_writer
from flushtracker.events.structs import VERSION
from flushtracker.shapes.definition import FlushPolicy, InnerTable, ShapeDefinition
from flushtracker.shapes.table_binding import PartitionBinding, TableBinding
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.source_name import SourceName
from flushtracker.wal.timeline_history import TimelineHistory

_ENTRIES: Final = EventReader[structs.Entry]("registry entry", structs.Entry)  # type: ignore[arg-type]
_SOURCE: Final = b'"source"'

NO_TABLE: Final = ("", "")
"""The table of a condensed entry, which has little more than an id."""


BEGUN_AGAIN: Final = "it was begun again, by a greater incarnation in the shapes file"
"""Why a live shape ended whose next incarnation follows at once."""


@dataclass(frozen=True, slots=True)
class ShapeEntry:
    """One shape of a source, from its first transaction to its last.

    Nothing at or below ``starts_after.tx_offset`` is ever routed to it, and nothing after ``removed_at``. The
    ``definition`` is complete: it includes the primary key found in the catalog, and states ``snapshot``. ``table_oid``
    is the OID of its table, 0 without a catalog. ``ended_because`` is the reason why capture had to end the shape,
    ``None`` if the user removed it. ``evicted_at_ms`` is when the ``evict`` policy ended the shape, or the previous
    incarnation of a live one. With ``starts_visible``, every MVCC snapshot taken on the server from now on contains
    every transaction at or below ``starts_after``.

    ``earlier_writers`` are the other writers of earlier incarnations, whose flushes the tracking job may still expect.

    A removed shape ``is_condensed`` to the id, the writer, the end and its reason once the slot is confirmed past its
    end and its flushes are deleted.
    """

    source: str
    definition: ShapeDefinition
    table_oid: int
    starts_after: LogOffset
    removed_at: LogOffset | None = None
    ended_because: str | None = None
    starts_visible: bool = False
    evicted_at_ms: int | None = None
    is_condensed: bool = False
    earlier_writers: tuple[str, ...] = ()

    @property
    def writers(self) -> tuple[str, ...]:
        """The writers of all incarnations, the current one first."""
        return (self.definition.writer, *self.earlier_writers)

    @property
    def table_oids(self) -> tuple[int, ...]:
        """The OIDs of all tables of the shape, its own first."""
        return tuple(dict.fromkeys((self.table_oid, *(inner.table_oid for inner in self.definition.inner_tables))))

    def condensed(self) -> "ShapeEntry":
        """A removed shape's entry once nothing needs its definition."""
        definition = self.definition
        return replace(
            self,
            definition=_condensed(definition.id, definition.incarnation, definition.writer),
            table_oid=0,
            starts_after=LogOffset.before_all(),
            starts_visible=False,
            is_condensed=True,
            earlier_writers=(),
        )

    def to_json(self) -> str:
        definition, removed_at = self.definition, self.removed_at
        if self.is_condensed:
            if removed_at is None:
                raise ValueError(f"shape {definition.id!r} is not removed")
            removed = structs.RemovedShape(
                v=VERSION,
                source=self.source,
                shape_id=definition.id,
                incarnation=definition.incarnation,
                writer=written_writer(definition.writer),
                removed_at=structs.Offset(*removed_at),
                ended_because=self.ended_because,
                evicted_at_ms=self.evicted_at_ms,
            )
            return dump_json(removed)
        entry = structs.Shape(
            v=VERSION,
            source=self.source,
            shape_id=definition.id,
            definition=_definition_json(definition),
            table_oid=self.table_oid,
            starts_after=structs.Link(*self.starts_after),
            removed_at=None if removed_at is None else structs.Offset(*removed_at),
            ended_because=self.ended_because,
            starts_visible=self.starts_visible,
            evicted_at_ms=self.evicted_at_ms,
            earlier_writers=self.earlier_writers,
        )
        return dump_json(entry)


def _condensed(shape_id: str, incarnation: int, writer: str) -> ShapeDefinition:
    return ShapeDefinition(shape_id, NO_TABLE, incarnation=incarnation, writer=writer)


@dataclass(frozen=True, slots=True)
class TableEntry:
    """A table of the source's shapes, as it was when their logs were last known to match it.

    Its partitions have their own entries, so that no entry is too large and a new partition does not republish the
    others.
    """

    source: str
    binding: TableBinding

    def to_json(self) -> str:
        binding = convert(self.binding, structs.TableBinding, from_attributes=True)
        return dump_json(structs.Table(VERSION, self.source, self.binding.oid, binding))


@dataclass(frozen=True, slots=True)
class PartitionEntry:
    """A partition that a table has or had.

    ``joined`` is the commit LSN of the first transaction that changed the partition, before which it had no rows; 0 if
    it may have had rows from the start; ``None`` if nothing has changed it yet. ``left_at`` is the end of the WAL when
    it was found to be dropped or detached. ``lost_with`` is the commit LSN of the first transaction after that, with
    which the table's shapes lose its rows; ``None`` if it has not arrived yet, 0 if the table had no live shapes.
    ``empty_at`` is the end of the WAL when the partition was found to be empty, if it was a table of its own before;
    earlier changes to it may predate its attachment.
    """

    source: str
    table_oid: int
    binding: PartitionBinding
    joined: int | None
    left_at: int | None = None
    lost_with: int | None = None
    empty_at: int | None = None

    def is_lost_before(self, lsn: int) -> bool:
        """Whether the table has lost it with a transaction that commits below ``lsn``."""
        return self.left_at is not None and self.lost_with is not None and self.lost_with < lsn

    def to_json(self) -> str:
        binding = convert(self.binding, structs.PartitionBinding, from_attributes=True)
        times = self.joined, self.left_at, self.lost_with, self.empty_at
        return dump_json(structs.Partition(VERSION, self.source, self.table_oid, binding, *times))


def bound_now(base: TableBinding, partitions: Iterable[PartitionEntry]) -> TableBinding:
    """A table's binding with its current partitions."""
    found = {entry.binding.oid: entry.binding for entry in partitions if entry.left_at is None}
    return replace(base, partitions=tuple(found[oid] for oid in sorted(found)))


@dataclass(frozen=True, slots=True)
class SourceEntry:
    """The start of a source: its first fragment follows ``starts_after``.

    ``publication`` identifies the publication as it was last seen; it changes whenever the publication is altered.
    ``routing`` is the version of the rules by which it is routed (:mod:`flushtracker.shapes.routing_version`).
    ``history`` has the timelines of the server on which it is captured. ``holder`` is the token of the capture that has
    claimed the source (:mod:`flushtracker.capture.source.publish_fence`), and ``published_lsn`` the greatest LSN
    published before the claim, -1 for none. ``ends`` has the end offsets of the Kafka partitions of fragments and of
    shape changes, taken before ``published_lsn`` was read. ``claimed`` has the timelines to which the holder takes the
    source over, until they become its ``history``; a server that is not on them does not continue the source.
    ``system_id`` is the identifier of the server on which it is captured, if it differs from the one in its name, as
    after a major upgrade; ``earlier_timelines`` is then the sum of the last timelines of the servers before. ``sealed``
    is the token of the seal with which its server may be upgraded (:mod:`flushtracker.postgres.upgrade_seal`), until it
    is captured again.
    """

    source: str
    starts_after: LogOffset
    publication: str
    routing: int = 1
    history: TimelineHistory | None = None
    holder: str | None = None
    published_lsn: int | None = None
    ends: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    claimed: TimelineHistory | None = None
    system_id: str | None = None
    earlier_timelines: int = 0
    sealed: str | None = None

    @property
    def server_id(self) -> str | None:
        """The system identifier of the server on which the source is captured; ``None`` if unknown."""
        name = SourceName.parse(self.source)
        return self.system_id or (None if name is None else name.system_id)

    def unclaimed(self) -> "SourceEntry":
        return replace(self, holder=None, published_lsn=None, ends=None, claimed=None)

    def to_json(self) -> str:
        entry = structs.Source(
            v=VERSION,
            source=self.source,
            starts_after=structs.Link(*self.starts_after),
            publication=self.publication,
            routing=self.routing,
            history=_history_json(self.history),
            holder=self.holder,
            published_lsn=self.published_lsn,
            ends=None if self.ends is None else structs.Ends(*self.ends),
            claimed=_history_json(self.claimed),
            system_id=self.system_id,
            earlier_timelines=self.earlier_timelines,
            sealed=self.sealed,
        )
        return dump_json(entry)


RegistryEntry: TypeAlias = ShapeEntry | TableEntry | PartitionEntry | SourceEntry


def is_source_entry(value: bytes, source: str | None = None) -> bool:
    """Whether a registry entry is a source's, or that of ``source``; most others are not parsed.

    Raises:
        DecodeError: it may be one, but is not JSON.
    """
    # Every entry has the key "source"; a source's also has it as the type.
    if value.count(_SOURCE) < 2:
        return False
    try:
        found = decode(value)
    except (MalformedError, UnicodeError, RecursionError) as error:
        raise DecodeError(f"the registry has an entry that is not JSON: {error}") from error
    is_one = isinstance(found, dict) and found.get("type") == "source"
    return is_one and source in (None, found.get("source"))


def parse_registry_entry(text: str | bytes) -> RegistryEntry:
    """Parse one entry; raises ``DecodeError``."""
    try:
        found = _ENTRIES.read(text)
    except DecodeError as error:
        if not str(error).endswith("missing required field `routing`"):
            raise
        raise DecodeError(f"{error}: a version before 0.1.0 wrote the source's entry; {START_ANEW}") from error
    match found:
        case structs.Table():
            binding = convert(found.binding, TableBinding, from_attributes=True)
            return TableEntry(found.source, binding)
        case structs.Partition():
            partition = convert(found.binding, PartitionBinding, from_attributes=True)
            times = found.joined, found.left_at, found.lost_with, found.empty_at
            return PartitionEntry(found.source, found.table_oid, partition, *times)
        case structs.RemovedShape():
            return ShapeEntry(
                source=found.source,
                definition=_condensed(found.shape_id, found.incarnation, found.writer),
                table_oid=0,
                starts_after=LogOffset.before_all(),
                removed_at=offset_of(found.removed_at),
                ended_because=found.ended_because,
                evicted_at_ms=found.evicted_at_ms,
                is_condensed=True,
            )
        case structs.Source():
            return _source(found)
        case structs.Shape():
            return ShapeEntry(
                source=found.source,
                definition=_definition(found.shape_id, found.definition),
                table_oid=found.table_oid,
                starts_after=offset_of(found.starts_after),
                removed_at=None if found.removed_at is None else offset_of(found.removed_at),
                ended_because=found.ended_because,
                starts_visible=found.starts_visible,
                evicted_at_ms=found.evicted_at_ms,
                earlier_writers=found.earlier_writers,
            )


def _source(found: structs.Source) -> SourceEntry:
    return SourceEntry(
        source=found.source,
        starts_after=offset_of(found.starts_after),
        publication=found.publication,
        routing=found.routing,
        history=_history(found.history),
        holder=found.holder,
        published_lsn=found.published_lsn,
        ends=None if found.ends is None else (found.ends.fragments, found.ends.shape_changes),
        claimed=_history(found.claimed),
        system_id=found.system_id,
        earlier_timelines=found.earlier_timelines,
        sealed=found.sealed,
    )


def _history_json(history: TimelineHistory | None) -> structs.History | None:
    if history is None:
        return None
    return structs.History(history.timeline, tuple(structs.Switch(*switch) for switch in history.switches))


def _history(history: structs.History | None) -> TimelineHistory | None:
    if history is None:
        return None
    try:
        return TimelineHistory(history.timeline, tuple((each.timeline, each.lsn) for each in history.switches))
    except ValueError as error:
        raise DecodeError(str(error)) from error


def _definition_json(definition: ShapeDefinition) -> structs.Definition:
    flush = definition.flush
    return structs.Definition(
        table=definition.table,
        columns=definition.columns,
        where=definition.where,
        replica=definition.replica,
        primary_key=definition.primary_key,
        partitions=definition.partitions,
        depends_on=definition.depends_on,
        flush=structs.FlushPolicy(flush.bytes, flush.interval_ms, flush.chunk_bytes),
        snapshot=bool(definition.snapshot),
        incarnation=definition.incarnation,
        writer=written_writer(definition.writer),
        keys_have_partitions=definition.keys_have_partitions,
        inner_tables=tuple(structs.InnerTable(**_fields(inner)) for inner in definition.inner_tables),
    )


def _definition(shape_id: str, found: structs.Definition) -> ShapeDefinition:
    fields = _fields(found)
    flush = FlushPolicy(**_fields(found.flush))
    inner = tuple(InnerTable(**_fields(each)) for each in found.inner_tables)
    return ShapeDefinition(**{**fields, "id": shape_id, "flush": flush, "inner_tables": inner})


def _fields(found: Struct | InnerTable) -> dict[str, Any]:
    names = found.__struct_fields__ if isinstance(found, Struct) else structs.InnerTable.__struct_fields__
    return {name: getattr(found, name) for name in names}
