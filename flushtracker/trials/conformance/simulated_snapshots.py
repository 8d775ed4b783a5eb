"""``SimulatedSnapshots``: snapshot attempts of a shape as capture publishes them: complete, torn or late."""

from collections.abc import Iterator
from random import Random
from typing import Final

from flushtracker.events.snapshot_events import SnapshotEnd, SnapshotEvent, SnapshotRow
from flushtracker.trials.conformance.simulated_source import SimulatedSource
from flushtracker.trials.conformance.simulated_table import rows_after, snapshot_rows, touches
from flushtracker.wal.contained_transactions import ContainedTransactions

_AHEAD: Final = 4
_UNSEEN_AMONG: Final = 6
_UNSEEN_SHARE: Final = 0.5
_TORN_SHARE: Final = 0.5


class SimulatedSnapshots:
    """The snapshots of one shape; they may contain transactions that have not been sent."""

    def __init__(self, source: SimulatedSource, shape_id: str, rng: Random) -> None:
        self.source, self.shape_id, self._rng = source, shape_id, rng
        self._attempt = 0
        self._incarnation = source.incarnations[shape_id]
        self._events: Iterator[SnapshotEvent] = iter(())
        self._late: list[SnapshotEvent] = []

    def next_events(self) -> list[SnapshotEvent]:
        """Return the next event: of the current attempt, or a late one of the previous attempt, as of a frozen
        process.
        """
        event = next(self._events, None)
        if event is not None:
            return [event]
        first, *others = events = self.attempt(self._rng.randint(0, _AHEAD))
        done = self._rng.randrange(len(events)) if self._rng.random() < _TORN_SHARE else len(events)
        self._events = iter([*self._late, *others[:done]])
        self._late = others[done:] if self._rng.random() < 0.5 else []
        return [first]

    def attempt(self, ahead: int) -> list[SnapshotEvent]:
        """Return all events of a new attempt, after ``ahead`` further transactions; some transactions are not visible
        to it.
        """
        source, rng = self.source, self._rng
        for _ in range(ahead):
            source.transaction(len(source.transactions))
        self._attempt += rng.randint(1, 1000)
        self._incarnation = source.incarnations[self.shape_id]
        unseen = self._unseen()
        rows = source.tables[self.shape_id].first_rows
        for transaction in source.transactions:
            if transaction.xid not in unseen:
                rows = rows_after(rows, source.items_of(transaction, self.shape_id))
        contained = ContainedTransactions(
            source.next_lsn - rng.randint(1, 90), tuple((xid, xid) for xid in sorted(unseen))
        )
        found, left, number = list[SnapshotEvent](), snapshot_rows(rows), 0
        while left or not found:
            count = rng.randint(0, 5)
            found.append(self._event(number, tuple(left[:count])))
            left, number = left[count:], number + 1
        return [*found, self._event(number, (), SnapshotEnd(len(rows), contained))]

    def _event(self, number: int, rows: tuple[SnapshotRow, ...], end: SnapshotEnd | None = None) -> SnapshotEvent:
        incarnation = self._incarnation.number
        return SnapshotEvent(self.source.name, self.shape_id, self._attempt, number, rows, end, incarnation)

    def _unseen(self) -> set[int]:
        """Pick some of the last transactions so that no later visible one depends on their rows; returns their xids."""
        unseen, later = set[int](), set[str]()
        for transaction in self.source.transactions[: -_UNSEEN_AMONG - 1 : -1]:
            keys = touches(self.source.items_of(transaction, self.shape_id))
            # Transactions up to ``starts_after`` are visible to every snapshot of this incarnation.
            if keys is None or transaction.lsn <= self._incarnation.starts_after:
                break
            if keys.isdisjoint(later) and self._rng.random() < _UNSEEN_SHARE:
                unseen.add(transaction.xid)
            else:
                later |= keys
        return unseen
