"""``ShapeEvents``: the events of one group's shapes in a micro-batch, as columns."""

from collections.abc import Iterable
from typing import ClassVar, Final, NamedTuple

import numpy as np

from flushtracker.tracking.packed_columns import LabelledColumns
from flushtracker.wal.names import LOG_WRITER

SENT: Final = 0
"""A fragment without the commit; ``op`` is the shape's last operation in it, -1 for none."""
SENT_WITH_COMMIT: Final = 1
"""The same, for the fragment with the commit."""
FLUSHED: Final = 2
REMOVED: Final = 3

SEPARATOR: Final = "\n"
"""Separates the shape's id from the writer in a label; names have no control characters."""


def label_of(shape_id: str, writer: str) -> str:
    """The label under which a shape is tracked, one for each of its writers.

    So another writer's flush never completes what the shape's own writer was sent.

    >>> label_of("users", "log"), label_of("users", "own"), shape_and_writer("users\\nown"), shape_and_writer("users")
    ('users', 'users\\nown', ('users', 'own'), ('users', 'log'))
    """
    return shape_id if writer == LOG_WRITER else f"{shape_id}{SEPARATOR}{writer}"


def shape_and_writer(label: str) -> tuple[str, str]:
    shape_id, _, writer = label.partition(SEPARATOR)
    return shape_id, writer or LOG_WRITER


class ShapeEvent(NamedTuple):
    """One event of the shape with this label (:func:`label_of`).

    ``tx`` and ``op`` are the offset that was sent, flushed, or at which the shape was removed.

    ``boundary_op`` is the ``op_offset`` at which the fragment ends; unused in other events.
    """

    label: str
    kind: int
    tx: int
    op: int
    boundary_op: int = 0


class ShapeEvents(LabelledColumns):
    """Events in any order, labelled with their shapes. ``numbers`` has a row each for kind, tx, op and boundary_op.

    >>> events = ShapeEvents.of([ShapeEvent("users", SENT, 100, 2, 4), ShapeEvent("users", FLUSHED, 100, 2)])
    >>> again = ShapeEvents.unpack(events.pack())
    >>> again.labels, again.numbers.tolist()
    (['users', 'users'], [[0, 2], [100, 100], [2, 2], [4, 0]])
    """

    __slots__ = ()
    rows: ClassVar = 4

    @classmethod
    def of(cls, events: Iterable[ShapeEvent]) -> "ShapeEvents":
        events = list(events)
        numbers = np.array([event[1:] for event in events], np.int64).reshape(-1, cls.rows).T
        return cls([event[0] for event in events], numbers)

    @property
    def flushes(self) -> int:
        """How many events are flushes or removals."""
        return int((self.numbers[0] >= FLUSHED).sum())

    @property
    def removed(self) -> frozenset[str]:
        removed = np.flatnonzero(self.numbers[0] == REMOVED).tolist()
        return frozenset(shape_and_writer(self.labels[index])[0] for index in removed)
