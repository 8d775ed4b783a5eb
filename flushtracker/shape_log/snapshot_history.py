"""``SnapshotHistory``: the snapshots left in a shape's log; picks the one to read at a place.

A snapshot that is taken again, and the one that begins a shape's next incarnation, replace the snapshot before. Its
rows stay in the log, as the transactions do, until a fold deletes both. So the log still tells what a follower has that
began with it, and what the shape had at an offset before.

A fold is the first of the history: with the rows up to its horizon it has replaced all snapshots that were before it.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from flushtracker.shape_log.position import Position
from flushtracker.shape_log.shape_snapshot import ShapeSnapshot
from flushtracker.wal.log_offset import OP_INFINITY, LogOffset


@dataclass(frozen=True, slots=True)
class SnapshotHistory:
    """``snapshots`` are in the order of their attempts, with folds and marks among them."""

    snapshots: tuple[ShapeSnapshot, ...]

    @classmethod
    def of(cls, snapshots: Iterable[ShapeSnapshot]) -> "SnapshotHistory":
        """These snapshots of one shape, which come in any order."""
        return cls(tuple(sorted(snapshots, key=lambda each: each.attempt)))

    def at_position(self, position: Position) -> ShapeSnapshot | None:
        """The snapshot that, with the transactions up to the position that it lacks, gives what a follower there has.

        That is the one with which the follower began, or a fold that was made from it. ``None`` if the log no longer
        tells. Nor does it of a follower that began without a snapshot: the table had rows, or may have had. If a log
        was deleted, its attempts may be used again, in a later incarnation; a position before that is none of its.

        >>> fold = ShapeSnapshot.fold(3, 900, 7, before=ShapeSnapshot.fold(2, 800, 6))
        >>> history = SnapshotHistory.of([fold, ShapeSnapshot.mark(4, 2)])
        >>> [history.at_position(Position("s", tx, attempt)) is None for tx, attempt in ((900, 2), (899, 2), (900, 4))]
        [False, True, True]
        """
        if position.attempt == 0 or not self.snapshots:
            return None
        for each in self.snapshots:
            if each.attempt == position.attempt and not each.is_mark:
                return each if position.tx_offset >= each.begins_at else None
        fold = self.snapshots[0]
        is_its = fold.made_from is not None and fold.made_from <= position.attempt < fold.attempt
        return fold if is_its and position.tx_offset >= fold.begins_at else None

    def at_offset(self, at: LogOffset) -> tuple[ShapeSnapshot, int | None] | None:
        """The last snapshot that tells the rows after all transactions up to ``at``, if its incarnation has reached it.

        Beside it is where the incarnation after that starts: the log tells nothing between its last transaction and
        there. ``None`` beside it: there is no incarnation after it. Only a snapshot of the very next incarnation says
        where the one before ends: that may have transactions without a snapshot, and without a mark if a snapshot of
        a later one was appended before them.
        """
        known = [each for each in self.snapshots if not each.is_mark]
        # The items that tell whether the horizon's transaction had ended at an offset inside it are folded.
        told = [each for each in known if LogOffset(each.lsn, OP_INFINITY if each.is_fold else 0) <= at]
        if not told:
            return None
        found = told[-1]
        if found.incarnation == self.snapshots[-1].incarnation:
            return found, None
        starts = [each.starts_after for each in known if each.incarnation == found.incarnation + 1]
        return (found, starts[0]) if starts else None
