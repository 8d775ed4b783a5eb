"""``AlignedTracker``: a ``FlushTracker`` for the offsets that writers store, which it aligns to transactions.

A writer reports the last operation that it has stored. That is seldom the last one of its transaction, which may
concern another shape. So the tracker keeps, for each shape, its last operation in every transaction that is not
flushed. A flush completes the transactions whose operation is at or below it. The shape then counts as flushed to just
before the first one left, or has nothing pending. Electric's Consumers align offsets in the same way.

**Fragments** come in commit order, those of a transaction in order. After a restart, transactions may be resent and cut
differently. A transaction whose commit was read is ignored; an open one adds only what is new.

**Flushes and removals** come in any order: twice, late, or before their transaction. One past the last commit read is
kept until a commit passes it. So a flush between two fragments counts even if the commit has nothing for the shape.

**The caller** uses one tracker per source and keeps the fragments in order. A gap between two fragments is not detected
here (``FragmentChain`` finds it).
"""

from collections import deque
from collections.abc import Mapping

from flushtracker.tracking.flush_tracker import FlushTracker, Pending
from flushtracker.wal.log_offset import LogOffset

_NONE = LogOffset.before_all()


class AlignedTracker:
    """Tracks one source. Each handler returns the LSN to acknowledge now, or ``None`` when the ack has not moved.

    ``ack_lsn`` is the last LSN acknowledged in an earlier run: transactions up to it count as flushed.

    >>> tracker = AlignedTracker()
    >>> sent = {"users": LogOffset(100, 2), "orders": LogOffset(100, 4)}
    >>> tracker.handle_txn_fragment(LogOffset(100, 4), sent, is_commit=True, now_ms=0)
    98
    >>> tracker.handle_flush_notification("users", LogOffset(100, 2), now_ms=10)
    >>> tracker.handle_flush_notification("orders", LogOffset(100, 4), now_ms=20)
    100
    >>> tracker.is_empty
    True
    """

    def __init__(self, ack_lsn: int = -1) -> None:
        self._tracker = FlushTracker(ack_lsn)
        self._committed = LogOffset.last_of(ack_lsn)
        self._unflushed: dict[str, deque[LogOffset]] = {}
        """By pending shape: its last operation in each unflushed transaction, in order."""
        self._early: dict[str, LogOffset] = {}
        """The greatest flush of each shape that is past the last commit read."""

    @property
    def ack_lsn(self) -> int:
        """The greatest LSN acknowledged so far; -1 before the first."""
        return self._tracker.ack_lsn

    @property
    def pending(self) -> Mapping[str, Pending]:
        """The pending shapes, with aligned offsets. This is the tracker's own mapping; do not modify it."""
        return self._tracker.pending

    @property
    def is_empty(self) -> bool:
        """Whether nothing is kept: no shape is pending, and no flush is ahead of the fragments."""
        return self._tracker.is_empty and not self._early

    def handle_txn_fragment(
        self, last_log_offset: LogOffset, last_offsets: Mapping[str, LogOffset | None], *, is_commit: bool, now_ms: int
    ) -> int | None:
        """Apply a fragment, in stream order; a whole transaction is one with ``is_commit``.

        ``last_offsets`` has the last offset of each affected shape in this fragment, or ``None`` if a commit lists the
        shape although this fragment has nothing for it. O(shapes · log n).
        """
        end = LogOffset.last_of(last_log_offset.tx_offset)
        if end <= self._committed:
            return None
        entries: dict[str, Pending | None] = {}
        for shape_id, last in last_offsets.items():
            flushed = self._early.get(shape_id, _NONE)
            if last is not None and last > flushed:
                self._add(shape_id, last)
                entries[shape_id] = self._entry(shape_id, flushed, last_log_offset, now_ms)
        if is_commit:
            self._committed = end
            self._early = {shape_id: offset for shape_id, offset in self._early.items() if offset > end}
        return self._tracker.apply(entries, last_log_offset if is_commit else None)

    def handle_flush_notification(self, shape_id: str, offset: LogOffset, *, now_ms: int) -> int | None:
        """Apply a flush: everything of the shape up to ``offset`` is durable. O(log n + transactions flushed)."""
        if offset > max(self._committed, self._early.get(shape_id, _NONE)):
            self._early[shape_id] = offset
        unflushed = self._unflushed.get(shape_id)
        if unflushed is None:
            return None
        while unflushed and unflushed[0] <= offset:
            unflushed.popleft()
        if not unflushed:
            del self._unflushed[shape_id]
        return self._tracker.apply({shape_id: self._entry(shape_id, offset, _NONE, now_ms)})

    def handle_shape_removed(self, shape_id: str, offset: LogOffset, *, now_ms: int) -> int | None:
        """Stop waiting for a shape that was removed in the transaction of ``offset``, whether that was read or not.

        A later transaction may list the shape again: its id is then reused, and it counts as any other.
        """
        return self.handle_flush_notification(shape_id, LogOffset.last_of(offset.tx_offset), now_ms=now_ms)

    def check_invariants(self) -> None:
        """Raise ``AssertionError`` if the parts disagree; for tests, O(n)."""
        self._tracker.check_invariants()
        if self._unflushed.keys() != self.pending.keys():
            raise AssertionError(f"unflushed {sorted(self._unflushed)} differ from pending {sorted(self.pending)}")
        for shape_id, unflushed in self._unflushed.items():
            lsns = [offset.tx_offset for offset in unflushed]
            if lsns != sorted(set(lsns)) or self.pending[shape_id].last_flushed >= unflushed[0]:
                raise AssertionError(f"{shape_id}: {self.pending[shape_id]} does not fit {unflushed}")
        if any(offset <= self._committed for offset in self._early.values()):
            raise AssertionError(f"flushes {self._early} are kept after {self._committed} was read")

    def _add(self, shape_id: str, last: LogOffset) -> None:
        unflushed = self._unflushed.setdefault(shape_id, deque())
        if unflushed and unflushed[-1].tx_offset == last.tx_offset:
            last = max(last, unflushed.pop())
        unflushed.append(last)

    def _entry(self, shape_id: str, flushed: LogOffset, sent: LogOffset, now_ms: int) -> Pending | None:
        """The shape's pending range after a flush up to ``flushed`` and a fragment up to ``sent``."""
        unflushed = self._unflushed.get(shape_id)
        if unflushed is None:
            return None
        before = self.pending.get(shape_id)
        last_sent = max(sent, unflushed[-1])
        last_flushed = max(flushed, LogOffset.just_before(unflushed[0].tx_offset))
        if before is None:
            return Pending(last_sent, last_flushed, now_ms)
        last_sent, last_flushed = max(last_sent, before.last_sent), max(last_flushed, before.last_flushed)
        return Pending(last_sent, last_flushed, now_ms if last_flushed > before.last_flushed else before.since_ms)
