"""What may be acknowledged, by definition: no cursor, no tree, no increments, only the set of delivered events."""

from collections.abc import Iterable

from flushtracker.events.stream_events import FlushNotification, FragmentEvent
from flushtracker.wal.log_offset import LogOffset
from tests.support.in_memory_job import Event
from tests.support.wal_history import History, Txn


class Delivered:
    """The set of a source's events that have reached the job so far, in whatever order and number."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._operations: set[LogOffset] = set()
        self._commits: set[int] = set()
        self._flushed: dict[str, LogOffset] = {}
        self._removed: dict[str, LogOffset] = {}

    def add(self, events: Iterable[Event]) -> None:
        for event in events:
            if event.source != self._history.source:
                continue
            if isinstance(event, FragmentEvent):
                self._add_fragment(event)
            else:
                self._add_flush(event)

    def _add_fragment(self, fragment: FragmentEvent) -> None:
        first_op = fragment.follows.op_offset + 1 if fragment.follows.tx_offset == fragment.lsn else 0
        for op in range(first_op, fragment.last_log_offset.op_offset + 1):
            self._operations.add(LogOffset(fragment.lsn, op))
        if fragment.commit is not None:
            self._commits.add(fragment.lsn)

    def _add_flush(self, event: FlushNotification) -> None:
        offsets = self._removed if event.type == "removed" else self._flushed
        offsets[event.shape_id] = max(offsets.get(event.shape_id, event.offset), event.offset)

    def seen_txns(self) -> list[Txn]:
        """The longest prefix of transactions that have arrived with every operation and their commit."""
        seen = []
        for txn in self._history.txns:
            operations = {LogOffset(txn.lsn, 2 * index) for index in range(len(txn.operations))}
            if txn.lsn not in self._commits or not operations <= self._operations:
                break
            seen.append(txn)
        return seen

    def last_seen_lsn(self) -> int:
        """The last commit or keepalive with nothing unseen before it; -1 without any."""
        unseen = self._history.txns[len(self.seen_txns()) :]
        end = unseen[0].lsn if unseen else float("inf")
        return max((lsn for lsn in self._commits if lsn < end), default=-1)

    def confirmed_lsns(self) -> list[int]:
        """The longest prefix of the seen transactions that are all safe, by commit LSN."""
        confirmed = []
        for txn in self.seen_txns():
            if not self.is_safe(txn):
                break
            confirmed.append(txn.lsn)
        return confirmed

    def is_safe(self, txn: Txn) -> bool:
        """Whether each of its shapes has flushed it or was removed."""
        return all(self._is_done(shape_id, last) for shape_id, last in txn.last_written().items())

    def is_idle(self) -> bool:
        """Whether all that was seen is flushed, and no transaction is open."""
        is_open = any(offset.tx_offset > self.last_seen_lsn() for offset in self._operations)
        return not is_open and len(self.confirmed_lsns()) == len(self.seen_txns())

    def _is_done(self, shape_id: str, last: LogOffset) -> bool:
        if self._flushed.get(shape_id, LogOffset.before_all()) >= last:
            return True
        return shape_id in self._removed and last.tx_offset <= self._removed[shape_id].tx_offset

    def confirmed_by(self, ack_lsn: int) -> list[int]:
        """The transactions, seen or not, that an ack confirms."""
        return [txn.lsn for txn in self._history.txns if txn.lsn <= ack_lsn]

    def assert_safe(self, ack_lsn: int) -> None:
        confirmed, allowed = self.confirmed_by(ack_lsn), self.confirmed_lsns()
        assert confirmed == allowed[: len(confirmed)], f"ack {ack_lsn} confirms {confirmed}, safe are {allowed}"

    def assert_all_confirmed(self, ack_lsn: int) -> None:
        """Neither a transaction more nor one less than may be confirmed."""
        confirmed, allowed = self.confirmed_by(ack_lsn), self.confirmed_lsns()
        assert confirmed == allowed, f"ack {ack_lsn} confirms {confirmed}, safe are {allowed}"

    def assert_exact(self, ack_lsn: int) -> None:
        """As before, and with nothing pending all that was seen is acknowledged, keepalives too."""
        self.assert_all_confirmed(ack_lsn)
        if self.is_idle():
            assert ack_lsn == self.last_seen_lsn(), f"ack {ack_lsn} with nothing pending, seen {self.last_seen_lsn()}"
