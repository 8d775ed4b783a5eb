"""``Truncates``: the truncates of a shape's log, and which of them remove a row written by an earlier item."""

from bisect import bisect_right, insort
from collections import defaultdict

from flushtracker.shapes.item_key import partition_of

Place = tuple[int, int]
"""``(tx_offset, op_offset)`` of an item."""


class Truncates:
    """Truncates by place, each of a partition, given by its keys' prefix, or of the whole shape, ``None``.

    >>> truncates = Truncates()
    >>> truncates.add((20, 0), '"public"."events"/16403')
    >>> truncates.add((10, 0), None)
    >>> [truncates.after('"public"."events"/16403/"7"', (tx, 4)) for tx in (9, 10, 20)]
    [2, 1, 0]
    >>> truncates.after('"public"."events"/16404/"7"', (10, 4))
    0
    """

    def __init__(self) -> None:
        self._places = defaultdict[str | None, list[Place]](list)

    def __bool__(self) -> bool:
        return bool(self._places)

    def add(self, place: Place, partition: str | None) -> None:
        """Add the truncate at ``place``. They may come in any order, but each once."""
        insort(self._places[partition], place)

    def after(self, key: str, place: Place) -> int:
        """How many truncates after ``place`` remove the row with this ``key``."""
        return sum(len(places) - bisect_right(places, place) for places in self._of(key))

    def of(self, key: str) -> list[Place]:
        """The places of the truncates that remove the row with this ``key``, in order."""
        return sorted(place for places in self._of(key) for place in places)

    def _of(self, key: str) -> list[list[Place]]:
        partition = partition_of(key)
        return [self._places.get(of, []) for of in ((None,) if partition is None else (None, partition))]
