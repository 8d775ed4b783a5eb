"""``SnapshotHistory``: the snapshots left in a shape's log; picks the one to read at an offset or position.

A snapshot taken again, or one of a shape's next incarnation, replaces the previous snapshot. Its rows stay in the log,
as the transactions do, until a fold deletes both. Until then a follower that started from it can continue, and the
shape can be read at an earlier offset.

A fold is always the first of the history: it has replaced all earlier snapshots by the rows at its horizon.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from flushtracker.shape_log.position import Position
from flushtracker.shape_log.shape_snapshot import ShapeSnapshot
from flushtracker.wal.log_offset import OP_INFINITY, LogOffset


@dataclass(frozen=True, slots=True)
class SnapshotHistory:
    """``snapshots`` are in the order of their attempts, including folds and marks."""

    snapshots: tuple[ShapeSnapshot, ...]

    @classmethod
    def of(cls, snapshots: Iterable[ShapeSnapshot]) -> "SnapshotHistory":
        return cls(tuple(sorted(snapshots, key=lambda each: each.attempt)))

    def at_position(self, position: Position) -> ShapeSnapshot | None:
        """The snapshot to read for a follower at ``position``; ``None`` if the log no longer has what the follower
        started from.

        That is the snapshot that the follower started from, or a fold made from it. A follower that started without a
        snapshot gets ``None`` too, because the table may have had rows. If a log was deleted, a later incarnation may
        reuse its attempts; a position below that incarnation does not match.

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
        """The last snapshot from which the rows at ``at`` can be read, and where the next incarnation starts.

        The second value is ``None`` if no incarnation follows. Between the snapshot's last transaction and that start
        the rows are unknown. Only a snapshot of the very next incarnation says where the previous one ends. An
        incarnation may have transactions but no snapshot, nor a mark if a snapshot of a later one was appended before
        them.
        """
        known = [each for each in self.snapshots if not each.is_mark]
        # The items that would show whether the horizon's transaction had ended inside it are folded.
        told = [each for each in known if LogOffset(each.lsn, OP_INFINITY if each.is_fold else 0) <= at]
        if not told:
            return None
        found = told[-1]
        if found.incarnation == self.snapshots[-1].incarnation:
            return found, None
        starts = [each.starts_after for each in known if each.incarnation == found.incarnation + 1]
        return (found, starts[0]) if starts else None
