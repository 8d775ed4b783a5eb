"""The exact ack, computed straight from its definition: the oracle for the tracker's core and for the Spark job.

The state is the set of events delivered so far, in whatever order and however often. Every question is answered by a
scan over the complete history: there is no cursor, no tree and no incremental state. The answers that several questions
need are kept until the next event.

- A transaction is *seen* once all its operations and its commit have been delivered and all earlier ones are seen.
- An operation is *delivered* to a shape with a fragment that covers it, or, if the list of the commit's shapes is
  split, with the list part that covers the shape.
- A seen transaction is *safe* once each shape that writes it has flushed its last offset there or has been removed,
  in this transaction or a later one. Only the flushes of the shape's own writer at the time of the transaction count.
- An ack may confirm any prefix of the seen transactions in which all are safe. The *exact* ack confirms the longest.
- A source is *idle* when everything seen is flushed and no transaction is open. The exact ack is then the last commit
  or keepalive seen.
"""

from collections import Counter
from collections.abc import Iterable
from itertools import takewhile

from flushtracker.events.stream_events import FlushNotification, FragmentEvent
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.shape_list import FIRST_LISTED, is_list, listed_at
from tests.support.wal_history import Event, History, Txn


class Delivered:
    """The events of one source that have been delivered so far; order and duplicates do not matter."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._operations: set[tuple[int, int]] = set()
        self._list_parts: dict[int, set[tuple[int, int]]] = {}
        """By transaction, from where to where its list parts reach."""
        self._reached_lsn = -1
        self._commits: set[int] = set()
        self._flushed: dict[tuple[str, str], LogOffset] = {}
        self._removed: dict[tuple[str, str], LogOffset] = {}
        self._seen: list[Txn] | None = None
        self._safe: list[int] | None = None

    def add(self, events: Iterable[Event]) -> None:
        self._seen = self._safe = None
        for event in events:
            if event.source != self._history.source:
                continue
            if isinstance(event, FragmentEvent):
                self._add_fragment(event)
            else:
                self._add_flush(event)

    def _add_fragment(self, fragment: FragmentEvent) -> None:
        lsn, follows, last_op = fragment.lsn, fragment.follows, fragment.last_log_offset.op_offset
        first_op = follows.op_offset + 1 if follows.tx_offset == lsn else 0
        if is_list(last_op):
            first_op = max(first_op, FIRST_LISTED)
            self._list_parts.setdefault(lsn, set()).add((first_op, last_op))
        else:
            self._operations.update((lsn, op) for op in range(first_op, last_op + 1))
        self._reached_lsn = max(self._reached_lsn, lsn)
        if fragment.commit is not None:
            self._commits.add(lsn)

    def _add_flush(self, event: FlushNotification) -> None:
        offsets = self._removed if event.type == "removed" else self._flushed
        key = event.shape_id, event.writer
        offsets[key] = max(offsets.get(key, event.offset), event.offset)

    def seen_txns(self) -> list[Txn]:
        """The longest prefix of transactions delivered with every operation and the commit."""
        if self._seen is not None:
            return self._seen
        seen = []
        for txn in self._history.txns:
            if txn.lsn not in self._commits or not self._has_all(txn):
                break
            seen.append(txn)
        self._seen = seen
        return seen

    def _has_all(self, txn: Txn) -> bool:
        """Whether every operation has been delivered to every shape that writes it."""
        if txn.offsets <= self._operations:
            return True
        return txn.lsn in self._list_parts and all(self._is_delivered(*written[:2]) for written in txn.written)

    def _is_delivered(self, offset: LogOffset, shape_id: str) -> bool:
        if offset in self._operations:
            return True
        at, parts = listed_at(shape_id), self._list_parts.get(offset.tx_offset, ())
        return any(first <= at <= last for first, last in parts)

    def last_seen_lsn(self) -> int:
        """The last commit or keepalive before the first unseen transaction; -1 if there is none."""
        unseen = self._history.txns[len(self.seen_txns()) :]
        end = unseen[0].lsn if unseen else float("inf")
        return max((lsn for lsn in self._commits if lsn < end), default=-1)

    def safe_lsns(self) -> list[int]:
        """The longest prefix of the seen transactions in which all are safe, as commit LSNs."""
        if self._safe is None:
            self._safe = [txn.lsn for txn in takewhile(self.is_safe, self.seen_txns())]
        return self._safe

    def is_safe(self, txn: Txn) -> bool:
        """Whether every shape that writes the transaction has flushed it or has been removed."""
        return all(self._is_done(shape_id, last) for shape_id, last in txn.last_written.items())

    def is_idle(self) -> bool:
        """Whether everything seen is flushed and no transaction is open."""
        is_open = self._reached_lsn > self.last_seen_lsn()
        return not is_open and len(self.safe_lsns()) == len(self.seen_txns())

    def pending_shapes(self) -> set[tuple[str, str]]:
        """The shapes, each with its writer, that have a delivered change that is neither flushed nor removed."""
        return {
            (shape_id, txn.writer_of(shape_id))
            for txn in self._history.txns
            for offset, shape_id, last in txn.written
            if self._is_delivered(offset, shape_id) and not self._is_done(shape_id, last)
        }

    def most_pending(self) -> int:
        """The greatest number of delivered transactions, an open one included, that one shape has not flushed."""
        pending: Counter[tuple[str, str]] = Counter()
        for txn in self._history.txns:
            delivered = {
                shape_id
                for offset, shape_id, _ in txn.written
                if txn.lsn in self._commits or self._is_delivered(offset, shape_id)
            }
            pending.update((s, txn.writer_of(s)) for s in delivered if not self._is_done(s, txn.last_written[s]))
        return max(pending.values(), default=0)

    def _is_done(self, shape_id: str, last: LogOffset) -> bool:
        key = shape_id, self._history.writer_of(shape_id, last)
        flushed, removed = self._flushed.get(key), self._removed.get(key)
        if flushed is not None and flushed >= last:
            return True
        return removed is not None and last.tx_offset <= removed.tx_offset

    def confirmed_by(self, ack_lsn: int) -> list[int]:
        """The transactions that an ack confirms, seen or not, as commit LSNs."""
        return [txn.lsn for txn in self._history.txns if txn.lsn <= ack_lsn]

    def assert_safe(self, ack_lsn: int) -> None:
        """The ack confirms only safe transactions; it may lag."""
        confirmed, safe = self.confirmed_by(ack_lsn), self.safe_lsns()
        assert confirmed == safe[: len(confirmed)], f"ack {ack_lsn} confirms {confirmed}, but only {safe} are safe"

    def assert_all_confirmed(self, ack_lsn: int) -> None:
        """The ack confirms every safe transaction and no other."""
        confirmed, safe = self.confirmed_by(ack_lsn), self.safe_lsns()
        assert confirmed == safe, f"ack {ack_lsn} confirms {confirmed}, but {safe} are safe"

    def assert_exact(self, ack_lsn: int) -> None:
        """As :meth:`assert_all_confirmed`; if the source is idle, the ack also covers the last keepalive seen."""
        self.assert_all_confirmed(ack_lsn)
        if self.is_idle():
            last_seen_lsn = self.last_seen_lsn()
            assert ack_lsn == last_seen_lsn, f"ack {ack_lsn} of an idle source, but {last_seen_lsn} has been seen"
