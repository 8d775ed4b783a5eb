"""The entries of the ``shapes`` topic, the registry: every shape of a source, past and present, its start and its end.

The topic is compacted: an entry replaces the previous one with the same key. An entry of type ``shape`` holds a shape's
definition. The entry of type ``source`` is capture's own record that a source exists and where it starts. Parsing is
as strict as in :mod:`flushtracker.events.stream_events`.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from flushtracker.errors import START_ANEW, DecodeError
from flushtracker.events.shape_definition_json import definition_json, parse_definition
from flushtracker.events.strict_json import (
    absent_or_integer,
    dump_event,
    get_field,
    incarnation_field,
    incarnation_json,
    integer_field,
    integers_field,
    load_event,
    name_field,
    objects_field,
    offset_field,
    offset_json,
    optional_integer,
    optional_text,
    strings_field,
    text_field,
    typed_field,
    writer_field,
    writer_json,
)
from flushtracker.events.table_binding_json import (
    parse_partition_binding,
    parse_table_binding,
    partition_binding_json,
    table_binding_json,
)
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.table_binding import PartitionBinding, TableBinding
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.source_name import SourceName
from flushtracker.wal.timeline_history import TimelineHistory

_ENDS: Final = ("fragments", "shape_changes")
"""The streams of which a claim has the ends."""

_SOURCE: Final = b'"source"'

NO_TABLE: Final = ("", "")
"""Of a shape of which little more is kept than its id."""


BEGUN_AGAIN: Final = "it was begun again, by a greater incarnation in the shapes file"
"""Why a live shape has ended whose next incarnation follows at once."""


@dataclass(frozen=True, slots=True)
class ShapeEntry:
    """One shape of a source, from its first transaction to its last.

    Nothing at or below ``starts_after.tx_offset`` is ever routed to it, and nothing after ``removed_at``. The
    ``definition`` is complete: it includes the primary key found in the catalog, and states ``snapshot``. ``table_oid``
    is the OID of its table, 0 without a catalog. ``ended_because`` is the reason why capture had to end the shape,
    ``None`` if the user removed it; ``evicted_at_ms`` when that was, if it ended the shape by the policy of ``evict``
    although it could be delivered, or of a live shape, when it so ended the incarnation before. ``starts_visible``:
    every MVCC snapshot taken on the server from now on contains every transaction at or below ``starts_after``.

    ``earlier_writers``: the other writers of earlier incarnations, whose flushes the tracking job may still wait for.

    ``is_condensed``: of a removed shape only the id, the writer, the end and its reason are kept, as the slot is
    confirmed past its end, and its flushes are deleted.
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
        """All that have written an incarnation of it, its own first."""
        return (self.definition.writer, *self.earlier_writers)

    @property
    def table_oids(self) -> tuple[int, ...]:
        """The OIDs of all of its tables, its own first."""
        return tuple(dict.fromkeys((self.table_oid, *(inner.table_oid for inner in self.definition.inner_tables))))

    def condensed(self) -> "ShapeEntry":
        """What is kept of a removed shape once nothing needs its definition."""
        return _condensed(
            *(self.source, self.definition.id, self.definition.incarnation, self.definition.writer),
            *(self.removed_at, self.ended_because, self.evicted_at_ms),
        )

    def to_json(self) -> str:
        # Only an evicted shape's entry has the key.
        evicted = {} if self.evicted_at_ms is None else {"evicted_at_ms": self.evicted_at_ms}
        if self.is_condensed:
            return dump_event(
                self.source,
                type="removed_shape",
                shape_id=self.definition.id,
                **incarnation_json(self.definition.incarnation),
                **writer_json(self.definition.writer),
                removed_at=None if self.removed_at is None else offset_json(self.removed_at),
                ended_because=self.ended_because,
                **evicted,
            )
        return dump_event(
            self.source,
            type="shape",
            shape_id=self.definition.id,
            definition=definition_json(self.definition),
            table_oid=self.table_oid,
            starts_after=offset_json(self.starts_after),
            removed_at=None if self.removed_at is None else offset_json(self.removed_at),
            ended_because=self.ended_because,
            starts_visible=self.starts_visible,
            **evicted,
            # Only a shape that has changed hands has the key.
            **({"earlier_writers": self.earlier_writers} if self.earlier_writers else {}),
        )


def _condensed(  # noqa: PLR0913, PLR0917  what is kept of an entry
    source: str,
    shape_id: str,
    incarnation: int,
    writer: str,
    removed_at: LogOffset | None,
    ended_because: str | None,
    evicted_at_ms: int | None,
) -> ShapeEntry:
    definition = ShapeDefinition(shape_id, NO_TABLE, incarnation=incarnation, writer=writer)
    start = LogOffset.before_all()
    return ShapeEntry(
        *(source, definition, 0, start, removed_at, ended_because),
        evicted_at_ms=evicted_at_ms,
        is_condensed=True,
    )


@dataclass(frozen=True, slots=True)
class TableEntry:
    """A table of the source's shapes, as it was when their logs were last known to match it.

    Its partitions are in entries of their own, so that none is too large, and a new partition does not republish all
    others.
    """

    source: str
    binding: TableBinding

    def to_json(self) -> str:
        return dump_event(
            self.source, type="table", table_oid=self.binding.oid, binding=table_binding_json(self.binding)
        )


@dataclass(frozen=True, slots=True)
class PartitionEntry:
    """A partition that a table has or had.

    ``joined``: the commit LSN of the first transaction that changed the partition, before which it had no rows; 0 if it
    may have had rows from the start; ``None`` if nothing has changed it yet. ``left_at``: the end of the WAL when it
    was found to be dropped or detached. ``lost_with``: the commit LSN of the first transaction from there on, with
    which the table's shapes lose its rows; ``None`` if that has yet to arrive, 0 if the table had no live shapes.
    ``empty_at``: the end of the WAL when it was found to be empty, if it was a table of its own before: whether an
    earlier transaction has changed it as the table's partition is not known.
    """

    source: str
    table_oid: int
    binding: PartitionBinding
    joined: int | None
    left_at: int | None = None
    lost_with: int | None = None
    empty_at: int | None = None

    def to_json(self) -> str:
        lost_with = {} if self.lost_with is None else {"lost_with": self.lost_with}
        empty_at = {} if self.empty_at is None else {"empty_at": self.empty_at}
        return dump_event(
            self.source,
            type="partition",
            table_oid=self.table_oid,
            binding=partition_binding_json(self.binding),
            joined=self.joined,
            left_at=self.left_at,
            **lost_with,
            **empty_at,
        )


def bound_now(base: TableBinding, partitions: Iterable[PartitionEntry]) -> TableBinding:
    """A table's binding: that of its own entry, with the partitions that it has."""
    found = {entry.binding.oid: entry.binding for entry in partitions if entry.left_at is None}
    return replace(base, partitions=tuple(found[oid] for oid in sorted(found)))


@dataclass(frozen=True, slots=True)
class SourceEntry:
    """The start of a source: its first fragment follows ``starts_after``.

    ``publication`` identifies the publication as it was last seen; it changes whenever the publication is altered.
    ``routing`` is the version of the rules by which it is routed (:mod:`flushtracker.shapes.routing_version`).
    ``history``: the timelines of the server on which it is captured. ``holder``: the token of the capture that has
    claimed the source (:mod:`flushtracker.capture.publish_fence`), and ``published_lsn`` the greatest LSN that was
    published before the claim, -1 if nothing was. ``ends`` has the Kafka offsets of the ends of the partitions, of
    fragments and of shape changes, from before that was read.
    ``claimed``: the timelines to which the holder takes the source over, until they are its ``history``. A server that
    is not on them does not continue the source. ``system_id``: the identifier of the server on which it is captured, if
    that is not the one in its name, as after a major upgrade. ``earlier_timelines`` is then the sum of the timelines on
    which the servers before were left. ``sealed``: the token of the seal with which its server may be upgraded
    (:mod:`flushtracker.postgres.upgrade_seal`), until that is captured again.
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
        """The system identifier of the server on which the source is captured; ``None`` if nothing tells it."""
        name = SourceName.parse(self.source)
        return self.system_id or (None if name is None else name.system_id)

    def unclaimed(self) -> "SourceEntry":
        """The entry without its claim."""
        return replace(self, holder=None, published_lsn=None, ends=None, claimed=None)

    def to_json(self) -> str:
        keys = dict[str, Any]()
        if self.history is not None:
            keys |= _history_json(self.history)
        if self.holder is not None:
            keys["holder"] = self.holder
        if self.published_lsn is not None:
            keys["published_lsn"] = self.published_lsn
        if self.ends is not None:
            keys["ends"] = dict(zip(_ENDS, map(list, self.ends), strict=True))
        if self.claimed is not None:
            keys["claimed"] = _history_json(self.claimed)
        if self.system_id is not None:
            keys["system_id"] = self.system_id
        if self.earlier_timelines:
            keys["earlier_timelines"] = self.earlier_timelines
        if self.sealed is not None:
            keys["sealed"] = self.sealed
        return dump_event(
            self.source,
            type="source",
            starts_after=offset_json(self.starts_after),
            publication=self.publication,
            routing=self.routing,
            **keys,
        )


RegistryEntry: TypeAlias = ShapeEntry | TableEntry | PartitionEntry | SourceEntry


def _ends(fields: dict[str, Any]) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    if "ends" not in fields:
        return None
    ends = typed_field(fields, "ends", dict)
    fragments, shape_changes = (integers_field(ends, stream, 0) for stream in _ENDS)
    return fragments, shape_changes


def _history_json(history: TimelineHistory) -> dict[str, Any]:
    switches = [{"timeline": timeline, "lsn": lsn} for timeline, lsn in history.switches]
    return {"timeline": history.timeline, "switches": switches}


def _claimed(fields: dict[str, Any]) -> TimelineHistory | None:
    if "claimed" not in fields:
        return None
    claimed = typed_field(fields, "claimed", dict)
    return _history({"timeline": None, "switches": None, **claimed})


def _history(fields: dict[str, Any]) -> TimelineHistory | None:
    """The history of the server's timelines, if the entry has it."""
    if "timeline" not in fields and "switches" not in fields:
        return None
    switches = tuple(
        (integer_field(switch, "timeline", 1), integer_field(switch, "lsn", 0))
        for switch in objects_field(fields, "switches")
    )
    try:
        return TimelineHistory(integer_field(fields, "timeline", 1), switches)
    except ValueError as error:
        raise DecodeError(str(error)) from error


def is_source_entry(value: bytes, source: str | None = None) -> bool:
    """Whether a registry entry is that of a source, or of ``source``; others are not parsed.

    Raises:
        DecodeError: it may be one, but is not JSON.
    """
    # Every entry has the key; that of a source has the text as its type, too.
    if value.count(_SOURCE) < 2:
        return False
    try:
        found = json.loads(value)
    except ValueError as error:
        raise DecodeError(f"the registry has an entry that is not JSON: {error}") from error
    is_one = isinstance(found, dict) and found.get("type") == "source"
    return is_one and source in (None, found.get("source"))


def parse_registry_entry(text: str | bytes) -> RegistryEntry:
    """Parse one entry; raises ``DecodeError``."""
    fields = load_event(text, "registry entry")
    kind = typed_field(fields, "type", str)
    source = name_field(fields, "source")
    if kind == "table":
        return TableEntry(source, parse_table_binding(typed_field(fields, "binding", dict)))
    if kind == "partition":
        return PartitionEntry(
            source,
            integer_field(fields, "table_oid", 1),
            parse_partition_binding(typed_field(fields, "binding", dict)),
            joined=optional_integer(fields, "joined", 0),
            left_at=optional_integer(fields, "left_at", 0),
            lost_with=absent_or_integer(fields, "lost_with"),
            empty_at=absent_or_integer(fields, "empty_at"),
        )
    if kind == "removed_shape":
        return _condensed(
            source,
            name_field(fields, "shape_id"),
            incarnation_field(fields),
            writer_field(fields),
            offset_field(fields, "removed_at"),
            optional_text(fields, "ended_because"),
            absent_or_integer(fields, "evicted_at_ms"),
        )
    starts_after = offset_field(fields, "starts_after", least_tx_offset=-1)
    if kind == "source":
        if "routing" not in fields:
            raise DecodeError(
                f"the entry of source {source} has no routing: a version before 0.1.0 wrote it; {START_ANEW}"
            )
        routing = integer_field(fields, "routing", 1)
        return SourceEntry(
            *(source, starts_after, text_field(fields, "publication"), routing, _history(fields)),
            holder=text_field(fields, "holder") if "holder" in fields else None,
            published_lsn=integer_field(fields, "published_lsn", -1) if "published_lsn" in fields else None,
            ends=_ends(fields),
            claimed=_claimed(fields),
            system_id=name_field(fields, "system_id") if "system_id" in fields else None,
            earlier_timelines=integer_field({"earlier_timelines": 0, **fields}, "earlier_timelines", 0),
            sealed=name_field(fields, "sealed") if "sealed" in fields else None,
        )
    if kind != "shape":
        raise DecodeError(f"type is {kind!r:.40}, expected 'shape', 'removed_shape', 'table', 'partition' or 'source'")
    definition = typed_field(fields, "definition", dict)
    return ShapeEntry(
        source=source,
        definition=parse_definition(name_field(fields, "shape_id"), definition),
        table_oid=integer_field(fields, "table_oid", 0),
        starts_after=starts_after,
        removed_at=None if get_field(fields, "removed_at") is None else offset_field(fields, "removed_at"),
        ended_because=optional_text(fields, "ended_because"),
        starts_visible=typed_field(fields, "starts_visible", bool),
        evicted_at_ms=absent_or_integer(fields, "evicted_at_ms"),
        earlier_writers=tuple(
            writer_field({"writer": name})
            for name in strings_field({"earlier_writers": [], **fields}, "earlier_writers")
        ),
    )
