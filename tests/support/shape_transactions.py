"""Random transactions of a shape as events, cut into fragments at random, and the rows of a complete log of them."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from flushtracker.events.stream_events import ShapeChangesEvent
from flushtracker.shape_log.log_row import COMMIT
from flushtracker.wal.changes import Commit, LogItem
from flushtracker.wal.log_offset import LogOffset

SOURCE = "1/1/shapes"


@dataclass
class Transactions:
    """Transactions of one shape, and their events, cut at random."""

    shape_id: str = "a"
    rng: random.Random = field(default_factory=lambda: random.Random(1))  # noqa: S311  a test
    incarnation: int = 1
    items: dict[int, tuple[LogItem, ...]] = field(default_factory=dict)
    _last: LogOffset | None = None
    _ending_elsewhere: set[int] = field(default_factory=set)
    """The transactions whose last change is not the shape's: however they are cut, the commit has its offset."""

    def grow(self, count: int, above: int = 0) -> None:
        """Add transactions with one to six items, that commit above an LSN."""
        for _ in range(count):
            lsn = max(above, *self.items, 1000) + self.rng.randint(50, 90)
            ops = sorted(self.rng.sample(range(0, 40, 2), self.rng.randint(1, 6)))
            # An update that splits has a second item, at an odd offset.
            ops = sorted({*ops, *(op + 1 for op in ops if self.rng.random() < 0.2)})
            self.items[lsn] = tuple(
                LogItem(LogOffset(lsn, op), "insert", f'"t"/"{lsn}-{op}"', {"v": "x" * self.rng.randint(0, 30)})
                for op in ops
            )
            if self.rng.random() < 0.3:
                self._ending_elsewhere.add(lsn)

    def restart(self) -> None:
        """The next event is a start, as after a start of capture."""
        self._last = None

    def begin_again(self) -> None:
        """What follows is of the next incarnation."""
        self.incarnation += 1
        self.restart()

    def events(self, lsns: list[int], *, until: int | None = None) -> Iterator[ShapeChangesEvent]:
        """The events of these transactions; only ``until`` of the last one's."""
        for lsn in lsns:
            evens = sorted({item.offset.op_offset & ~1 for item in self.items[lsn]})
            ends = sorted({*self.rng.sample(evens, self.rng.randint(0, len(evens) - 1)), evens[-1]})
            if lsn in self._ending_elsewhere:
                ends.append(ends[-1] + 2)  # a commit that brings nothing
            begin = -1
            for number, end in enumerate(ends if lsn != lsns[-1] else ends[:until]):
                items = tuple(item for item in self.items[lsn] if begin < item.offset.op_offset & ~1 <= end)
                commit = Commit(f"2026-11-22T00:00:00.{lsn:06}Z", lsn + 40) if end == ends[-1] else None
                last = LogOffset(lsn, end)
                yield ShapeChangesEvent(
                    *(SOURCE, self.shape_id, lsn, self._last or LogOffset(900, 0), last),
                    *(self._last is None, number == 0, commit, items, self.incarnation),
                )
                self._last, begin = last, end

    def confirmed(self, notified: LogOffset) -> int:
        """The last transaction that the tracker takes as flushed: with its last item, wherever its commit is."""
        return max((lsn for lsn, items in self.items.items() if items[-1].offset <= notified), default=0)

    def confirmed_rows(self, notified: LogOffset) -> set[tuple[int, int, str]]:
        """The rows that nobody sends again: items up to the notification, and all of the transactions confirmed."""
        ends = {lsn for lsn, items in self.items.items() if items[-1].offset <= notified}
        return {row for row in self.expected_rows() if row[0] in ends or row[:2] <= notified}

    def expected_rows(self) -> list[tuple[int, int, str]]:
        """Offset and operation of each row of a complete log."""
        rows = []
        for lsn, items in sorted(self.items.items()):
            rows += [(*item.offset, item.operation) for item in items] + [(*LogOffset.last_of(lsn), COMMIT)]
        return rows
