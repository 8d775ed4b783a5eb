"""``StrayFlush``: a flush notified by a program that is not the shape's writer. It has no effect."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from flushtracker.tracking.offset_columns import NO_TX, OffsetColumns
from flushtracker.tracking.packed_columns import Bools
from flushtracker.tracking.shape_events import ShapeEvents, shape_and_writer
from flushtracker.wal.log_offset import LogOffset


class StrayFlush(NamedTuple):
    """``notified_by`` has notified a flush up to ``offset``, which the shape's ``writer`` has not reached."""

    shape_id: str
    notified_by: str
    writer: str
    offset: LogOffset


def stray_flushes(
    events: ShapeEvents, unsent: Bools, labels: Sequence[str | None], flushed: OffsetColumns
) -> tuple[StrayFlush, ...]:
    """The stray ones among the events that ``unsent`` marks: flushes under labels that were sent nothing.

    ``labels`` has the label of each index of the group, and ``flushed`` its aligned ``last_flushed`` after the events,
    :data:`NO_TX` if the shape is caught up. The result has the greatest one of each label, in order.
    """
    greatest: dict[str, LogOffset] = {}
    for index in np.flatnonzero(unsent).tolist():
        label, offset = events.labels[index], LogOffset(*events.numbers[1:3, index].tolist())
        greatest[label] = max(offset, greatest.get(label, offset))
    if not greatest:
        return ()
    wanted = {shape_and_writer(label)[0] for label in greatest}
    pending: dict[str, list[tuple[str, LogOffset]]] = {}
    for index in np.flatnonzero(flushed[0] != NO_TX).tolist():
        shape_id, writer = shape_and_writer(labels[index] or "")
        if shape_id in wanted:
            pending.setdefault(shape_id, []).append((writer, LogOffset(int(flushed[0][index]), int(flushed[1][index]))))
    return tuple(
        StrayFlush(shape_id, notified_by, writer, offset)
        for shape_id, notified_by, offset in sorted((*shape_and_writer(label), at) for label, at in greatest.items())
        for writer, last_flushed in sorted(pending.get(shape_id, ()))
        if writer != notified_by and offset > last_flushed
    )
