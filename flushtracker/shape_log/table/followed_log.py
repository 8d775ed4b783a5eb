"""``FollowedLog``: what to read next of a shape's log, from its beginning or from a follower's position."""

from dataclasses import dataclass, replace

from flushtracker.shape_log.position import Position
from flushtracker.shape_log.shape_snapshot import ShapeSnapshot
from flushtracker.shape_log.table.difference import Difference
from flushtracker.shape_log.table.found_shape import FoundShape
from flushtracker.wal.log_offset import LogOffset


@dataclass(frozen=True, slots=True)
class FollowedLog:
    """Only the ``difference``, if there is one; otherwise the visible rows of ``shape`` after ``after_tx``.

    ``after_tx`` is ``None`` for a log from its beginning, the snapshot. ``position`` is that after all the rows; a
    follower stores the two atomically, as for any transaction. The changes after a difference take another read.
    """

    shape: FoundShape
    after_tx: int | None
    position: Position
    difference: Difference | None = None

    @classmethod
    def from_start(cls, shape: FoundShape, *, changes_only: bool) -> "FollowedLog":
        if changes_only:
            return cls(shape, 0, shape.changes_position)
        return cls(shape, None, shape.position())

    @classmethod
    def from_position(cls, shape: FoundShape, after: Position) -> "FollowedLog":
        """From a position on; the follower has read all earlier transactions that the shape's snapshot contains."""
        return cls(shape, after.tx_offset, shape.position(after))

    @classmethod
    def with_difference(
        cls, shape: FoundShape, after: Position, before: FoundShape, begun: ShapeSnapshot, upto: int
    ) -> "FollowedLog":
        """From a position on, beginning with the difference to the shape's rows after the transactions up to ``upto``.

        ``begun`` is the snapshot of the shape ``before`` that the follower started from. The offset of the difference
        is after everything that the follower has read, and before everything that it reads next.

        Raises:
            PositionError: no offset is free there. Commits are at least 8 bytes apart, so this needs that many
                differences in a row, without a transaction between them.
        """
        tx_offset = upto
        if before.source == shape.source and after.tx_offset >= upto:
            tx_offset = after.tx_offset + 1
            if shape.snapshot is None or not shape.snapshot.is_free(tx_offset):
                raise shape.lost(after)
        # The registry no longer has the definition by which the follower's rows were made.
        has = replace(before, last_commit=after.tx_offset, snapshot=begun, entry=None, table=None)
        difference = Difference(after, has, replace(shape, last_commit=upto), tx_offset)
        return cls(shape, upto, Position(shape.source, tx_offset, shape.attempt), difference)

    @property
    def bound(self) -> LogOffset | None:
        """Up to where its rows go."""
        return self.shape.bound if self.difference is None else LogOffset.last_of(self.difference.tx_offset)

    @property
    def condition(self) -> str:
        """The condition for the shape's rows to read, if there is no difference."""
        return self.shape.counted(self.after_tx)

    @property
    def may_have_rows(self) -> bool:
        return self.after_tx is None or self.shape.has_more(self.after_tx)
