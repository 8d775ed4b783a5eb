"""``FollowedLog``: what a reader of a shape's log reads next, from its beginning or from a follower's position."""

from dataclasses import dataclass, replace

from flushtracker.delta.log.difference import Difference
from flushtracker.delta.log.found_shape import FoundShape
from flushtracker.shape_log.position import Position
from flushtracker.shape_log.shape_snapshot import ShapeSnapshot


@dataclass(frozen=True, slots=True)
class FollowedLog:
    """The ``difference``, if there is one; then the rows of ``shape`` that count, of transactions after ``after_tx``.

    ``after_tx`` is ``None`` for a log from its beginning, which is its snapshot. ``position`` is that after all of it.
    """

    shape: FoundShape
    after_tx: int | None
    position: Position
    difference: Difference | None = None

    @classmethod
    def begun(cls, shape: FoundShape, *, changes_only: bool) -> "FollowedLog":
        """From the beginning."""
        return cls(shape, 0 if changes_only else None, shape.position())

    @classmethod
    def continued(cls, shape: FoundShape, after: Position) -> "FollowedLog":
        """From a position on, whose follower has read all transactions before that the shape's snapshot contains."""
        return cls(shape, after.tx_offset, shape.position(after))

    @classmethod
    def healed(
        cls, shape: FoundShape, after: Position, before: FoundShape, begun: ShapeSnapshot, upto: int
    ) -> "FollowedLog":
        """From a position on, by the difference to the shape's rows after the transactions up to ``upto``.

        ``begun`` is the snapshot of the shape ``before`` that tells what the follower has.
        """
        tx_offset = upto if before.source != shape.source else max(upto, after.tx_offset + 1)
        # The registry no longer has the definition by which the follower's rows were made.
        has = replace(before, last_commit=after.tx_offset, snapshot=begun, entry=None, table=None)
        difference = Difference(after, has, replace(shape, last_commit=upto), tx_offset)
        return cls(shape, upto, shape.position(), difference)

    @property
    def condition(self) -> str:
        """The condition for the shape's rows to read, after the difference."""
        return self.shape.counted(self.after_tx)

    @property
    def may_have_rows(self) -> bool:
        """Whether there may be such rows."""
        return self.after_tx is None or self.shape.has_more(self.after_tx)
