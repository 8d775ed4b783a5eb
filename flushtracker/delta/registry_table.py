"""The registry table: the entries of the topic ``shapes``, copied by the writer, so that readers need no Kafka.

The row of a (source, type, id) with the greatest ``written_at`` is current. ``written_at`` never goes back, even if the
clock does. Only changed entries are appended, and few ever change, so the table stays small.

Entries of tables and sources do not show which of two is later. So only the writer that started last may append
(:mod:`flushtracker.delta.fence`): a replaced one may still have older entries, and its clock may be ahead.

Once the table has the end of a shape, or its next incarnation, rows without it are ignored, wherever they are: a writer
that lost its checkpoint rereads old entries, and a replaced one may append late.
"""

import logging
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler

from flushtracker.delta.app_versions import AppVersions
from flushtracker.delta.commits import Commits
from flushtracker.delta.compaction import compact
from flushtracker.delta.data_file import write_file
from flushtracker.delta.fence import Fence
from flushtracker.delta.storage import asked, missing_columns, refresh, storage_reason, table_rows
from flushtracker.delta.table_folder import TableFolder
from flushtracker.delta.table_version import PROPERTY, VERSION, require_readable, require_version
from flushtracker.errors import DecodeError, SinkError
from flushtracker.events.registry import EntryKey, Registry, entry_key, goes_back
from flushtracker.events.registry_events import RegistryEntry, ShapeEntry, parse_registry_entry

logger = logging.getLogger(__name__)

COMPACT_EVERY: Final = 100

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
    PROPERTY: str(VERSION),
    "delta.checkpointInterval": "100",
    "delta.logRetentionDuration": "interval 1 hours",
    "delta.deletedFileRetentionDuration": "interval 1 hours",
}
_STEP: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class WrittenEntry:
    """A registry entry, and when it was written to this table."""

    entry: RegistryEntry
    text: str
    written_at: datetime


class RegistryTable:
    """An open registry table; not thread-safe. Raises ``SinkError`` for storage failures."""

    def __init__(self, uri: str, storage_options: Mapping[str, str] | None = None, *, create: bool = False) -> None:
        """Open the table at ``uri``, or with ``create`` create it; raises ``SinkError`` if there is none."""
        self.uri = uri
        self._options = dict(storage_options or {})
        self._commits, self._versions = Commits(), AppVersions()
        self._folder = TableFolder("registry table", "sink.shapes", uri, storage_options)
        try:
            self._table = (
                self._folder.open_or_create(SCHEMA, CONFIGURATION)
                if create
                else asked(uri, lambda: DeltaTable(uri, storage_options=self._options))
            )
            self._storage = DeltaStorageHandler(self._table.table_uri, self._options)
        except TableNotFoundError as error:
            raise SinkError(f"there is no registry table at {uri}; name the folder that is sink.shapes") from error
        except (DeltaError, OSError) as error:
            raise SinkError(f"registry table {uri} cannot be opened: {storage_reason(error)}") from error
        require_readable(self._table, "registry table", uri)
        if missing := missing_columns(self._table, SCHEMA.names):
            raise SinkError(
                f"{uri} is a Delta table without the columns {missing}, so it is not a registry table; "
                "name the folder that is sink.shapes"
            )
        require_version(self._table, "registry table", uri)
        self._fence = Fence(f"registry table {uri}", "writer", self._table, self._commits, self._versions)
        self._read_version = -1
        self._registry = Registry()
        self._written: Mapping[EntryKey, WrittenEntry] = {}
        self._written_us: frozenset[int] = frozenset()

    @staticmethod
    def exists(uri: str, storage_options: Mapping[str, str] | None = None) -> bool:
        try:
            return DeltaTable.is_deltatable(uri, dict(storage_options or {}))
        except (DeltaError, OSError) as error:
            raise SinkError(f"registry table {uri} cannot be opened: {storage_reason(error)}") from error

    def fence_others(self) -> None:
        """Fence all other writers, so that only this one can append; raises ``SinkError``."""
        self._refresh()
        before = self._table.version()
        self._fence.take()
        self._compact_if_due(before)

    def _refresh(self) -> None:
        try:
            refresh(self._table)
        except (DeltaError, OSError) as error:
            raise SinkError(f"registry table {self.uri} cannot be read: {storage_reason(error)}") from error

    def has_changed(self) -> bool:
        """Whether the table's version differs from the one that :meth:`entries` read last; raises ``SinkError``."""
        self._refresh()
        return self._table.version() != self._read_version

    def entries(self) -> Registry:
        """The current entries; reads rows only if the table has changed."""
        if not self.has_changed():
            return self._registry
        try:
            rows = table_rows(self._table, SCHEMA.names)
        except (DeltaError, OSError) as error:
            raise SinkError(f"registry table {self.uri} cannot be read: {storage_reason(error)}") from error
        found: dict[EntryKey, WrittenEntry] = {}
        for row in rows.sort_by("written_at").to_pylist():
            try:
                entry = parse_registry_entry(row["entry"])
            except DecodeError as error:
                # The error type distinguishes a valid entry of a newer release from a damaged one.
                raise type(error)(
                    f"registry table {self.uri}: entry {row['type']} {row['id']} of source {row['source']}: {error}"
                ) from error
            key = row["source"], row["type"], row["id"]
            if key not in found or not goes_back(entry, found[key].entry):
                found[key] = WrittenEntry(entry, row["entry"], row["written_at"])
        self._registry, self._written = Registry.of(each.entry for each in found.values()), found
        self._written_us = frozenset(rows["written_at"].cast(pa.int64()).to_pylist())
        self._read_version = self._table.version()
        return self._registry

    @property
    def table_id(self) -> str:
        """The table's id; a table created anew in the same folder has another one."""
        return str(self._table.metadata().id)

    @property
    def last_us(self) -> int:
        """The time of the last row that :meth:`entries` has read, in microseconds since 1970; 0 without rows."""
        return max(self._written_us, default=0)

    def has_row_of(self, written_us: int) -> bool:
        """Whether :meth:`entries` has read a row with this :attr:`last_us`; rows are never deleted.

        An older copy of the table lacks it, whatever was written to it since.
        """
        return not written_us or written_us in self._written_us

    def written(self) -> Mapping[EntryKey, WrittenEntry]:
        """As :meth:`entries`, with the time of each."""
        self.entries()
        return self._written

    def append(self, texts: Iterable[str], now: datetime) -> int:
        """Append the entries that differ from the current ones, in one commit; return their number.

        ``texts`` are the entries as received, in order; ``now`` is in UTC.

        Raises:
            DecodeError: an entry cannot be read; then none is appended.
            SinkError: the table cannot be written, or this writer has been fenced.
        """
        current = self.written()
        changed: dict[EntryKey, WrittenEntry] = {}
        # Later than everything written before; the entries of this append are in the order received.
        written_at = max([now, *(each.written_at + _STEP for each in current.values())])
        for number, text in enumerate(texts):
            entry = parse_registry_entry(text)
            key = entry_key(entry)
            known = changed.pop(key, None) or current.get(key)
            written = WrittenEntry(entry, text, written_at + number * _STEP)
            if known is not None and goes_back(entry, known.entry):
                written = known
            elif known is not None and isinstance(entry, ShapeEntry) and entry.is_condensed:
                written = _not_condensed(entry, known, written.written_at)
            if key not in current or current[key].text != written.text:
                changed[key] = written
        if not changed:
            return 0
        rows = [(*key, each.text, each.written_at) for key, each in changed.items()]
        table = pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], schema=SCHEMA)
        self._commit(table)
        return len(changed)

    def _commit(self, rows: pa.Table) -> None:
        """Append rows made from the table's open version."""
        before, transactions = self._table.version(), [self._fence.transaction] if self._fence.is_taken else []
        if transactions:
            self._fence.require()
        try:
            file = write_file(self._storage, f"part-{uuid.uuid4().hex}.parquet", rows)
            self._commits.commit(self._table, [file], transactions)
            self._versions.note(self._table, transactions)
        except CommitFailedError as error:
            raise SinkError(
                f"registry table {self.uri} refused {len(rows)} entries: another writer wrote to it at the same "
                "moment; let only one run"
            ) from error
        except (DeltaError, OSError) as error:
            raise SinkError(f"registry table {self.uri} cannot be written: {storage_reason(error)}") from error
        self._compact_if_due(before)

    def _compact_if_due(self, before: int) -> None:
        """Compact if the version has passed a multiple of ``COMPACT_EVERY`` since ``before``."""
        if self._table.version() // COMPACT_EVERY > before // COMPACT_EVERY:
            self._compact()

    def _compact(self) -> None:
        """Merge small files, and delete replaced ones past the retention; a failure only costs time later."""
        try:
            compact(self._table, self._commits, self._options, _COMPACTED_BYTES)
            self._folder.delete_old_files(self._table)
        except (DeltaError, OSError, pa.ArrowException) as error:
            logger.warning("registry table not compacted uri=%s reason=%s", self.uri, storage_reason(error))


def _not_condensed(entry: ShapeEntry, known: WrittenEntry, now: datetime) -> WrittenEntry:
    """The known entry of a removed shape, in place of its condensed one: readers may need the definition.

    If the removal itself was missed, it is taken from the condensed entry, with the incarnation that has ended.
    """
    if not isinstance(known.entry, ShapeEntry):
        return known
    incarnation = entry.definition.incarnation
    if known.entry.removed_at is not None and known.entry.definition.incarnation >= incarnation:
        return known
    removed = replace(
        known.entry,
        definition=replace(known.entry.definition, incarnation=incarnation),
        removed_at=entry.removed_at,
        ended_because=entry.ended_because,
        evicted_at_ms=entry.evicted_at_ms,
    )
    return WrittenEntry(removed, removed.to_json(), now)
