"""``RangeIndex``: finds the items whose range contains a value, without testing the others.

Items are kept in *runs*. A run is sorted by the lower end of its ranges, so one binary search finds those that start at
or before the value: a first part of the run. Above them is a tree of the greatest upper ends of 2, 4, 8, … neighbors. A
search descends in it only where some range ends at or after the value. So a search of a run takes O(log n + m log n)
steps for m items found, whether ranges overlap or not.

A run's order is never changed. New items are collected in a short list, which is scanned; when it is long enough, it
becomes a run, merged with all earlier runs that are not much longer. So a million items added at once are sorted once,
an item added later is moved O(log n) times, and there are O(log n) runs. A removed item leaves a gap that is never
found; a run that consists of gaps by half is rebuilt.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import Final, Generic, TypeAlias, TypeVar

from flushtracker.shapes.where.sql_values import Value
from flushtracker.shapes.where.value_range import LOWEST, ValueRange

_T = TypeVar("_T")
_Entry: TypeAlias = tuple[Value, Value, _T]
"""The lower end, the upper end, and the item."""

_MAX_RECENT: Final = 16
"""New items are scanned, up to this many."""
_MERGE_RATIO: Final = 4
"""A run is merged with a new one unless it is longer by more than this factor."""


class RangeIndex(Generic[_T]):
    """Items by their range. An item may be added only once, and equals only itself."""

    __slots__ = ("_recent", "_runs")

    def __init__(self) -> None:
        self._recent: list[_Entry[_T]] = []
        # Longest first.
        self._runs: list[_Run[_T]] = []

    def __len__(self) -> int:
        return len(self._recent) + sum(len(run) for run in self._runs)

    def __iter__(self) -> Iterator[tuple[ValueRange, _T]]:
        for run in self._runs:
            yield from ((ValueRange(low, high), item) for low, high, item in run.entries())
        yield from ((ValueRange(low, high), item) for low, high, item in self._recent)

    def add(self, values: ValueRange, item: _T) -> None:
        """Add an item; O(1), and the next search sorts what was added since the last."""
        self._recent.append((values.low, values.high, item))

    def remove(self, values: ValueRange, item: _T) -> None:
        """Remove an item that was added with ``values``; O(log n) and a scan of the items with the same lower end.

        Raises ``KeyError`` if it is not there.
        """
        self._settle()
        for place, entry in enumerate(self._recent):
            if entry[2] == item:
                del self._recent[place]
                return
        for number, run in enumerate(self._runs):
            if run.remove(values.low, item):
                if 2 * len(run) <= run.places:
                    self._runs[number : number + 1] = [_Run(list(run.entries()))] if len(run) else []
                return
        raise KeyError(item)

    def find(self, value: Value) -> list[_T]:
        """The items whose range contains ``value``, unordered."""
        self._settle()
        # The ends come first in each comparison: a NaN on the left would be greater than HIGHEST, too.
        found = [item for low, high, item in self._recent if low <= value and high >= value]
        for run in self._runs:
            run.find(value, found)
        return found

    def _settle(self) -> None:
        """Turn the recent items into a run if they are too many to scan."""
        if len(self._recent) <= _MAX_RECENT:
            return
        entries, self._recent = self._recent, []
        while self._runs and len(self._runs[-1]) <= _MERGE_RATIO * len(entries):
            entries = [*self._runs.pop().entries(), *entries]
        self._runs.append(_Run(entries))

    def check_invariants(self) -> None:
        """Raise ``AssertionError`` if a run is out of order or its tree is wrong; for tests."""
        for run in self._runs:
            run.check_invariants()
        # Removals shorten runs, so only their number is bounded, not the ratio of neighbors.
        if any(2 * len(run) <= run.places for run in self._runs):
            raise AssertionError("a run consists of gaps for the most part")


class _Run(Generic[_T]):
    """Items sorted by the lower end of their range; only gaps can be added."""

    __slots__ = ("_gaps", "_highs", "_items", "_lows")

    def __init__(self, entries: list[_Entry[_T]]) -> None:
        entries.sort(key=itemgetter(0))
        self._lows: list[Value] = [entry[0] for entry in entries]
        self._items: list[_T | None] = [entry[2] for entry in entries]
        # `_highs[level][place]` is the greatest upper end of the 2 ** level items starting at `place << level`.
        self._highs: list[list[Value]] = [[entry[1] for entry in entries]]
        while len(below := self._highs[-1]) > 1:
            above = list(map(max, below[::2], below[1::2]))
            self._highs.append(above + below[-1:] if len(below) % 2 else above)
        self._gaps = 0

    def __len__(self) -> int:
        return len(self._items) - self._gaps

    @property
    def places(self) -> int:
        """The number of items and gaps."""
        return len(self._items)

    def entries(self) -> Iterator[_Entry[_T]]:
        for low, high, item in zip(self._lows, self._highs[0], self._items, strict=True):
            if item is not None:
                yield low, high, item

    def find(self, value: Value, found: list[_T]) -> None:
        # The items before `end` start at or before the value. They form complete subtrees, one for each bit that is set
        # in `end`; the last subtree belongs to the lowest bit.
        end = bisect_right(self._lows, value)
        for level, highs in enumerate(self._highs):
            if end & 1 and highs[end - 1] >= value:
                self._collect(value, level, end - 1, found)
            end >>= 1
            if not end:
                break

    def _collect(self, value: Value, level: int, place: int, found: list[_T]) -> None:
        """Append the matching items of a subtree whose greatest upper end reaches ``value``."""
        places: Iterable[int] = (place,)
        while level:
            level -= 1
            highs = self._highs[level]
            places = [child for place in places for child in (2 * place, 2 * place + 1) if highs[child] >= value]
        items = self._items
        found += [item for place in places if (item := items[place]) is not None]

    def remove(self, low: Value, item: _T) -> bool:
        """Replace an item by a gap; false if it is not in this run."""
        try:
            place = self._items.index(item, bisect_left(self._lows, low), bisect_right(self._lows, low))
        except ValueError:
            return False
        self._items[place] = None
        self._highs[0][place] = LOWEST
        for below, above in zip(self._highs, self._highs[1:], strict=False):
            place //= 2
            above[place] = max(below[2 * place : 2 * place + 2])
        self._gaps += 1
        return True

    def check_invariants(self) -> None:
        if any(after < before for before, after in zip(self._lows, self._lows[1:], strict=False)):
            raise AssertionError("the lower ends of a run are not sorted")
        if self._gaps != sum(item is None for item in self._items):
            raise AssertionError(f"a run counts {self._gaps} gaps")
        for level, highs in enumerate(self._highs):
            for place, highest in enumerate(highs):
                covered = self._highs[0][place << level : (place + 1) << level]
                if not all(highest >= high for high in covered) or all(high is not highest for high in covered):
                    raise AssertionError(f"the tree has {highest} above {covered}")
