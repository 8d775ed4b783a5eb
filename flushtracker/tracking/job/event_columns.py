"""``EventColumns``: the events read by a task, as columns of numbers per source, split into groups."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from flushtracker.events.stream_events import read_flush, read_flush_key, read_fragment
from flushtracker.events.structs import Offset
from flushtracker.spark.shape_grouping import shape_group_of
from flushtracker.tracking.chain_links import ChainLinks
from flushtracker.tracking.packed_columns import Ints
from flushtracker.tracking.shape_events import (
    FLUSHED,
    REMOVED,
    SENT,
    SENT_WITH_COMMIT,
    SEPARATOR,
    ShapeEvents,
    label_of,
)
from flushtracker.tracking.source_tracker import CHAIN


class GroupPart(NamedTuple):
    """A task's events of one group: packed :class:`ChainLinks` for :data:`CHAIN`, else packed :class:`ShapeEvents`."""

    source: str
    shape_group: str
    packed: bytes


class EventColumns:
    """Reads events one at a time; ``size`` is the number of flushes, fragments and shapes of fragments kept."""

    def __init__(self) -> None:
        self._sources: dict[str, _SourceColumns] = {}
        self.size = 0

    def add_flush(self, value: bytes) -> None:
        """Read a flush notification; raises ``DecodeError``."""
        flush = read_flush(value)
        columns = self._of(flush.source)
        columns.flushed.append(label_of(flush.shape_id, flush.writer))
        kind = REMOVED if flush.type == "removed" else FLUSHED
        columns.flushes += (kind, flush.offset.tx_offset, flush.offset.op_offset, 0)
        self.size += 1

    def add_deleted_flush(self, key: str) -> None:
        """Read the key of a flush notification that capture has deleted; raises ``DecodeError``.

        Capture deletes it once an ack has passed the removal of the shape. Its group then no longer needs the removal,
        and may get no other event on which to forget it.
        """
        source, shape_id = read_flush_key(key)
        self._of(source).forgotten.add(shape_id)
        self.size += 1

    def add_fragment(self, value: bytes, place: str) -> None:
        """Read a fragment, which is at ``place``; raises ``DecodeError``."""
        event = read_fragment(value)
        follows, last, shapes = event.follows, event.last_log_offset, event.shapes
        columns = self._of(event.source)
        columns.links += (follows.tx_offset, follows.op_offset, last.tx_offset, last.op_offset)
        columns.links += (event.start, event.commit is not None)
        columns.places.append(place)
        columns.counts.append(len(shapes))
        columns.sent += [label_of(shape.shape_id, shape.writer) for shape in shapes]
        offsets = [shape.last_offset for shape in shapes]
        columns.last_ops += [offset.op_offset if isinstance(offset, Offset) else -1 for offset in offsets]
        self.size += 1 + len(shapes)

    def parts(self, shape_groups: int) -> Iterator[GroupPart]:
        for source, columns in self._sources.items():
            if columns.places:
                yield GroupPart(source, CHAIN, columns.chain_links().pack())
            for shape_group, events in _by_group(columns.shape_events(), shape_groups):
                yield GroupPart(source, shape_group, events.pack())
            names, groups = _groups(list(columns.forgotten), shape_groups)
            for group in np.unique(groups).tolist():
                yield GroupPart(source, names[group], ShapeEvents.of([]).pack())

    def _of(self, source: str) -> "_SourceColumns":
        columns = self._sources.get(source)
        if columns is None:
            columns = self._sources[source] = _SourceColumns()
        return columns


class _SourceColumns:
    """The events of one source: its fragments and its flushes, as lists of numbers."""

    def __init__(self) -> None:
        self.links: list[int] = []
        """The six numbers of :class:`ChainLinks` for each fragment."""
        self.places: list[str] = []
        self.counts: list[int] = []
        """The number of shapes of each fragment, whose labels are in ``sent`` and last items in ``last_ops``."""
        self.sent: list[str] = []
        self.last_ops: list[int] = []
        self.flushes: list[int] = []
        """The four numbers of :class:`ShapeEvents` for each flush or removal."""
        self.flushed: list[str] = []
        """Their labels."""
        self.forgotten: set[str] = set()
        """Ids of shapes whose flushes were deleted."""

    def shape_events(self) -> ShapeEvents:
        _, _, tx, op, _, is_commit = np.repeat(self._links(), self.counts, axis=1)
        kinds = np.where(is_commit > 0, SENT_WITH_COMMIT, SENT)
        sent = np.stack([kinds, tx, np.array(self.last_ops, np.int64), op])
        flushes = np.array(self.flushes, np.int64).reshape(-1, ShapeEvents.rows).T
        return ShapeEvents(self.sent + self.flushed, np.concatenate([sent, flushes], axis=1))

    def chain_links(self) -> ChainLinks:
        return ChainLinks(self.places, self._links())

    def _links(self) -> Ints:
        links: Ints = np.array(self.links, np.int64).reshape(-1, ChainLinks.rows).T
        return links


def _by_group(events: ShapeEvents, shape_groups: int) -> Iterator[tuple[str, ShapeEvents]]:
    names, groups = _groups(events.labels, shape_groups)
    order = np.argsort(groups, kind="stable")
    labels = [events.labels[index] for index in order.tolist()]
    numbers = events.numbers[:, order]
    ends = np.cumsum(np.bincount(groups, minlength=len(names))).tolist()
    for name, start, end in zip(names, [0, *ends], ends, strict=False):
        if start < end:
            yield name, ShapeEvents(labels[start:end], numbers[:, start:end])


def _groups(labels: Sequence[str], shape_groups: int) -> tuple[Sequence[str], Ints]:
    """The names of the groups, and for each label the index of its group; a shape has one group for all writers."""
    # Without a call per label: most are shape ids.
    shape_ids = {label: label.partition(SEPARATOR)[0] for label in dict.fromkeys(labels)}
    if shape_groups == 0:
        names: Sequence[str] = list(dict.fromkeys(shape_ids.values()))
        places = {name: index for index, name in enumerate(names)}
        indices = {label: places[shape_id] for label, shape_id in shape_ids.items()}
    else:
        indices = {label: shape_group_of(shape_id, shape_groups) for label, shape_id in shape_ids.items()}
        names = [str(group) for group in range(shape_groups)]
    return names, np.array([indices[label] for label in labels], np.int64)
