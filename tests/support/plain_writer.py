"""The writers of a group as plain rules, a row at a time, and a ``WriterGroup`` that is compared with them.

``PlainGroup`` is the specification: it reads and makes the same state, but keeps rows and items as objects, decodes
every event, and shares with the writers only the chain of ``shape_chain``, which has tests of its own.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flushtracker.events.registry_events import ShapeEntry
from flushtracker.events.stream_events import ShapeChangesEvent
from flushtracker.shape_log.change_columns import ChangeColumns, read_changes
from flushtracker.shape_log.log_row import COMMIT, LogRow
from flushtracker.shape_log.shape_chain import chain_position, cursor_after, new_items
from flushtracker.shape_log.write_loop import FlushLimits
from flushtracker.shape_log.writer_group import WriterGroup, WriterSettings
from flushtracker.wal.changes import LogItem, Row
from flushtracker.wal.log_offset import OP_INFINITY, LogOffset

_NONE = LogOffset.before_all()


@dataclass
class PlainBatch:
    """As ``ShapeBatch``, with a list of rows."""

    shape_id: str
    rows: list[LogRow] = field(default_factory=list)
    notified: LogOffset | None = None
    is_resend: bool = False
    gap: str | None = None
    begun: int | None = None


class PlainWriter:
    """One shape's writer, from its record in the state."""

    def __init__(self, record: bytes | None) -> None:
        new: list[Any] = [None, [_NONE] * 4, [0, 0], [64 << 10, 1000, 10 << 20], 0]
        cursor, offsets, chunk, limits, removed, *held = json.loads(record) if record else new
        items, rows, since_ms = held or ([], [], 0)
        self.since_ms: int = since_ms
        self.cursor = None if cursor is None else LogOffset(*cursor)
        self.seen, self.seen_txn, self.persisted, self.persisted_txn = (LogOffset(*each) for each in offsets)
        self.chunk, self.chunk_bytes, self.incarnation = [*chunk, 1][:3]
        self.limits = FlushLimits(*limits)
        self.removed: int = removed
        """Up to which LSN, 0 if it is live."""
        self.items = [LogItem(LogOffset(*offset), *rest) for offset, *rest in items]
        self.buffer = [LogRow(*row) for row in rows]
        self.flushed: list[LogRow] = []

    def fields(self) -> list[Any]:
        """What its record is."""
        limits = self.limits
        fields: list[Any] = [
            *(self.cursor, [self.seen, self.seen_txn, self.persisted, self.persisted_txn]),
            *(
                [self.chunk, self.chunk_bytes, self.incarnation][: 2 + (self.incarnation > 1)],
                [limits.flush_bytes, limits.interval_ms, limits.chunk_bytes],
            ),
            self.removed,
        ]
        if self.buffer or self.items:
            items = [[item.offset, item.operation, item.key, item.value, item.old_value] for item in self.items]
            fields += [items, self.buffer, self.since_ms]
        return fields

    def position(self, event: ShapeChangesEvent) -> str:
        found = chain_position(event, self.cursor)
        is_inside = self.cursor is not None and self.cursor.op_offset < OP_INFINITY
        if found == "next" and not event.start and is_inside and self.cursor is not None:
            # The commit of the transaction that the cursor is in has been lost.
            return "gap" if self.cursor.tx_offset < event.last_log_offset.tx_offset else found
        return found

    def take(self, event: ShapeChangesEvent, write_unit: str, now_ms: int) -> None:
        self.items += new_items(event, self.cursor)
        self.cursor = cursor_after(event)
        if write_unit == "txn" and event.commit is None:
            return
        for item in self.items:
            texts = item.key, _text(item.value), _text(item.old_value)
            row = LogRow(*item.offset, item.operation, *texts, event.xid, None, self.chunk)
            self._add(row, now_ms)
            self.chunk_bytes += _size(row)
            if self.chunk_bytes >= self.limits.chunk_bytes:
                self.chunk, self.chunk_bytes = self.chunk + 1, 0
                self.flush()
        self.items = []
        if event.commit is not None:
            end = LogOffset.last_of(event.last_log_offset.tx_offset)
            timestamp = event.commit.commit_timestamp
            self._add(LogRow(*end, COMMIT, None, None, None, event.xid, timestamp, self.chunk), now_ms)
            self.seen_txn = end
        if sum(map(_size, self.buffer)) >= self.limits.flush_bytes:
            self.flush()

    def _add(self, row: LogRow, now_ms: int) -> None:
        self.since_ms = self.since_ms if self.buffer else now_ms
        self.buffer.append(row)
        self.seen = LogOffset(*row[:2])

    def flush(self) -> None:
        self.flushed += self.buffer
        self.buffer = []
        self.persisted, self.persisted_txn = self.seen, self.seen_txn

    def enter(self, entry: ShapeEntry) -> None:
        if entry.definition.incarnation < self.incarnation:
            return
        self.limits = FlushLimits.of(entry.definition.flush)
        if entry.removed_at is not None:
            self.removed = entry.removed_at.tx_offset
            self.drop()

    def begin(self, incarnation: int, batch: PlainBatch) -> bool:
        if incarnation <= self.incarnation:
            return False
        self.removed, self.incarnation, batch.begun = 0, incarnation, incarnation
        if self.cursor is None:
            self.chunk = max(self.chunk, min(incarnation - 1, 2**30) * 2**32)
        self.drop()
        return True

    def drop(self) -> None:
        self.items, self.buffer = [], []
        self.seen, self.seen_txn = self.persisted, self.persisted_txn

    def resume(self, last: LogOffset, last_txn: LogOffset, chunk: int) -> None:
        if last <= self.persisted:
            return
        self.items = [item for item in self.items if item.offset > last]
        self.buffer = [row for row in self.buffer if row[:2] > last]
        self.persisted, self.persisted_txn = last, last_txn
        self.seen, self.seen_txn = max(self.seen, last), max(self.seen_txn, last_txn)
        if chunk > self.chunk:
            self.chunk, self.chunk_bytes = chunk, 0
        self.cursor = max(self.cursor or _NONE, last)


class PlainGroup:
    """The writers of a group; ``records`` are those of its state, each after one byte."""

    def __init__(
        self, source: str, settings: WriterSettings, records: Mapping[str, bytes], forgotten_lsn: int = -1
    ) -> None:
        self._source, self._settings, self._forgotten_lsn = source, settings, forgotten_lsn
        self.writers = {shape_id: PlainWriter(record[1:]) for shape_id, record in records.items()}
        self._resumed: set[str] = set()

    def _writer(self, shape_id: str) -> PlainWriter:
        writer = self.writers.setdefault(shape_id, PlainWriter(None))
        if shape_id not in self._resumed and (end := self._settings.ends.get((self._source, shape_id))) is not None:
            writer.resume(*end)
        self._resumed.add(shape_id)
        return writer

    def handle_batch(
        self,
        changes: Iterable[ShapeChangesEvent],
        entries: Iterable[ShapeEntry],
        now_ms: int,
        taken_lsn: int = -1,
    ) -> list[PlainBatch]:
        """As that of ``WriterGroup``."""
        batches: dict[str, PlainBatch] = {}
        self._forget(taken_lsn)
        self._enter(entries, batches)
        for event in sorted(changes, key=lambda each: (each.last_log_offset, each.follows)):
            if event.shape_id not in self.writers and event.last_log_offset.tx_offset <= self._forgotten_lsn:
                continue
            self._begin(event.shape_id, event.incarnation, batches)
            writer = self._writer(event.shape_id)
            if writer.removed or event.incarnation < writer.incarnation:
                continue
            self._take(writer, event, batches.setdefault(event.shape_id, PlainBatch(event.shape_id)), now_ms)
        held = [shape_id for shape_id, writer in self.writers.items() if writer.buffer]
        for shape_id in held if self._settings.hold else [*batches]:
            writer = self._writer(shape_id)
            is_due = now_ms - writer.since_ms >= writer.limits.interval_ms
            if not self._settings.hold or (writer.buffer and is_due):
                writer.flush()
        for shape_id, writer in self.writers.items():
            if writer.flushed:
                batches.setdefault(shape_id, PlainBatch(shape_id)).rows = writer.flushed
                writer.flushed = []
        for shape_id, batch in batches.items():
            tx, op = self.writers[shape_id].persisted
            if (batch.rows or batch.is_resend) and (tx, op) > _NONE:
                inside = LogOffset(tx, op - 1) if op else LogOffset(tx - 1, 0)
                batch.notified = LogOffset(tx, op) if op == OP_INFINITY or tx < 0 else inside
        return [batch for _, batch in sorted(batches.items())]

    def _forget(self, taken_lsn: int) -> None:
        if taken_lsn > self._forgotten_lsn:
            self._forgotten_lsn = taken_lsn
            self.writers = {name: each for name, each in self.writers.items() if not 0 < each.removed <= taken_lsn}

    def _enter(self, entries: Iterable[ShapeEntry], batches: dict[str, PlainBatch]) -> None:
        for entry in entries:
            shape_id, end, start = entry.definition.id, entry.removed_at, entry.starts_after
            is_late = start.tx_offset < self._forgotten_lsn if end is None else end.tx_offset <= self._forgotten_lsn
            if shape_id not in self.writers and is_late:
                continue
            self._begin(shape_id, entry.definition.incarnation, batches)
            self._writer(shape_id).enter(entry)

    def _begin(self, shape_id: str, incarnation: int, batches: dict[str, PlainBatch]) -> None:
        batch = PlainBatch(shape_id)
        if self._writer(shape_id).begin(incarnation, batch):
            batches.setdefault(shape_id, batch).begun = batch.begun

    def _take(self, writer: PlainWriter, event: ShapeChangesEvent, batch: PlainBatch, now_ms: int) -> None:
        position = writer.position(event)
        if position == "next":
            writer.take(event, self._settings.write_unit, now_ms)
        elif position == "resend":
            batch.is_resend = True
        elif batch.gap is None:
            batch.gap = (
                f"an event up to {event.last_log_offset} follows {event.follows}, but the changes that were taken "
                f"end at {writer.cursor or 'none'}"
            )


class CheckedGroup(WriterGroup):
    """A ``WriterGroup`` that takes events as they are published, and fails when it differs from a ``PlainGroup``."""

    def __init__(self, source: str, settings: WriterSettings, packed: bytes | None = None) -> None:
        super().__init__(source, settings, packed)
        self._plain = PlainGroup(source, settings, dict(self._records), self.forgotten_lsn)

    def handle_events(
        self,
        changes: Iterable[ShapeChangesEvent],
        entries: Iterable[ShapeEntry],
        now_ms: int,
        taken_lsn: int = -1,
    ) -> list[PlainBatch]:
        """As ``handle_batch``."""
        events, entries = list(changes), list(entries)
        columns = [_columns(event) for event in events]
        found = [
            PlainBatch(batch.shape_id, [*batch.rows], batch.notified, batch.is_resend, batch.gap, batch.begun)
            for batch in self.handle_batch(columns, entries, now_ms, taken_lsn)
        ]
        assert found == self._plain.handle_batch(events, entries, now_ms, taken_lsn)
        return found

    def pack(self) -> bytes:
        packed = super().pack()
        records = {shape_id: json.loads(record[1:]) for shape_id, record in self._records.items()}
        plain = {shape_id: json.loads(json.dumps(each.fields())) for shape_id, each in self._plain.writers.items()}
        assert records == plain
        return packed


def _columns(event: ShapeChangesEvent) -> ChangeColumns:
    """What a writer reads of an event, or would if a reader did not refuse it."""
    is_readable = event.follows < event.last_log_offset
    return read_changes(event.to_json().encode()) if is_readable else ChangeColumns.of(event)


def _text(row: Row | None) -> str | None:
    return None if row is None else json.dumps(row, ensure_ascii=False, separators=(",", ":"))


def _size(row: LogRow) -> int:
    return sum(len(text) for text in (row.key, row.value, row.old_value) if text is not None)
