"""``ShapeWriter``: one shape's writer between two flushes, and as bytes between two micro-batches."""

import json
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from flushtracker.events.registry_events import ShapeEntry
from flushtracker.events.stream_events import ShapeChangesEvent
from flushtracker.shape_log.log_row import LogRow
from flushtracker.shape_log.shape_chain import ChainPosition, chain_position
from flushtracker.shape_log.transaction_builder import TransactionBuilder, WriteUnit
from flushtracker.shape_log.write_loop import FlushLimits, WriteLoop
from flushtracker.wal.changes import LogItem
from flushtracker.wal.log_offset import OP_INFINITY, LogOffset


class LogEnd(NamedTuple):
    """Where a shape's log ends: its last row, the last row that ends a transaction, and its last chunk."""

    last_offset: LogOffset
    last_txn_offset: LogOffset
    chunk: int


@dataclass(slots=True)
class ShapeWriter:
    """The writer of one shape: its builder, its loop, and whether the shape has been removed."""

    builder: TransactionBuilder
    loop: WriteLoop = field(default_factory=WriteLoop)
    is_removed: bool = False

    def handle_changes(self, event: ShapeChangesEvent, now_ms: int) -> tuple[ChainPosition, list[LogRow]]:
        """Take an event of a shape that is not removed; returns its position, and the rows that are now due.

        Only an event that is next changes anything.
        """
        position = chain_position(event, self.builder.cursor)
        if position == "next" and self._is_past_a_commit(event):
            position = "gap"
        part = self.builder.add(event) if position == "next" else None
        return position, [] if part is None else self.loop.handle_part(part, now_ms)

    def _is_past_a_commit(self, event: ShapeChangesEvent) -> bool:
        """Whether the commit of the transaction that the cursor is in has been lost.

        If the process ends after a flush of the transaction's last item, and before its commit, the next transaction
        follows just that item.
        """
        cursor = self.builder.cursor
        if event.start or cursor is None:
            return False
        return cursor.op_offset < OP_INFINITY and cursor.tx_offset < event.last_log_offset.tx_offset

    def handle_entry(self, entry: ShapeEntry) -> None:
        """Take the shape's registry entry: its limits, or its removal, which drops what is buffered."""
        self.loop.limits = FlushLimits.of(entry.definition.flush)
        if entry.removed_at is not None:
            self.is_removed = True
            self.builder.items.clear()
            self.loop.buffer.clear()

    def resume_at(self, end: LogEnd) -> None:
        """Drop what the log already has, which may be more than this writer knows of, but never less."""
        loop, last = self.loop, end.last_offset
        if last <= loop.last_persisted_offset:
            return
        self.builder.items = [item for item in self.builder.items if item.offset > last]
        loop.buffer = [row for row in loop.buffer if row[:2] > last]
        loop.buffer_bytes = sum(row.payload_bytes for row in loop.buffer)
        loop.last_persisted_offset, loop.last_persisted_txn_offset = last, end.last_txn_offset
        loop.last_seen_offset = max(loop.last_seen_offset, last)
        loop.last_seen_txn_offset = max(loop.last_seen_txn_offset, end.last_txn_offset)
        if end.chunk > loop.chunk:
            loop.chunk, loop.chunk_bytes = end.chunk, 0
        if self.builder.cursor is None or self.builder.cursor < last:
            self.builder.cursor = last

    def pack(self) -> bytes:
        """The writer as JSON; the inverse of :meth:`unpack`."""
        loop, cursor, limits = self.loop, self.builder.cursor, self.loop.limits
        fields: list[Any] = [
            cursor,
            (
                loop.last_seen_offset,
                loop.last_seen_txn_offset,
                loop.last_persisted_offset,
                loop.last_persisted_txn_offset,
            ),
            (loop.chunk, loop.chunk_bytes),
            (limits.flush_bytes, limits.interval_ms, limits.chunk_bytes),
            int(self.is_removed),
        ]
        if loop.buffer or self.builder.items:
            items = [(item.offset, item.operation, item.key, item.value, item.old_value) for item in self.builder.items]
            fields += [items, loop.buffer, loop.buffered_since_ms]
        return json.dumps(fields, separators=(",", ":")).encode()

    @classmethod
    def unpack(cls, packed: bytes, write_unit: WriteUnit) -> "ShapeWriter":
        """Read the output of :meth:`pack`."""
        cursor, offsets, (chunk, chunk_bytes), limits, is_removed, *held = json.loads(packed)
        items, rows, since_ms = held or ([], [], 0)
        buffer = [LogRow(*row) for row in rows]
        builder = TransactionBuilder(
            write_unit,
            None if cursor is None else LogOffset(*cursor),
            [LogItem(LogOffset(*offset), *rest) for offset, *rest in items],
        )
        seen, seen_txn, persisted, persisted_txn = (LogOffset(*offset) for offset in offsets)
        buffer_bytes = sum(row.payload_bytes for row in buffer)
        loop = WriteLoop(
            *(FlushLimits(*limits), seen, seen_txn, persisted, persisted_txn),
            *(chunk, chunk_bytes, buffer, buffer_bytes, since_ms),
        )
        return cls(builder, loop, bool(is_removed))
