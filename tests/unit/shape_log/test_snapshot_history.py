"""Which of the snapshots in a shape's log tells what was there at a place."""

from dataclasses import replace

import pytest

from flushtracker.shape_log.position import Position
from flushtracker.shape_log.shape_snapshot import ShapeSnapshot
from flushtracker.shape_log.snapshot_history import SnapshotHistory
from flushtracker.wal.log_offset import OP_INFINITY, LogOffset
from flushtracker.wal.mvcc_snapshot import MvccSnapshot


def taken(attempt: int, lsn: int, incarnation: int = 1, starts_after: int = -1) -> ShapeSnapshot:
    return ShapeSnapshot(attempt, MvccSnapshot(9, 9), lsn, 9, None, incarnation, starts_after)


def fold(attempt: int, horizon: int, before: ShapeSnapshot | None = None) -> ShapeSnapshot:
    return ShapeSnapshot.fold(attempt, horizon, 9, before)


def attempt_at(history: SnapshotHistory, tx_offset: int, attempt: int) -> int | None:
    found = history.at_position(Position("s", tx_offset, attempt))
    return None if found is None else found.attempt


def test_a_follower_has_what_the_snapshot_gave_that_it_began_with() -> None:
    """A fold has replaced those before it for whoever has reached its horizon, and is of the same incarnation."""
    begun = taken(7, 90, incarnation=2, starts_after=80)
    history = SnapshotHistory.of([begun, taken(1, 10), taken(3, 40), ShapeSnapshot.mark(5, 2)])
    assert [attempt_at(history, 80, attempt) for attempt in (0, 1, 2, 3, 5, 7)] == [None, 1, None, 3, None, 7]
    assert attempt_at(history, 79, 7) is None, "an attempt of a log that was deleted before"
    folded = SnapshotHistory.of([taken(9, 200, incarnation=2, starts_after=80), fold(8, 100, begun)])
    assert [attempt_at(folded, 100, attempt) for attempt in (6, 7, 8, 9)] == [None, 8, 8, 9]
    assert [attempt_at(folded, tx, 7) for tx in (80, 99, 101)] == [None, None, 8]
    again = SnapshotHistory.of([fold(9, 120, fold(8, 100, begun))])
    assert [attempt_at(again, 120, attempt) for attempt in (6, 7, 8, 9)] == [None, 9, 9, 9]
    unknown = SnapshotHistory.of([replace(fold(8, 100, begun), made_from=None)])
    assert [attempt_at(unknown, 100, attempt) for attempt in (7, 8)] == [None, 8]
    assert attempt_at(SnapshotHistory.of([fold(8, 80, begun)]), 80, 3) is None
    assert attempt_at(SnapshotHistory(()), 80, 3) is None


@pytest.mark.parametrize("later", [[], [ShapeSnapshot.mark(8, 3)], [taken(9, 300, 3, 280)]])
def test_an_offset_is_told_by_the_last_snapshot_taken_by_then(later: list[ShapeSnapshot]) -> None:
    """As far as its incarnation goes, which only the next one's snapshot says."""
    first, again, begun = taken(1, 10), taken(3, 40), taken(7, 190, incarnation=2, starts_after=180)
    history = SnapshotHistory.of([*later, begun, first, again])
    told = [history.at_offset(LogOffset(tx, 0)) for tx in (9, 10, 39, 40, 189)]
    assert told == [None, (first, 180), (first, 180), (again, 180), (again, 180)]
    end = {0: (begun, None), 1: None, 2: (begun, 280)}[sum(2 - each.is_mark for each in later)]
    assert history.at_offset(LogOffset(200, 0)) == end


def test_an_incarnation_without_a_snapshot_hides_where_the_one_before_ends() -> None:
    """Its transactions may be in the log although it has no mark: the snapshot of a later one was there before them."""
    history = SnapshotHistory.of([taken(1, 10), taken(9, 300, incarnation=3, starts_after=280)])
    assert history.at_offset(LogOffset(20, 0)) is None


def test_a_fold_tells_from_the_end_of_its_horizon_on() -> None:
    """Inside the horizon's transaction, nothing says whether that had ended."""
    history = SnapshotHistory.of([fold(2, 100)])
    assert history.at_offset(LogOffset(100, 7)) is None
    assert history.at_offset(LogOffset(100, OP_INFINITY)) == (fold(2, 100), None)
