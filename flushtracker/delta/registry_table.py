"""The registry table: the entries of the topic ``shapes``, copied by the writer, so that readers need no Kafka.

The row of a (source, type, id) with the greatest ``written_at`` is current. ``written_at`` never goes back, even if the
clock does. Only changed entries are appended, and a change costs its readers the rows of that change. Replaced rows are
deleted by :meth:`RegistryTable.fold`.

Entries of tables and sources do not show which of two is later. So only the writer that started last may append
(:mod:`flushtracker.delta.fence`): a replaced one may still have older entries, and its clock may be ahead.

Once the table has the end of a shape, or its next incarnation, rows without it are ignored, wherever they are. A writer
that lost its checkpoint rereads old entries, and a replaced one may append late.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final
from weakref import WeakValueDictionary

import pyarrow as pa
from deltalake import DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError

from flushtracker.delta.data_file import read_blocks
from flushtracker.delta.owned_table import OwnedTable, TableKind
from flushtracker.delta.registry_rows import (
    EPOCH,
    MICROSECOND,
    SCHEMA,
    WrittenEntry,
    as_rows,
    not_condensed,
    with_rows,
    without_definitions,
)
from flushtracker.delta.storage import brief_files, storage_reason, table_rows
from flushtracker.errors import DecodeError, SinkError
from flushtracker.events.registry import EntryKey, Registry, entry_key, goes_back
from flushtracker.events.registry_events import RegistryEntry, ShapeEntry, parse_registry_entry

FOLDED_APP_ID: Final = "flushtracker: rows up to this time are here, or were replaced"
"""Its version in the table's log is a time in µs since 1970. Persisted."""

_ATTEMPTS: Final = 5
_NEW_FILES: Final = 10
"""Up to this many new files are read one by one, more by one query."""

LEAST_FOLDED: Final = 1_000
"""The minimum number of replaced rows to delete at once; or half the number of entries, if that is more."""

_KIND: Final = TableKind("registry table", "writer", "storage", SCHEMA, merged_bytes=64 << 20)


@dataclass(frozen=True)
class _Read:
    """What was read of the rows in ``files``, whose names no other rows ever get."""

    files: frozenset[str] = frozenset()
    registry: Registry = field(default_factory=Registry)
    written: Mapping[EntryKey, WrittenEntry] = field(default_factory=dict)
    written_us: frozenset[int] = frozenset()


_LAST_READ: Final = WeakValueDictionary[str, _Read]()
"""By table, for all who have it open in this process: a large registry takes more than 100 MB."""


class RegistryTable:
    """An open registry table; not thread-safe. Raises ``SinkError`` for storage failures."""

    def __init__(self, uri: str, storage_options: Mapping[str, str] | None = None, *, create: bool = False) -> None:
        """Open the table at ``uri``, or with ``create`` create it; raises ``SinkError`` if there is none."""
        self.uri = uri
        self._owned = OwnedTable(_KIND, uri, storage_options, create=create)
        self._table = self._owned.table
        self._files = brief_files(self._table.table_uri, storage_options)
        self._read_version = -1
        self._read = _Read()

    @staticmethod
    def exists(uri: str, storage_options: Mapping[str, str] | None = None) -> bool:
        try:
            return DeltaTable.is_deltatable(uri, dict(storage_options or {}))
        except (DeltaError, OSError) as error:
            raise SinkError(f"registry table {uri} cannot be opened: {storage_reason(error)}") from error

    def fence_others(self) -> None:
        """Fence all other writers, so that only this one can append; raises ``SinkError``."""
        self._owned.fence_others()

    def has_changed(self) -> bool:
        """Whether the table's version differs from the one that :meth:`entries` read last; raises ``SinkError``."""
        self._owned.refresh()
        return self._table.version() != self._read_version

    def entries(self) -> Registry:
        """The current entries; reads only what was added since the last call."""
        if self.has_changed():
            files = frozenset(pa.table(self._table.get_add_actions())["path"].to_pylist())
            before = max(self._read, _LAST_READ.get(self.uri, self._read), key=lambda each: len(each.files & files))
            self._read = before if before.files == files else self._read_since(before, files)
            self._read_version, _LAST_READ[self.uri] = self._table.version(), self._read
        return self._read.registry

    def _read_since(self, before: _Read, files: frozenset[str]) -> _Read:
        known, known_us = before.written, before.written_us
        try:
            rows = self._added_rows(before.files, files)
            if rows is None:
                known, known_us, rows = {}, frozenset[int](), table_rows(self._table, SCHEMA.names)
        except (DeltaError, OSError, pa.ArrowException) as error:
            raise self._owned.error("read", error) from error
        written = with_rows(known, rows, before.written, self._parsed)
        written_us = known_us.union(rows["written_at"].cast(pa.int64()).to_pylist())
        return _Read(files, Registry.of(each.entry for each in written.values()), written, written_us)

    def _added_rows(self, before: frozenset[str], files: frozenset[str]) -> pa.Table | None:
        """The rows of the files added since ``before``; ``None`` if all rows must be read, with one query."""
        added = files - before
        # If a file was removed, some of its rows may have been removed too.
        if not before or not before <= files or len(added) > _NEW_FILES:
            return None
        try:
            blocks = [block for file in sorted(added) for block in read_blocks(self._files, file, SCHEMA)]
        except (DeltaError, OSError):  # The store does not answer in time.
            return None
        return pa.concat_tables([SCHEMA.empty_table(), *blocks])

    def _parsed(self, row: Mapping[str, Any]) -> RegistryEntry:
        try:
            return parse_registry_entry(row["entry"])
        except DecodeError as error:
            # The error type distinguishes a valid entry of a newer release from a damaged one.
            raise type(error)(
                f"registry table {self.uri}: entry {row['type']} {row['id']} of source {row['source']}: {error}"
            ) from error

    @property
    def table_id(self) -> str:
        """The table's id; a table created anew in the same folder has another one."""
        return str(self._table.metadata().id)

    @property
    def last_us(self) -> int:
        """The time of the last row that :meth:`entries` has read, in microseconds since 1970; 0 without rows."""
        return max(self._read.written_us, default=0)

    def has_row_of(self, written_us: int) -> bool:
        """Whether the table, as :meth:`entries` has read it, has or had a row with this :attr:`last_us`.

        An older copy of the table lacks the row, whatever was written to it later, because such a copy is never folded.
        """
        return not written_us or written_us in self._read.written_us or written_us <= self._folded_us()

    def _folded_us(self) -> int:
        return self._owned.version_of(FOLDED_APP_ID) or 0

    def written(self) -> Mapping[EntryKey, WrittenEntry]:
        """As :meth:`entries`, with the time at which each was written."""
        self.entries()
        return self._read.written

    def append(self, texts: Iterable[str], now: datetime) -> int:
        """Append the entries that differ from the current ones, in one commit; return their number.

        ``texts`` are the entries as received, in order; ``now`` is in UTC.

        Raises:
            DecodeError: an entry cannot be read; then none is appended.
            SinkError: the table cannot be written, or this writer has been fenced.
        """
        received = list(texts)
        for _ in range(_ATTEMPTS):
            changed = self._changed(received, now)
            if not changed:
                return 0
            try:
                self._owned.append(as_rows(changed))
            except CommitFailedError as error:
                refused = error
            else:
                return len(changed)
            self._owned.refresh()
            if not self._owned.fence.is_taken:
                break
            # Upkeep has folded the table at that moment, or the append was committed after all, unless it was fenced.
            self._owned.fence.require()
        raise SinkError(
            f"registry table {self.uri} refused {len(changed)} entries: another writer wrote to it at the same moment; "
            "let only one run"
        ) from refused

    def _changed(self, texts: Iterable[str], now: datetime) -> dict[EntryKey, WrittenEntry]:
        """The entries among ``texts`` that differ from the current ones."""
        current = self.written()
        changed: dict[EntryKey, WrittenEntry] = {}
        # Later than everything written before, deleted rows included; the entries are in the order received.
        written_at = max(now, EPOCH + (max(self.last_us, self._folded_us()) + 1) * MICROSECOND)
        for number, text in enumerate(texts):
            entry = parse_registry_entry(text)
            key = entry_key(entry)
            known = changed.pop(key, None) or current.get(key)
            written = WrittenEntry(entry, text, written_at + number * MICROSECOND)
            if known is not None and goes_back(entry, known.entry):
                written = known
            elif known is not None and isinstance(entry, ShapeEntry) and entry.is_condensed:
                written = not_condensed(entry, known, written.written_at)
            if key not in current or current[key].text != written.text:
                changed[key] = written
        return changed

    def fold(self, last_seen_us: Callable[[], int], deleted_us: int) -> int:
        """Delete replaced rows once there are many; returns their number. Raises ``SinkError``.

        Shapes whose removal was written up to ``deleted_us`` are condensed: only the removal and its reason are kept. A
        table without the row at ``last_seen_us``, the last one that its shape log needs, is an older copy, and is not
        changed.

        The commit replaces exactly the files that were read. Readers still find all current rows, and rows appended
        meanwhile stay. So any process may fold.
        """
        current = self.written()
        if self._table.metadata().configuration.get("delta.appendOnly") == "true":
            return 0
        try:
            files = pa.table(self._table.get_add_actions()).to_pylist()
            condensed = without_definitions(current, deleted_us)
            replaced = sum(file["num_records"] or 0 for file in files) - len(current) + len(condensed)
            if replaced <= max(LEAST_FOLDED, len(current) // 2):
                return 0
            if not self.has_row_of(last_seen_us()):
                return 0
            folded_us = self._folded_us()
            last_us = [Transaction(FOLDED_APP_ID, self.last_us)] if self.last_us > folded_us else []
            removed = [(each["path"], each["size_bytes"]) for each in files]
            added = [self._owned.write(as_rows({**current, **condensed}))]
            is_first = self._owned.commits.replace(self._table, removed, added, last_us, is_deletion=True)
        except (DeltaError, OSError, pa.ArrowException) as error:
            raise self._owned.error("folded", error) from error
        return replaced if is_first else 0
