"""Per-shape offset state: turns the raw storage offsets that a writer reports into transaction-aligned ones.

**State of a shape.** Its pending transactions, oldest first, each as *(last offset the shape writes for it →
boundary)*; the open transaction, of which no commit has come yet; the highest flush ever reported; and its removal.

**The rule.** A transaction is flushed when the reported flush is at or past the last offset that the shape writes for
it, whichever of the two arrives first. The shape's ``last_flushed`` is then one before the first transaction that is
still pending (everything earlier is done, whether the shape saw it or not), or the partial flush inside it. A removal
at R completes every transaction of the shape up to and including R's, open or not, read or not yet.

**Careful about.** Flushes and fragments have no common order, so a flush must be kept until its transaction has come,
and one that lies between two fragments of a transaction must still count when the commit brings nothing for the shape.
Both go only when the group's cursor has passed them (a removal: the end of its transaction, of which a resend may cut
the rest otherwise) and no transaction of the shape is left that they could complete.
"""

from dataclasses import dataclass, field
from itertools import pairwise

from flushtracker.tracking.flush_tracker import Pending
from flushtracker.wal.log_offset import LogOffset


@dataclass(frozen=True, slots=True)
class PendingTxn:
    """A committed transaction that the shape has not flushed, or several neighbours merged into one.

    ``first_tx_offset`` is the commit LSN of the (first) transaction; ``last_offset`` the last offset that the shape
    writes for the (last) one, and ``boundary`` its end. An update that splits writes one past the boundary.
    """

    first_tx_offset: int
    last_offset: LogOffset
    boundary: LogOffset

    def merged_with(self, later: "PendingTxn") -> "PendingTxn":
        """One entry for both, flushed when the later is: never unsafe, only less exact."""
        return PendingTxn(self.first_tx_offset, later.last_offset, later.boundary)


@dataclass(slots=True)
class ShapeOffsets:
    """What one shape has been sent and has flushed. Offsets only; ``since_ms`` belongs to the pending period.

    Fragments come in stream order and never below the group's cursor; flushes and removals at any time.
    """

    txn_offset_mapping: list[PendingTxn] = field(default_factory=list)
    open_offset: LogOffset | None = None
    flushed_offset: LogOffset | None = None
    removed_offset: LogOffset | None = None
    since_ms: int = 0

    def handle_fragment(self, last_offset: LogOffset | None, boundary: LogOffset, *, is_commit: bool) -> None:
        """Take the shape's part of a fragment that ends at ``boundary``: the last offset written, ``None`` for none."""
        if self.open_offset is not None and self.open_offset.tx_offset < boundary.tx_offset:
            # Its commit did not list this shape. What was sent is still owed.
            self._close(self.open_offset, self.open_offset)
        if last_offset is not None and not self._is_removed(last_offset):
            self.open_offset = last_offset if self.open_offset is None else max(self.open_offset, last_offset)
        if self.open_offset is not None and (is_commit or self._has_commit(boundary.tx_offset)):
            self._close(self.open_offset, boundary)

    def handle_flush(self, offset: LogOffset) -> None:
        """Take a flush as the writer reported it; an older one changes nothing."""
        if self.flushed_offset is None or offset > self.flushed_offset:
            self.flushed_offset = offset

    def handle_removed(self, offset: LogOffset) -> None:
        """Take the shape's removal: nothing was or will be routed to it after ``offset``."""
        if self.removed_offset is None or offset > self.removed_offset:
            self.removed_offset = offset
        self.txn_offset_mapping = [txn for txn in self.txn_offset_mapping if not self._is_removed(txn.last_offset)]
        if self.open_offset is not None and self._is_removed(self.open_offset):
            self.open_offset = None

    def settle(self, cursor: LogOffset, max_pending: int) -> None:
        """Drop what is complete, and the flush and the removal that nothing up to ``cursor`` can need any more."""
        self.align_offset_to_txn_boundary()
        if len(self.txn_offset_mapping) > max_pending:
            self._merge_neighbours(max_pending)
        if self.has_transactions:
            return
        if self.flushed_offset is not None and self.flushed_offset <= cursor:
            self.flushed_offset = None
        # The rest of the removal's transaction may be cut otherwise when resent, and list the shape's changes anew.
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
        """Whether nothing about the shape needs to be remembered."""
        return not self.has_transactions and self.flushed_offset is None and self.removed_offset is None

    def pending(self) -> Pending | None:
        """The shape's aligned ``last_sent`` and ``last_flushed``, ``None`` when it is caught up; after ``settle``."""
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
        """Raise ``AssertionError`` where the mapping is out of order or a complete one is kept; after ``settle``."""
        txns = self.txn_offset_mapping
        for txn in txns:
            if not txn.first_tx_offset <= txn.last_offset.tx_offset == txn.boundary.tx_offset:
                raise AssertionError(f"{txn} spans no transaction")
        for before, after in pairwise(txns):
            if before.boundary.tx_offset >= after.first_tx_offset:
                raise AssertionError(f"{before} is not before {after}")
        if txns and self.open_offset is not None and self.open_offset.tx_offset <= txns[-1].boundary.tx_offset:
            raise AssertionError(f"open transaction {self.open_offset} is not after {txns[-1]}")
        if txns and self.flushed_offset is not None and txns[0].last_offset <= self.flushed_offset:
            raise AssertionError(f"{txns[0]} is complete by the flush {self.flushed_offset}")

    def _is_removed(self, offset: LogOffset) -> bool:
        return self.removed_offset is not None and offset.tx_offset <= self.removed_offset.tx_offset

    def _has_commit(self, tx_offset: int) -> bool:
        """Whether the transaction's commit came first, in a resend that cut it into other fragments."""
        return bool(self.txn_offset_mapping) and self.txn_offset_mapping[-1].boundary.tx_offset == tx_offset

    def _close(self, last_offset: LogOffset, boundary: LogOffset) -> None:
        self.open_offset = None
        txns = self.txn_offset_mapping
        if txns and txns[-1].boundary.tx_offset == boundary.tx_offset:
            # The commit was sent twice, cut into other fragments the second time.
            txn = txns[-1]
            txns[-1] = PendingTxn(txn.first_tx_offset, max(txn.last_offset, last_offset), max(txn.boundary, boundary))
        else:
            txns.append(PendingTxn(boundary.tx_offset, last_offset, boundary))

    def _merge_neighbours(self, max_pending: int) -> None:
        """Merge pairs until half of ``max_pending`` is left, so that the next merge is far away."""
        txns = self.txn_offset_mapping
        while len(txns) > max(1, max_pending // 2):
            pairs = zip(txns[::2], txns[1::2], strict=False)
            txns = [first.merged_with(second) for first, second in pairs] + txns[len(txns) & ~1 :]
        self.txn_offset_mapping = txns
