"""``ShapeGroup``: the unit of Spark state, the shapes that share a grouping key.

A group applies its part of a micro-batch in one call and reports one row to the driver, a :class:`GroupReport`: the
number of pending shapes, the greatest ``last_sent``, the least ``last_flushed``, which shape that is and since when. A
minimum of minima is the minimum, so the driver tracks groups as if they were shapes.

The ``cursor`` is the greatest offset that has reached the group, ``(tx, ∞)`` after a commit. A fragment at or below it
is a resend and is ignored, so nothing is registered twice. The cursor must outlive the shapes, so a group's state is
never removed.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from flushtracker.tracking.flush_tracker import Pending
from flushtracker.tracking.packed_state import offset_from_json, offset_to_json, pack, unpack
from flushtracker.tracking.shape_offsets import PendingTxn, ShapeOffsets
from flushtracker.tracking.source_tracker import GroupReport
from flushtracker.wal.log_offset import LogOffset


@dataclass(frozen=True, slots=True)
class ShapeFragment:
    """One shape's part of a fragment; ``last_offset`` is ``None`` if the fragment has no change for the shape."""

    shape_id: str
    last_offset: LogOffset | None
    last_log_offset: LogOffset
    is_commit: bool

    @property
    def reaches(self) -> LogOffset:
        """How far the group has read the stream after this fragment."""
        return self.last_log_offset.reached(is_commit=self.is_commit)


@dataclass(frozen=True, slots=True)
class ShapeFlush:
    """A writer's ``flushed`` or capture's ``removed``; ``offset`` is raw, not aligned to a transaction."""

    shape_id: str
    offset: LogOffset
    is_removal: bool = False


class ShapeGroup:
    """The offset state of some shapes of one source. Fragments up to ``cursor`` count as already applied.

    >>> group = ShapeGroup(cursor=LogOffset(99, 0))
    >>> sent = ShapeFragment("users", LogOffset(100, 2), last_log_offset=LogOffset(100, 4), is_commit=True)
    >>> group.apply([sent], [], now_ms=0, max_pending=4096)
    >>> report = group.report()
    >>> report.pending_shapes, report.blocking_shape, report.pending.last_flushed
    (1, 'users', LogOffset(tx_offset=99, op_offset=0))
    >>> group.apply([], [ShapeFlush("users", LogOffset(100, 2))], now_ms=10, max_pending=4096)
    >>> group.report(), group.shapes
    (GroupReport(pending_shapes=0, pending=None, blocking_shape=None), {})
    """

    def __init__(self, cursor: LogOffset) -> None:
        self.cursor = cursor
        self.shapes: dict[str, ShapeOffsets] = {}

    def apply(
        self, fragments: Iterable[ShapeFragment], flushes: Iterable[ShapeFlush], *, now_ms: int, max_pending: int
    ) -> None:
        """Apply one micro-batch, each kind in any order; ``max_pending`` bounds the transactions kept per shape.

        The outcome does not depend on whether flushes or fragments go first. O(events · log events + touched shapes).
        """
        touched: dict[str, LogOffset | None] = {}
        cursor = self.cursor
        for event in flushes:
            shape = self._touch(event.shape_id, touched)
            if event.is_removal:
                shape.handle_removed(event.offset)
            else:
                shape.handle_flush(event.offset)
        unseen = [row for row in fragments if row.reaches > self.cursor]
        for row in sorted(unseen, key=attrgetter("last_log_offset")):
            shape = self._touch(row.shape_id, touched)
            shape.handle_fragment(row.last_offset, row.last_log_offset, is_commit=row.is_commit)
            cursor = max(cursor, row.reaches)
        self.cursor = cursor
        self._settle(touched, now_ms, max_pending)

    def report(self) -> GroupReport:
        """Reduce the group to the row for the driver. O(shapes)."""
        pending = [(shape_id, entry) for shape_id, shape in self.shapes.items() if (entry := shape.pending())]
        if not pending:
            return GroupReport()
        blocking_shape, blocking = min(pending, key=lambda item: (item[1].last_flushed, item[0]))
        last_sent = max(entry.last_sent for _, entry in pending)
        return GroupReport(len(pending), Pending(last_sent, blocking.last_flushed, blocking.since_ms), blocking_shape)

    def pack(self) -> bytes:
        """The whole state as bytes: a version byte, then JSON; the inverse of :meth:`unpack`."""
        shapes = {shape_id: _shape_to_json(shape) for shape_id, shape in self.shapes.items()}
        return pack([offset_to_json(self.cursor), shapes])

    @classmethod
    def unpack(cls, packed: bytes) -> "ShapeGroup":
        """Read the output of :meth:`pack`; raises ``StateError`` if its version byte differs."""
        cursor, shapes = unpack(packed)
        group = cls(LogOffset(*cursor))
        group.shapes = {shape_id: _shape_from_json(fields) for shape_id, fields in shapes.items()}
        return group

    def check_invariants(self) -> None:
        """Raise ``AssertionError`` if a caught-up shape is kept or a shape is out of order; after ``apply``."""
        for shape_id, shape in self.shapes.items():
            if shape.is_empty:
                raise AssertionError(f"shape {shape_id} is caught up but still kept")
            shape.check_invariants()

    def _touch(self, shape_id: str, touched: dict[str, LogOffset | None]) -> ShapeOffsets:
        """Return the shape's state, and record in ``touched`` how far it had flushed before the batch."""
        shape = self.shapes.get(shape_id)
        if shape is None:
            shape = self.shapes[shape_id] = ShapeOffsets()
        if shape_id not in touched:
            entry = shape.pending()
            touched[shape_id] = entry.last_flushed if entry else None
        return shape

    def _settle(self, touched: dict[str, LogOffset | None], now_ms: int, max_pending: int) -> None:
        for shape_id, flushed_before in touched.items():
            self.shapes[shape_id].settle(self.cursor, max_pending)
            entry = self.shapes[shape_id].pending()
            if entry is not None and (flushed_before is None or entry.last_flushed > flushed_before):
                self.shapes[shape_id].since_ms = now_ms
        # Untouched shapes too: the cursor may have passed the flush or removal for which they were kept.
        for shape_id in [shape_id for shape_id, shape in self.shapes.items() if not shape.has_transactions]:
            self.shapes[shape_id].settle(self.cursor, max_pending)
            if self.shapes[shape_id].is_empty:
                del self.shapes[shape_id]


def _shape_to_json(shape: ShapeOffsets) -> list[object]:
    txns = [
        [txn.first_tx_offset, txn.last_offset.tx_offset, txn.last_offset.op_offset, txn.boundary.op_offset]
        for txn in shape.txn_offset_mapping
    ]
    offsets = (shape.open_offset, shape.flushed_offset, shape.removed_offset)
    return [shape.since_ms, *map(offset_to_json, offsets), txns]


def _shape_from_json(fields: list[Any]) -> ShapeOffsets:
    since_ms, open_offset, flushed_offset, removed_offset, txns = fields
    return ShapeOffsets(
        [PendingTxn(first, LogOffset(tx, last_op), LogOffset(tx, op)) for first, tx, last_op, op in txns],
        offset_from_json(open_offset),
        offset_from_json(flushed_offset),
        offset_from_json(removed_offset),
        since_ms,
    )
