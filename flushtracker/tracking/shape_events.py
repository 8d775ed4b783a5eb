"""``ShapeEvents``: what a micro-batch has for the shapes of one group, as columns."""

from collections.abc import Iterable, Sequence
from typing import ClassVar, Final, NamedTuple

import numpy as np

from flushtracker.tracking.packed_columns import LabelledColumns

SENT: Final = 0
"""The shape's part of a fragment: its last operation in it, -1 for none."""
SENT_WITH_COMMIT: Final = 1
"""The same, for a fragment that ends its transaction."""
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


class ShapeEvents(LabelledColumns):
    """Events in any order, labelled with their shapes. ``numbers`` has a row each for kind, tx, op and boundary_op.

    >>> events = ShapeEvents.of([ShapeEvent("users", SENT, 100, 2, 4), ShapeEvent("users", FLUSHED, 100, 2)])
    >>> again = ShapeEvents.unpack(events.pack())
    >>> again.shape_ids, again.numbers.tolist()
    (['users', 'users'], [[0, 2], [100, 100], [2, 2], [4, 0]])
    """

    __slots__ = ()
    rows: ClassVar = 4

    @property
    def shape_ids(self) -> Sequence[str]:
        """The shape of each event."""
        return self.labels

    @classmethod
    def of(cls, events: Iterable[ShapeEvent]) -> "ShapeEvents":
        """The events as columns."""
        events = list(events)
        numbers = np.array([event[1:] for event in events], np.int64).reshape(-1, cls.rows).T
        return cls([event[0] for event in events], numbers)

    @property
    def flushes(self) -> int:
        """How many events are flushes or removals."""
        return int((self.numbers[0] >= FLUSHED).sum())

    @property
    def removed(self) -> frozenset[str]:
        """The shapes that are removed."""
        return frozenset(self.labels[index] for index in np.flatnonzero(self.numbers[0] == REMOVED).tolist())
