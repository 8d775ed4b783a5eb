"""The range index finds what a scan finds, in time that grows with the logarithm, whatever the ranges are."""

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given

from flushtracker.shapes.range_index import RangeIndex
from flushtracker.shapes.where.number_values import parse_numeric
from flushtracker.shapes.where.value_range import HIGHEST, LOWEST, ValueRange
from tests.support.random_wal import RANDOMS


class Item:
    """Compared by identity, as shapes are."""


NUMBERS = [parse_numeric(text) for text in ("-Infinity", "-1", "-0", "0", "0.5", "1", "2", "3", "Infinity", "NaN")]


def random_range(rng: Random) -> ValueRange:
    """Some are empty, and some have open ends."""
    low, high = rng.choice([LOWEST, *NUMBERS, *range(20)]), rng.choice([HIGHEST, *NUMBERS, *range(20)])
    return ValueRange(low, high)


@given(RANDOMS)
def test_the_index_finds_the_ranges_that_a_scan_finds(rng: Random) -> None:
    """While items are added and removed, one by one and in batches; afterwards nothing is left."""
    index, plain = RangeIndex[Item](), dict[Item, ValueRange]()
    for _ in range(rng.randint(1, 20)):
        for _ in range(rng.choice([0, 1, 1, 10, 40, 100])):
            item = Item()
            plain[item] = random_range(rng)
            index.add(plain[item], item)
        for item in rng.sample(list(plain), k=rng.choice([0, 0, len(plain) // 9, len(plain) // 3, len(plain)])):
            index.remove(plain.pop(item), item)
        value = rng.choice([*NUMBERS, *range(-1, 21)])
        found = index.find(value)
        assert len(found) == len(set(found))
        assert set(found) == {item for item, values in plain.items() if values.low <= value and values.high >= value}
        assert {item: values for values, item in index} == plain
        assert len(index) == len(plain)
        index.check_invariants()
    for item, values in plain.items():
        index.remove(values, item)
    assert not index
    assert not list(index)
    index.check_invariants()


@pytest.mark.parametrize("count", [3, 300])
def test_removing_an_item_that_is_not_there_is_an_error(count: int) -> None:
    """Among the recent items as well as in a run."""
    index = RangeIndex[Item]()
    for number in range(count):
        index.add(ValueRange(number, number), Item())
    with pytest.raises(KeyError):
        index.remove(ValueRange(1, 1), Item())
    assert len(index) == count


class Counted:
    """A number that counts the comparisons with it."""

    comparisons = 0

    def __init__(self, number: int) -> None:
        self.number = number

    def __lt__(self, other: "Counted") -> bool:
        Counted.comparisons += 1
        return self.number < other.number

    def __le__(self, other: "Counted") -> bool:
        Counted.comparisons += 1
        return self.number <= other.number

    def __gt__(self, other: "Counted") -> bool:
        Counted.comparisons += 1
        return self.number > other.number

    def __ge__(self, other: "Counted") -> bool:
        Counted.comparisons += 1
        return self.number >= other.number


SIZE = 1 << 13
LAYOUTS: dict[str, Callable[[int], tuple[int, int]]] = {
    "side by side": lambda n: (10 * n, 10 * n + 9),
    "overlapping": lambda n: (10 * n, 10 * n + 45),
    "nested": lambda n: (10 * n, 20 * SIZE - 10 * n),
    "one below all": lambda n: (10 * n, 10 * n + 9 if n else 100 * SIZE),
    "all from one start": lambda n: (0, 10 * n + 9),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_search_takes_logarithmic_time_for_each_item_found(layout: str) -> None:
    """However the ranges lie; counted in comparisons, so that the test does not depend on the machine."""
    rng = Random(0)  # noqa: S311  a reproducible order
    index = RangeIndex[int]()
    numbers = list(range(SIZE))
    rng.shuffle(numbers)
    for number in numbers:
        low, high = LAYOUTS[layout](number)
        index.add(ValueRange(Counted(low), Counted(high)), number)
    index.find(Counted(0))
    for _ in range(100):
        # Values near the end find few of the ranges, even of those that overlap.
        value = 10 * SIZE + rng.randint(-60, 10) if layout != "side by side" else rng.randrange(10 * SIZE)
        Counted.comparisons = 0
        found = index.find(Counted(value))
        assert Counted.comparisons <= 4 * 13 + 2 * 13 * len(found), (value, len(found))


def test_adding_one_item_at_a_time_moves_each_only_a_few_times() -> None:
    """Shapes are added while capture runs, between two changes; comparisons are counted, mostly those of sorting."""
    index = RangeIndex[int]()
    Counted.comparisons = 0
    for number in range(SIZE):
        index.add(ValueRange(Counted(number), Counted(number)), number)
        index.find(Counted(-1))
    searches = SIZE * (16 + 8 * 13)
    assert Counted.comparisons < searches + SIZE * 13 * 10


class CountedItem:
    """An item that counts the comparisons with it."""

    comparisons = 0

    def __eq__(self, other: object) -> bool:
        CountedItem.comparisons += 1
        return self is other

    __hash__ = object.__hash__


def test_removing_an_item_does_not_scan_the_others() -> None:
    """Except those that start where it does."""
    index = RangeIndex[CountedItem]()
    items = [(ValueRange(number // 4, number + 5), CountedItem()) for number in range(4000)]
    for number, (values, item) in enumerate(items):
        index.add(values, item)
        if number % 500 == 0:
            # A search makes a run of what was added before.
            index.find(0)
    Random(0).shuffle(items)  # noqa: S311  a reproducible order
    for values, item in items:
        CountedItem.comparisons = 0
        index.remove(values, item)
        assert CountedItem.comparisons <= 16 + 4
    assert not index
