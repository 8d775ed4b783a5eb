"""``WriteLoop``: what one shape's writer has seen, buffered and persisted, and when it flushes.

- Readers may read up to ``last_persisted_txn_offset``, which advances only over whole transactions, all of whose rows
  are persisted.
- A flush notification carries :func:`notifiable` of ``last_persisted_offset``. If a flush ends with a transaction, that
  is the transaction's boundary, ``(tx_offset, ∞)``.
- Offsets are those of the items; nothing is renumbered.
- The buffer and the offsets change together: ``last_seen_offset`` is that of the last buffered row, and after a flush
  both persisted offsets equal the seen ones.
"""

from dataclasses import dataclass, field
from typing import Final

from flushtracker.shape_log.log_row import commit_row
from flushtracker.shape_log.row_columns import RowColumns
from flushtracker.shape_log.transaction_builder import TransactionPart
from flushtracker.shapes.definition import FlushPolicy
from flushtracker.wal.log_offset import OP_INFINITY, LogOffset

FLUSH_BYTES: Final = 64 << 10
FLUSH_INTERVAL_MS: Final = 1_000
CHUNK_BYTES: Final = 10 << 20


def notifiable(persisted: LogOffset) -> LogOffset:
    """The offset to notify for a log that ends at ``persisted``; inside a transaction, it excludes the last row.

    For the tracker a transaction is flushed with its last item, and its commit would not be resent. But readers ignore
    a transaction without its ``commit`` row.

    >>> notifiable(LogOffset.last_of(90)) == LogOffset.last_of(90), notifiable(LogOffset(90, 4))
    (True, LogOffset(tx_offset=90, op_offset=3))
    """
    tx, op = persisted
    if op == OP_INFINITY or tx < 0:
        return persisted
    return LogOffset(tx, op - 1) if op else LogOffset.just_before(tx)


@dataclass(frozen=True, slots=True)
class FlushLimits:
    """A flush is due when this much is buffered, after this time, and at the end of each chunk of the log."""

    flush_bytes: int = FLUSH_BYTES
    interval_ms: int = FLUSH_INTERVAL_MS
    chunk_bytes: int = CHUNK_BYTES

    @classmethod
    def of(cls, policy: FlushPolicy) -> "FlushLimits":
        """A shape's own limits, with the defaults for those that it does not set.

        >>> FlushLimits.of(FlushPolicy(bytes=1000))
        FlushLimits(flush_bytes=1000, interval_ms=1000, chunk_bytes=10485760)
        """
        return cls(
            FLUSH_BYTES if policy.bytes is None else policy.bytes,
            FLUSH_INTERVAL_MS if policy.interval_ms is None else policy.interval_ms,
            CHUNK_BYTES if policy.chunk_bytes is None else policy.chunk_bytes,
        )


@dataclass(slots=True)
class WriteLoop:
    """One shape's loop. Time is an argument: ``now_ms`` never goes back.

    A flush returns rows and counts them as persisted. If they cannot be appended, discard the loop and start again from
    what is persisted.
    """

    limits: FlushLimits = FlushLimits()
    last_seen_offset: LogOffset = LogOffset.before_all()  # noqa: RUF009  immutable
    last_seen_txn_offset: LogOffset = LogOffset.before_all()  # noqa: RUF009
    last_persisted_offset: LogOffset = LogOffset.before_all()  # noqa: RUF009
    last_persisted_txn_offset: LogOffset = LogOffset.before_all()  # noqa: RUF009
    chunk: int = 0
    chunk_bytes: int = 0
    buffer: RowColumns = field(default_factory=RowColumns.empty)
    buffer_bytes: int = 0
    buffered_since_ms: int = 0

    @property
    def offsets(self) -> tuple[LogOffset, LogOffset, LogOffset, LogOffset]:
        return (
            *(self.last_seen_offset, self.last_seen_txn_offset),
            *(self.last_persisted_offset, self.last_persisted_txn_offset),
        )

    def handle_part(self, part: TransactionPart, now_ms: int) -> RowColumns:
        """Buffer a part of a transaction; return the rows of the flushes that become due."""
        flushed = RowColumns.empty()
        start = 0
        for end in self._chunk_ends(part.items):
            self._buffer_items(part.items.part(start, end), part.xid, now_ms)
            self.chunk, self.chunk_bytes = self.chunk + 1, 0
            flushed.extend(self.flush())
            start = end
        self._buffer_items(part.items.part(start), part.xid, now_ms)
        if part.commit_timestamp is not None:
            boundary = LogOffset.last_of(part.tx_offset)
            self._begin_buffer(now_ms)
            self.buffer.append(commit_row(boundary, part.commit_timestamp, part.xid, self.chunk))
            self.last_seen_offset = self.last_seen_txn_offset = boundary
        if self.buffer_bytes >= self.limits.flush_bytes:
            flushed.extend(self.flush())
        return flushed

    def _chunk_ends(self, items: RowColumns) -> list[int]:
        """The number of items up to each one that fills a chunk, itself included."""
        filled, ends = self.chunk_bytes, list[int]()
        if filled + items.payload_bytes < self.limits.chunk_bytes:
            return ends
        for count, size in enumerate(items.payloads(), 1):
            filled += size
            if filled >= self.limits.chunk_bytes:
                ends.append(count)
                filled = 0
        return ends

    def _buffer_items(self, items: RowColumns, xid: int, now_ms: int) -> None:
        if len(items):
            self._begin_buffer(now_ms)
            self.buffer.extend_by_items(items, xid, self.chunk)
            size = items.payload_bytes
            self.buffer_bytes += size
            self.chunk_bytes += size
            self.last_seen_offset = items.last_offset

    def _begin_buffer(self, now_ms: int) -> None:
        if not len(self.buffer):
            self.buffered_since_ms = now_ms

    def drop_buffer(self) -> None:
        """Forget the rows that are not persisted."""
        self.buffer, self.buffer_bytes = RowColumns.empty(), 0
        self.last_seen_offset, self.last_seen_txn_offset = self.last_persisted_offset, self.last_persisted_txn_offset

    def advance(self, now_ms: int) -> RowColumns:
        """The rows of a flush that is due because its interval has passed."""
        is_due = len(self.buffer) and now_ms - self.buffered_since_ms >= self.limits.interval_ms
        return self.flush() if is_due else RowColumns.empty()

    def flush(self) -> RowColumns:
        flushed, self.buffer, self.buffer_bytes = self.buffer, RowColumns.empty(), 0
        self.last_persisted_offset = self.last_seen_offset
        self.last_persisted_txn_offset = self.last_seen_txn_offset
        return flushed
