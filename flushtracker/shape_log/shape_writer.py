"""``ShapeWriter``: the state of one shape's writer, with its packed form."""

import json
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from flushtracker.events.registry_events import ShapeEntry
from flushtracker.shape_log.change_columns import ChangeColumns
from flushtracker.shape_log.log_row import LogRow, row_json
from flushtracker.shape_log.row_columns import RowColumns
from flushtracker.shape_log.shape_chain import ChainPosition, position_of
from flushtracker.shape_log.transaction_builder import TransactionBuilder, WriteUnit
from flushtracker.shape_log.write_loop import FlushLimits, WriteLoop
from flushtracker.wal.log_offset import OP_INFINITY, LogOffset
from flushtracker.wal.names import LOG_WRITER

_CHUNK_BITS: Final = 32
_MOST_APART: Final = 1 << 30
"""An upper bound for the incarnations that get chunk numbers of their own."""


class LogEnd(NamedTuple):
    """Where a shape's log ends: its last row, the last row that ends a transaction, and its last chunk."""

    last_offset: LogOffset
    last_txn_offset: LogOffset
    chunk: int


@dataclass(slots=True)
class ShapeWriter:
    """The writer of one shape: its builder, its loop, its incarnation, and the LSN up to which it was removed, if it
    was.

    The transactions of an incarnation are above all of the previous one. So the cursor and the offsets continue,
    whatever is resent or already in the log, and the first event that is next is a start.
    """

    builder: TransactionBuilder
    loop: WriteLoop = field(default_factory=WriteLoop)
    removed_lsn: int | None = None
    incarnation: int = 1

    @property
    def is_removed(self) -> bool:
        return self.removed_lsn is not None

    def begin(self, incarnation: int) -> bool:
        """Begin a later incarnation unless it has begun; drop buffered changes of the previous one."""
        if incarnation <= self.incarnation:
            return False
        self.incarnation, self.removed_lsn = incarnation, None
        if self.builder.cursor is None:
            # The previous incarnation may have been forgotten; its chunk numbers must not repeat.
            self.loop.chunk = max(self.loop.chunk, min(incarnation - 1, _MOST_APART) << _CHUNK_BITS)
        self._drop_held()
        return True

    def _drop_held(self) -> None:
        self.builder.items = RowColumns.no_items()
        self.loop.drop_buffer()

    def handle_changes(self, event: ChangeColumns, now_ms: int) -> tuple[ChainPosition, RowColumns]:
        """Process an event of a shape that is not removed; return its position, and the rows to flush now.

        Only an event that is next changes anything.
        """
        position = position_of(event.reached, event.follows, self.builder.cursor, is_start=event.start)
        if position == "next" and self._is_past_a_commit(event):
            position = "gap"
        part = self.builder.add(event) if position == "next" else None
        return position, RowColumns.empty() if part is None else self.loop.handle_part(part, now_ms)

    def _is_past_a_commit(self, event: ChangeColumns) -> bool:
        """Whether the commit of the transaction at the cursor is missing.

        If the process ends between the flush of the transaction's last item and its commit, the next transaction
        follows that item.
        """
        cursor = self.builder.cursor
        if event.start or cursor is None:
            return False
        return cursor.op_offset < OP_INFINITY and cursor.tx_offset < event.last_log_offset.tx_offset

    def handle_entry(self, entry: ShapeEntry) -> bool:
        """Apply the registry entry of the shape's incarnation: its limits, or its end, which drops what is buffered.

        A shape ends when it is removed or another writer takes it over. A late entry of an earlier incarnation is
        ignored. Returns whether the shape has ended now.
        """
        if entry.definition.incarnation < self.incarnation:
            return False
        self.loop.limits = FlushLimits.of(entry.definition.flush)
        was_removed = self.is_removed
        if entry.removed_at is not None or entry.definition.writer != LOG_WRITER:
            # All transactions of an incarnation that another writer took over are at or below the start of the next
            # one.
            end = entry.starts_after if entry.removed_at is None else entry.removed_at
            self.removed_lsn = max(end.tx_offset, 1)
            self._drop_held()
        return self.is_removed and not was_removed

    def resume_at(self, end: LogEnd) -> None:
        """Drop what the log already has: it may have more than this writer's state knows, but never less."""
        loop, last = self.loop, end.last_offset
        if last <= loop.last_persisted_offset:
            return
        self.builder.items = self.builder.items.after(last)
        loop.buffer = loop.buffer.after(last)
        loop.buffer_bytes = loop.buffer.payload_bytes
        loop.last_persisted_offset, loop.last_persisted_txn_offset = last, end.last_txn_offset
        loop.last_seen_offset = max(loop.last_seen_offset, last)
        loop.last_seen_txn_offset = max(loop.last_seen_txn_offset, end.last_txn_offset)
        if end.chunk > loop.chunk:
            loop.chunk, loop.chunk_bytes = end.chunk, 0
        if self.builder.cursor is None or self.builder.cursor < last:
            self.builder.cursor = last

    def pack(self) -> bytes:
        loop, cursor, limits = self.loop, self.builder.cursor, self.loop.limits
        fields: list[Any] = [
            cursor,
            (
                loop.last_seen_offset,
                loop.last_seen_txn_offset,
                loop.last_persisted_offset,
                loop.last_persisted_txn_offset,
            ),
            # Only a later incarnation is stored.
            (loop.chunk, loop.chunk_bytes, *([self.incarnation] if self.incarnation > 1 else [])),
            (limits.flush_bytes, limits.interval_ms, limits.chunk_bytes),
            self.removed_lsn or 0,
        ]
        if len(loop.buffer) or len(self.builder.items):
            items = [
                ((tx, op), operation, key, value and json.loads(value), old_value and json.loads(old_value))
                for tx, op, operation, key, value, old_value in zip(*self.builder.items.columns, strict=True)
            ]
            fields += [items, [*loop.buffer], loop.buffered_since_ms]
        return json.dumps(fields, separators=(",", ":")).encode()

    @classmethod
    def unpack(cls, packed: bytes, write_unit: WriteUnit) -> "ShapeWriter":
        cursor, offsets, (chunk, chunk_bytes, *incarnation), limits, removed_lsn, *held = json.loads(packed)
        items, rows, since_ms = held or ([], [], 0)
        kept = (
            (*offset, operation, key, row_json(value), row_json(old_value))
            for offset, operation, key, value, old_value in items
        )
        builder = TransactionBuilder(
            write_unit, None if cursor is None else LogOffset(*cursor), RowColumns.of_items(kept)
        )
        buffer = RowColumns.of_rows(LogRow(*row) for row in rows)
        seen, seen_txn, persisted, persisted_txn = (LogOffset(*offset) for offset in offsets)
        loop = WriteLoop(
            FlushLimits(*limits),
            seen,
            seen_txn,
            persisted,
            persisted_txn,
            chunk,
            chunk_bytes,
            buffer,
            buffer.payload_bytes,
            since_ms,
        )
        return cls(builder, loop, removed_lsn or None, *incarnation)
