"""The registry table: the entries of the topic ``shapes``, copied by the writer, so that readers need no Kafka.

The row of a (source, type, id) with the greatest ``written_at`` is current. ``written_at`` never goes back, even if the
clock does. Only changed entries are appended, and few ever change, so the table stays small.
"""

import logging
import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler

from flushtracker.delta.commits import Commits
from flushtracker.delta.compaction import compact
from flushtracker.delta.data_file import write_file
from flushtracker.delta.storage import missing_columns, storage_reason, table_rows
from flushtracker.delta.table_folder import TableFolder
from flushtracker.errors import DecodeError, SinkError
from flushtracker.events.registry_events import (
    PartitionEntry,
    RegistryEntry,
    ShapeEntry,
    SourceEntry,
    TableEntry,
    bound_now,
    parse_registry_entry,
)
from flushtracker.shapes.table_binding import TableBinding

logger = logging.getLogger(__name__)

COMPACT_EVERY: Final = 100
"""Versions of the table between two compactions."""

_COMPACTED_BYTES: Final = 64 << 20

SCHEMA: Final = pa.schema(
    [
        ("source", pa.string()),
        ("type", pa.string()),
        ("id", pa.string()),
        ("entry", pa.string()),
        ("written_at", pa.timestamp("us", tz="UTC")),
    ]
)
CONFIGURATION: Final = {
    "delta.checkpointInterval": "100",
    "delta.logRetentionDuration": "interval 1 hours",
    "delta.deletedFileRetentionDuration": "interval 1 hours",
}
_Key = tuple[str, str, str]
_STEP: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class WrittenEntry:
    """A registry entry, and when it was written to this table."""

    entry: RegistryEntry
    text: str
    written_at: datetime


@dataclass(frozen=True, slots=True)
class Registry:
    """The current entries."""

    entries: Mapping[_Key, WrittenEntry]
    partitions: Mapping[tuple[str, int], Sequence[PartitionEntry]] = field(default_factory=dict)
    """The entries of partitions, by the source and the OID of their table."""

    def sources_of(self, shape_id: str) -> set[str]:
        """The sources that have, or had, a shape with this id."""
        return {source for source, kind, name in self.entries if kind == "shape" and name == shape_id}

    def shape(self, source: str, shape_id: str) -> ShapeEntry | None:
        found = self.entries.get((source, "shape", shape_id))
        return found.entry if found is not None and isinstance(found.entry, ShapeEntry) else None

    def table_of(self, shape: ShapeEntry) -> TableBinding | None:
        """The shape's table, as it was when the shape was last correct on it."""
        found = self.entries.get((shape.source, "table", str(shape.table_oid)))
        if found is None or not isinstance(found.entry, TableEntry):
            return None
        return bound_now(found.entry.binding, self.partitions.get((shape.source, shape.table_oid), ()))

    def has_table_of(self, shape: ShapeEntry) -> bool:
        """Whether :meth:`table_of` has a table."""
        return (shape.source, "table", str(shape.table_oid)) in self.entries


class RegistryTable:
    """An open registry table; not thread-safe. Every storage failure is a ``SinkError``."""

    def __init__(self, uri: str, storage_options: Mapping[str, str] | None = None, *, create: bool = False) -> None:
        """Open the table at ``uri``, or with ``create`` create it; raises ``SinkError`` if there is none."""
        self.uri = uri
        self._options = dict(storage_options or {})
        self._commits = Commits()
        self._folder = TableFolder("registry table", "sink.shapes", uri, storage_options)
        try:
            self._table = (
                self._folder.open_or_create(SCHEMA, CONFIGURATION)
                if create
                else DeltaTable(uri, storage_options=self._options)
            )
            self._storage = DeltaStorageHandler(self._table.table_uri, self._options)
        except TableNotFoundError as error:
            raise SinkError(f"there is no registry table at {uri}; name the folder that is sink.shapes") from error
        except (DeltaError, OSError) as error:
            raise SinkError(f"registry table {uri} cannot be opened: {storage_reason(error)}") from error
        if missing := missing_columns(self._table, SCHEMA.names):
            raise SinkError(
                f"{uri} is a Delta table without the columns {missing}, so it is not a registry table; "
                "name the folder that is sink.shapes"
            )
        self._read_version = -1
        self._registry = Registry({})

    @staticmethod
    def exists(uri: str, storage_options: Mapping[str, str] | None = None) -> bool:
        try:
            return DeltaTable.is_deltatable(uri, dict(storage_options or {}))
        except (DeltaError, OSError) as error:
            raise SinkError(f"registry table {uri} cannot be opened: {storage_reason(error)}") from error

    def has_changed(self) -> bool:
        """Whether the table has another version than :meth:`entries` read last; raises ``SinkError``."""
        try:
            self._table.update_incremental()
        except (DeltaError, OSError) as error:
            raise SinkError(f"registry table {self.uri} cannot be read: {storage_reason(error)}") from error
        return self._table.version() != self._read_version

    def entries(self) -> Registry:
        """The current entries; reads rows only if the table has changed."""
        if not self.has_changed():
            return self._registry
        try:
            rows = table_rows(self._table, SCHEMA.names)
        except (DeltaError, OSError) as error:
            raise SinkError(f"registry table {self.uri} cannot be read: {storage_reason(error)}") from error
        found: dict[_Key, WrittenEntry] = {}
        for row in rows.sort_by("written_at").to_pylist():
            try:
                entry = parse_registry_entry(row["entry"])
            except DecodeError as error:
                raise DecodeError(
                    f"registry table {self.uri}: entry {row['type']} {row['id']} of source {row['source']}: {error}"
                ) from error
            found[row["source"], row["type"], row["id"]] = WrittenEntry(entry, row["entry"], row["written_at"])
        partitions = defaultdict[tuple[str, int], list[PartitionEntry]](list)
        for each in found.values():
            if isinstance(each.entry, PartitionEntry):
                partitions[each.entry.source, each.entry.table_oid].append(each.entry)
        self._registry, self._read_version = Registry(found, dict(partitions)), self._table.version()
        return self._registry

    def append(self, texts: Iterable[str], now: datetime) -> int:
        """Append the entries among ``texts`` that differ from the current ones, in one commit; returns their number.

        ``texts`` are entries as received, in their order, and ``now`` is in UTC.

        Raises:
            DecodeError: an entry cannot be read; then none is appended.
        """
        current = self.entries().entries
        changed: dict[_Key, WrittenEntry] = {}
        # Later than everything written before; the entries of this append are in the order received.
        written_at = max([now, *(each.written_at + _STEP for each in current.values())])
        for number, text in enumerate(texts):
            entry = parse_registry_entry(text)
            key = _key(entry)
            known = changed.pop(key, None) or current.get(key)
            written = WrittenEntry(entry, text, written_at + number * _STEP)
            if known is not None and isinstance(entry, ShapeEntry) and entry.is_condensed:
                written = _not_condensed(entry, known, written.written_at)
            if key not in current or current[key].text != written.text:
                changed[key] = written
        if not changed:
            return 0
        rows = [(*key, each.text, each.written_at) for key, each in changed.items()]
        table = pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], schema=SCHEMA)
        before = self._table.version()
        try:
            self._commits.commit(self._table, [write_file(self._storage, f"part-{uuid.uuid4().hex}.parquet", table)])
        except (DeltaError, OSError) as error:
            raise SinkError(f"registry table {self.uri} cannot be written: {storage_reason(error)}") from error
        if self._table.version() // COMPACT_EVERY > before // COMPACT_EVERY:
            self._compact()
        return len(changed)

    def _compact(self) -> None:
        """Merge small files, and delete replaced ones past the retention; a failure only costs time later."""
        try:
            compact(self._table, self._commits, self._options, _COMPACTED_BYTES)
            self._folder.delete_old_files(self._table)
        except (DeltaError, OSError, pa.ArrowException) as error:
            logger.warning("registry table not compacted uri=%s reason=%s", self.uri, storage_reason(error))


def _not_condensed(entry: ShapeEntry, known: WrittenEntry, now: datetime) -> WrittenEntry:
    """What is known of a shape that was removed, in place of its condensed entry: its readers may need the definition.

    If the removal itself was missed, it is that of the condensed entry.
    """
    if not isinstance(known.entry, ShapeEntry) or known.entry.removed_at is not None:
        return known
    removed = replace(
        known.entry,
        removed_at=entry.removed_at,
        ended_because=entry.ended_because,
        evicted_at_ms=entry.evicted_at_ms,
    )
    return WrittenEntry(removed, removed.to_json(), now)


def _key(entry: RegistryEntry) -> _Key:
    match entry:
        case ShapeEntry():
            return entry.source, "shape", entry.definition.id
        case TableEntry():
            return entry.source, "table", str(entry.binding.oid)
        case PartitionEntry():
            return entry.source, "partition", f"{entry.table_oid}/{entry.binding.oid}"
        case SourceEntry():
            return entry.source, "source", ""
