"""``HeldEvents``: where in ``shape_changes`` the first event of each shape is that is held, to be read again later.

A partition is read again from the first of the places that are released, with all of its other shapes, which drop what
they have. It is not read again before at least as much was new as was not, or nothing is. Otherwise a shape that is
held again and again, because its table is truncated all the time, would keep the reader from later events.
"""

from collections.abc import Mapping
from typing import Final

Shape = tuple[str, str]

_END_S: Final = 0.3
"""A partition that has not moved for so long is at its end."""


class HeldEvents:
    """The places of shapes. A released one is held until its partition is read again."""

    def __init__(self) -> None:
        self._places: dict[Shape, tuple[int, int]] = {}
        self._released: set[Shape] = set()
        self._again_at: dict[int, int] = {}
        """How far each partition is to be read before it is read again."""
        self._moved: dict[int, tuple[int, float]] = {}
        """Up to where each partition is read, and since when."""

    def __contains__(self, shape: Shape) -> bool:
        return shape in self._places

    def hold(self, shape: Shape, partition: int, offset: int) -> None:
        self._places[shape] = partition, offset

    def forget(self, shape: Shape) -> None:
        self._places.pop(shape, None)
        self._released.discard(shape)

    def release(self, shape: Shape) -> None:
        """What it was held for has happened."""
        if shape in self._places:
            self._released.add(shape)

    def not_past(self, positions: Mapping[int, int]) -> dict[int, int]:
        """The positions from which a next process reads: none is past a held event."""
        found = dict(positions)
        for partition, offset in self._places.values():
            found[partition] = min(offset, found[partition])
        return found

    def take_due(self, positions: Mapping[int, int], now_s: float) -> dict[int, int]:
        """From where to read partitions again, which are read up to ``positions``; what is there is held no more."""
        for partition, position in positions.items():
            if self._moved.get(partition, (-1, now_s))[0] != position:
                self._moved[partition] = position, now_s
        found: dict[int, int] = {}
        for shape in sorted(self._released):
            partition, offset = self._places[shape]
            if self._is_due(partition, positions[partition], now_s):
                found[partition] = min(offset, found.get(partition, offset))
                self.forget(shape)
        self._again_at |= {partition: 2 * positions[partition] - offset for partition, offset in found.items()}
        return found

    def _is_due(self, partition: int, position: int, now_s: float) -> bool:
        return position >= self._again_at.get(partition, 0) or now_s - self._moved[partition][1] >= _END_S
