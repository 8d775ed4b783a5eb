"""``FlushTracker``: the largest LSN that may be acknowledged, given what each shape was sent and has flushed.

**State.** ``last_seen_offset`` is the last commit seen. ``last_global_flushed_offset`` is the offset up to which
everything is flushed. A mapping *shape → (last_sent, last_flushed)* holds the pending shapes only. A sorted tree
*last_flushed → shapes*, kept in step with the mapping, finds the minimum in O(log n).

**Events.** A fragment makes each shape that it affects pending up to the fragment's ``last_log_offset``. A flush at or
past ``last_sent`` takes the shape out of the mapping; an earlier flush raises its ``last_flushed``. Removing a shape
takes it out as well. Only a commit moves ``last_seen_offset``.

**Ack.** When nothing is pending, the ack is the last commit seen. Otherwise the ack is one below the least
``last_flushed``, its ``tx_offset − 1``: that transaction is not complete, but everything before it is. The −1 costs
nothing, because a commit record is dozens of bytes long and no two commit LSNs are adjacent.

**Invariants.** All offsets are aligned to transactions; with raw storage offsets the tracker would wait for flushes
that never arrive. ``shape_table`` aligns them for the job, and ``AlignedTracker`` for any other caller. The ack never
moves back, even when an entry does. ``apply`` replaces the entries of a whole micro-batch *before* it computes the ack:
seeing the commit first would acknowledge a transaction whose shapes are not in the mapping yet.

The rule is that of Electric's ``FlushTracker``.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sortedcontainers import SortedDict

from flushtracker.wal.log_offset import LogOffset


@dataclass(frozen=True, slots=True)
class Pending:
    """The range that one shape (or shape group) must still flush: ``last_flushed < last_sent``, both aligned.

    ``since_ms`` is when the shape became pending or last made progress, in milliseconds of the caller's clock.
    """

    last_sent: LogOffset
    last_flushed: LogOffset
    since_ms: int

    def __post_init__(self) -> None:
        if self.last_flushed >= self.last_sent:
            raise ValueError(f"pending range is empty: flushed {self.last_flushed}, sent {self.last_sent}")


class FlushTracker:
    """Tracks one source. Each handler returns the LSN to acknowledge now, or ``None`` when the ack has not moved.

    All transactions with a commit LSN up to and including the returned LSN are safe. The argument ``ack_lsn`` is the
    last LSN acknowledged in an earlier run; nothing at or below it is returned again.

    >>> tracker = FlushTracker()
    >>> tracker.handle_txn_fragment(LogOffset(100, 4), {"users", "orders"}, is_commit=True, now_ms=0)
    98
    >>> tracker.handle_flush_notification("users", LogOffset(100, 4), now_ms=10)
    >>> tracker.handle_flush_notification("orders", LogOffset(100, 4), now_ms=20)
    100
    """

    def __init__(self, ack_lsn: int = -1) -> None:
        self._ack_lsn = ack_lsn
        self._pending: dict[str, Pending] = {}
        self._shapes_by_flushed: SortedDict[LogOffset, set[str]] = SortedDict()
        self.last_seen_offset = LogOffset.before_all()
        self.last_global_flushed_offset = LogOffset.before_all()

    @property
    def ack_lsn(self) -> int:
        """The greatest LSN acknowledged so far; -1 before the first."""
        return self._ack_lsn

    @property
    def pending(self) -> Mapping[str, Pending]:
        """The pending shapes. This is the tracker's own mapping; do not modify it."""
        return self._pending

    @property
    def is_empty(self) -> bool:
        return not self._pending

    def handle_txn_fragment(
        self, last_log_offset: LogOffset, affected_shapes: Iterable[str], *, is_commit: bool, now_ms: int
    ) -> int | None:
        """Apply a fragment, in stream order; a whole transaction is one with ``is_commit``. O(shapes · log n)."""
        for shape_id in affected_shapes:
            entry = self._pending.get(shape_id)
            if entry is None:
                entry = Pending(last_log_offset, LogOffset.just_before(last_log_offset.tx_offset), now_ms)
            else:
                entry = Pending(max(entry.last_sent, last_log_offset), entry.last_flushed, entry.since_ms)
            self._put(shape_id, entry)
        if is_commit:
            self._update_last_seen(last_log_offset)
        return self._advance()

    def handle_flush_notification(self, shape_id: str, offset: LogOffset, *, now_ms: int) -> int | None:
        """Apply an aligned flush. One for an unknown shape, or not past its last flush, changes nothing. O(log n)."""
        entry = self._pending.get(shape_id)
        if entry is None or offset <= entry.last_flushed:
            return None
        if offset >= entry.last_sent:
            self._drop(shape_id)
        else:
            self._put(shape_id, Pending(entry.last_sent, offset, now_ms))
        return self._advance()

    def handle_shape_removed(self, shape_id: str) -> int | None:
        """Forget a shape that will flush nothing more. An unknown shape changes nothing. O(log n)."""
        self._drop(shape_id)
        return self._advance()

    def apply(self, entries: Mapping[str, Pending | None], last_seen_offset: LogOffset | None = None) -> int | None:
        """Apply one micro-batch: replace each entry (``None``: caught up), then the last commit seen, then ack once.

        A shape group's entry may move back: a second shape may join a transaction that the first has flushed in part.
        """
        for shape_id, entry in entries.items():
            if entry is None:
                self._drop(shape_id)
            else:
                self._put(shape_id, entry)
        if last_seen_offset is not None:
            self._update_last_seen(last_seen_offset)
        return self._advance()

    def least_flushed(self, count: int) -> list[str]:
        """The ``count`` pending shapes with the least ``last_flushed``, and all that tie with the last of them."""
        found: list[str] = []
        for shapes in self._shapes_by_flushed.values():
            if len(found) >= count:
                break
            found += shapes
        return found

    def check_invariants(self) -> None:
        """Raise ``AssertionError`` if mapping, tree and ack disagree; for tests, O(n)."""
        by_flushed: dict[LogOffset, set[str]] = {}
        for shape_id, entry in self._pending.items():
            by_flushed.setdefault(entry.last_flushed, set()).add(shape_id)
        if by_flushed != dict(self._shapes_by_flushed):
            raise AssertionError(f"tree {dict(self._shapes_by_flushed)} differs from the mapping's {by_flushed}")
        if self._ack_lsn < self._ackable_lsn():
            raise AssertionError(f"ack {self._ack_lsn} is below the {self._ackable_lsn()} that may be acknowledged")

    def _put(self, shape_id: str, entry: Pending) -> None:
        previous = self._pending.get(shape_id)
        if previous is None or previous.last_flushed != entry.last_flushed:
            self._drop(shape_id)
            self._shapes_by_flushed.setdefault(entry.last_flushed, set()).add(shape_id)
        self._pending[shape_id] = entry

    def _drop(self, shape_id: str) -> None:
        entry = self._pending.pop(shape_id, None)
        if entry is None:
            return
        shapes = self._shapes_by_flushed[entry.last_flushed]
        shapes.discard(shape_id)
        if not shapes:
            del self._shapes_by_flushed[entry.last_flushed]

    def _update_last_seen(self, offset: LogOffset) -> None:
        self.last_seen_offset = max(self.last_seen_offset, offset)

    def _advance(self) -> int | None:
        # A fragment without a commit may move the ack. Fragments come in commit order, so every transaction before its
        # own has been read. A shape that was caught up is pending from just before it, so if all have flushed up to
        # there, these transactions are done. No commit lies between the last of them and that LSN.
        flushed = self._shapes_by_flushed.peekitem(0)[0] if self._pending else self.last_seen_offset
        self.last_global_flushed_offset = max(self.last_global_flushed_offset, flushed)
        ackable_lsn = self._ackable_lsn()
        if ackable_lsn <= self._ack_lsn:
            return None
        self._ack_lsn = ackable_lsn
        return ackable_lsn

    def _ackable_lsn(self) -> int:
        """The greatest LSN that the entries allow now; below ``ack_lsn`` if an entry moved back after an ack."""
        if self._pending:
            return self.last_global_flushed_offset.tx_offset - 1
        return self.last_seen_offset.tx_offset
