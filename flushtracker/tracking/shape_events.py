"""``ShapeEvents``: what a micro-batch has for the shapes of one group, as columns."""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np

from flushtracker.tracking.packed_columns import Ints, pack_ints, pack_texts, unpack_ints, unpack_texts

SENT: Final = 0
"""The shape's part of a fragment: its last operation in it, -1 for none."""
SENT_WITH_COMMIT: Final = 1
"""The same of a fragment that ends its transaction."""
FLUSHED: Final = 2
REMOVED: Final = 3


class ShapeEvent(NamedTuple):
    """One event; ``tx`` and ``op`` are the offset that the shape was sent, has flushed, or was removed at.

    ``boundary_op`` is the ``op_offset`` at which the fragment ends, and has no meaning otherwise.
    """

    shape_id: str
    kind: int
    tx: int
    op: int
    boundary_op: int = 0


class ShapeEvents:
    """Events in any order. ``numbers`` has a row each for kind, tx, op and boundary_op, and a column for each event.

    >>> events = ShapeEvents.of([ShapeEvent("users", SENT, 100, 2, 4), ShapeEvent("users", FLUSHED, 100, 2)])
    >>> again = ShapeEvents.unpack(events.pack())
    >>> again.shape_ids, again.numbers.tolist()
    (['users', 'users'], [[0, 2], [100, 100], [2, 2], [4, 0]])
    """

    __slots__ = ("numbers", "shape_ids")

    def __init__(self, shape_ids: Sequence[str], numbers: Ints) -> None:
        self.shape_ids = shape_ids
        self.numbers = numbers

    @classmethod
    def of(cls, events: Iterable[ShapeEvent]) -> "ShapeEvents":
        """The events as columns."""
        events = list(events)
        return cls([event[0] for event in events], np.array([event[1:] for event in events], np.int64).reshape(-1, 4).T)

    @classmethod
    def joined(cls, parts: Sequence["ShapeEvents"]) -> "ShapeEvents":
        """All events of ``parts``, at least one."""
        shape_ids = [shape_id for part in parts for shape_id in part.shape_ids]
        return cls(shape_ids, np.concatenate([part.numbers for part in parts], axis=1))

    @property
    def flushes(self) -> int:
        """How many events are flushes or removals."""
        return int((self.numbers[0] >= FLUSHED).sum())

    def pack(self) -> bytes:
        """The events as bytes; the inverse of :meth:`unpack`."""
        return pack_texts(self.shape_ids) + pack_ints(self.numbers)

    @classmethod
    def unpack(cls, packed: bytes) -> "ShapeEvents":
        """Read the output of :meth:`pack`."""
        shape_ids, end = unpack_texts(packed, 0)
        return cls(shape_ids, unpack_ints(packed, end, 4)[0])
