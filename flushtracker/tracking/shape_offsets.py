"""``ShapeOffsets``: turns the raw storage offsets that a shape's writer reports into transaction-aligned ones.

**State.** The shape's pending transactions, oldest first, each as *(last offset that the shape writes for it →
boundary)*; its open transaction, whose commit has not arrived yet; the highest flush reported so far; and its removal.

**Rule.** A transaction is flushed when the reported flush is at or past the last offset that the shape writes for it,
whichever of the two arrives first. The aligned ``last_flushed`` is one before the first transaction still pending
(everything earlier is done, whether or not it concerned the shape), or the partial flush inside that transaction, if
greater. A removal at R completes all transactions of the shape up to and including R's, open or not, seen or not.

**Retention.** Flushes and fragments have no common order. A flush must be kept until its transaction arrives, and a
flush between two fragments of a transaction must still count when the commit has no change for the shape. A flush or a
removal is dropped only when the group's cursor has passed it and the shape has no transaction left that it could
complete. For a removal, the cursor must pass the end of its transaction, because a resend may cut the rest differently.
"""

from dataclasses import dataclass, field
from itertools import pairwise

from flushtracker.tracking.flush_tracker import Pending
from flushtracker.wal.log_offset import LogOffset


@dataclass(frozen=True, slots=True)
class PendingTxn:
    """A committed transaction that the shape has not flushed, or several adjacent ones merged.

    ``first_tx_offset`` is the commit LSN of the (first) transaction, ``last_offset`` the last offset that the shape
    writes for the (last) one, and ``boundary`` its end. An update that splits is written one past the boundary.
    """

    first_tx_offset: int
    last_offset: LogOffset
    boundary: LogOffset

    def merged_with(self, later: "PendingTxn") -> "PendingTxn":
        """Return one entry for both, flushed when the later one is: never unsafe, only less exact."""
        return PendingTxn(self.first_tx_offset, later.last_offset, later.boundary)


@dataclass(slots=True)
class ShapeOffsets:
    """The offsets that one shape was sent and has flushed; ``since_ms`` is that of :class:`Pending`.

    Fragments arrive in stream order and never below the group's cursor, flushes and removals at any time.
    """

    txn_offset_mapping: list[PendingTxn] = field(default_factory=list)
    open_offset: LogOffset | None = None
    flushed_offset: LogOffset | None = None
    removed_offset: LogOffset | None = None
    since_ms: int = 0

    def handle_fragment(self, last_offset: LogOffset | None, boundary: LogOffset, *, is_commit: bool) -> None:
        """Apply the shape's part of a fragment that ends at ``boundary``: its last offset, ``None`` if it has none."""
        if self.open_offset is not None and self.open_offset.tx_offset < boundary.tx_offset:
            # The open transaction's commit did not list this shape, but the shape must still flush what it was sent.
            self._close(self.open_offset, self.open_offset)
        if last_offset is not None and not self._is_removed(last_offset):
            self.open_offset = last_offset if self.open_offset is None else max(self.open_offset, last_offset)
        if self.open_offset is not None and (is_commit or self._has_commit(boundary.tx_offset)):
            self._close(self.open_offset, boundary)

    def handle_flush(self, offset: LogOffset) -> None:
        """Apply a flush as the writer reported it; an older one changes nothing."""
        if self.flushed_offset is None or offset > self.flushed_offset:
            self.flushed_offset = offset

    def handle_removed(self, offset: LogOffset) -> None:
        """Apply the shape's removal: nothing was or will be routed to it after ``offset``."""
        if self.removed_offset is None or offset > self.removed_offset:
            self.removed_offset = offset
        self.txn_offset_mapping = [txn for txn in self.txn_offset_mapping if not self._is_removed(txn.last_offset)]
        if self.open_offset is not None and self._is_removed(self.open_offset):
            self.open_offset = None

    def settle(self, cursor: LogOffset, max_pending: int) -> None:
        """Drop completed transactions, and a flush or removal that nothing can need after ``cursor``."""
        self.align_offset_to_txn_boundary()
        if len(self.txn_offset_mapping) > max_pending:
            self._merge_neighbours(max_pending)
        if self.has_transactions:
            return
        if self.flushed_offset is not None and self.flushed_offset <= cursor:
            self.flushed_offset = None
        # A resend may cut the rest of the removal's transaction differently and list the shape's changes again.
        if self.removed_offset is not None and LogOffset.last_of(self.removed_offset.tx_offset) <= cursor:
            self.removed_offset = None

    def align_offset_to_txn_boundary(self) -> None:
        """Drop the leading transactions of ``txn_offset_mapping`` that the reported flush completes."""
        flushed = self.flushed_offset
        if flushed is None:
            return
        done = 0
        for txn in self.txn_offset_mapping:
            if txn.last_offset > flushed:
                break
            done += 1
        del self.txn_offset_mapping[:done]

    @property
    def has_transactions(self) -> bool:
        """Whether a transaction is pending or open."""
        return bool(self.txn_offset_mapping) or self.open_offset is not None

    @property
    def is_empty(self) -> bool:
        """Whether there is no state left to keep for the shape."""
        return not self.has_transactions and self.flushed_offset is None and self.removed_offset is None

    def pending(self) -> Pending | None:
        """The shape's aligned ``last_sent`` and ``last_flushed``, ``None`` if caught up; call ``settle`` first."""
        open_offset = self.open_offset
        if open_offset is not None and self.flushed_offset is not None and self.flushed_offset >= open_offset:
            open_offset = None
        if self.txn_offset_mapping:
            first_tx_offset = self.txn_offset_mapping[0].first_tx_offset
            last = self.txn_offset_mapping[-1]
            last_sent = max(last.last_offset, last.boundary)
        elif open_offset is not None:
            first_tx_offset = open_offset.tx_offset
            last_sent = open_offset
        else:
            return None
        last_flushed = LogOffset.just_before(first_tx_offset)
        if self.flushed_offset is not None:
            last_flushed = max(last_flushed, self.flushed_offset)
        return Pending(last_sent if open_offset is None else max(last_sent, open_offset), last_flushed, self.since_ms)

    def check_invariants(self) -> None:
        """Raise ``AssertionError`` if transactions are out of order or a completed one is kept; after ``settle``."""
        txns = self.txn_offset_mapping
        for txn in txns:
            if not txn.first_tx_offset <= txn.last_offset.tx_offset == txn.boundary.tx_offset:
                raise AssertionError(f"{txn} has offsets out of order, or of different transactions")
        for before, after in pairwise(txns):
            if before.boundary.tx_offset >= after.first_tx_offset:
                raise AssertionError(f"{before} is not before {after}")
        if txns and self.open_offset is not None and self.open_offset.tx_offset <= txns[-1].boundary.tx_offset:
            raise AssertionError(f"open transaction {self.open_offset} is not after {txns[-1]}")
        if txns and self.flushed_offset is not None and txns[0].last_offset <= self.flushed_offset:
            raise AssertionError(f"{txns[0]} is completed by the flush {self.flushed_offset} but still kept")

    def _is_removed(self, offset: LogOffset) -> bool:
        return self.removed_offset is not None and offset.tx_offset <= self.removed_offset.tx_offset

    def _has_commit(self, tx_offset: int) -> bool:
        """Whether the transaction's commit has already arrived; a resend may cut it into other fragments."""
        return bool(self.txn_offset_mapping) and self.txn_offset_mapping[-1].boundary.tx_offset == tx_offset

    def _close(self, last_offset: LogOffset, boundary: LogOffset) -> None:
        self.open_offset = None
        txns = self.txn_offset_mapping
        if txns and txns[-1].boundary.tx_offset == boundary.tx_offset:
            # The transaction was resent, cut into other fragments.
            txn = txns[-1]
            txns[-1] = PendingTxn(txn.first_tx_offset, max(txn.last_offset, last_offset), max(txn.boundary, boundary))
        else:
            txns.append(PendingTxn(boundary.tx_offset, last_offset, boundary))

    def _merge_neighbours(self, max_pending: int) -> None:
        """Merge adjacent pairs until at most half of ``max_pending`` remain, so that merges are rare."""
        txns = self.txn_offset_mapping
        while len(txns) > max(1, max_pending // 2):
            pairs = zip(txns[::2], txns[1::2], strict=False)
            txns = [first.merged_with(second) for first, second in pairs] + txns[len(txns) & ~1 :]
        self.txn_offset_mapping = txns
