"""A shape's snapshot: which transactions it contains, and the row that says so."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flushtracker.errors import DecodeError
from flushtracker.shape_log.fold import fold
from flushtracker.shape_log.shape_snapshot import SNAPSHOT, ShapeSnapshot
from flushtracker.wal.mvcc_snapshot import MvccSnapshot


def test_snapshot_contains_what_it_saw_and_nothing_that_committed_later() -> None:
    """Neither itself nor a transaction above `lsn`, whose 32-bit xid may have been used before."""
    snapshot = ShapeSnapshot(1, MvccSnapshot.parse("100:105:100,103"), lsn=900, next_xid=108)
    found = [
        snapshot.contains(tx, xid) for tx, xid in [(900, 99), (10, 101), (900, 100), (10, 105), (901, 99), (0, 99)]
    ]
    assert found == [True, True, False, False, False, False]


@given(st.integers(1, 2**40), st.lists(st.integers(0, 99), unique=True), st.integers(0, 2**63 - 1))
def test_the_row_says_the_same_when_it_is_read(xmin: int, running: list[int], lsn: int) -> None:
    """Also with 64-bit ids."""
    snapshot = ShapeSnapshot(
        7, MvccSnapshot(xmin, xmin + 100, tuple(sorted(xmin + each for each in running))), lsn, xmin + 100
    )
    assert ShapeSnapshot.parse(7, snapshot.to_json()) == snapshot


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (None, "Expected `object`, got `null`"),
        ("{", "is not JSON"),
        ('{"xmin":1,"xmax":2,"xip":[]}', "missing required field `lsn`"),
        ('{"xmin":1,"xmax":2,"xip":[1.5],"lsn":3,"next":2}', r"Expected `int`, got `float` - at `\$\.xip"),
        ('{"xmin":5,"xmax":2,"xip":[],"lsn":3,"next":5,"unseen":[]}', "is not of the form xmin:xmax"),
        ('{"xmin":1,"xmax":2,"xip":[],"lsn":3}', "missing required field `next`"),
        ('{"xmin":1,"xmax":2,"xip":[],"lsn":3,"next":1,"unseen":[]}', "next is 1, expected 2, xmax, or a little more"),
        ('{"xmin":1,"xmax":2,"xip":[],"lsn":true,"next":2}', r"Expected `int`, got `bool` - at `\$\.lsn"),
        ('{"xmin":1,"xmax":2,"xip":[1],"lsn":3,"next":2,"unseen":[]}', r"unseen is \(\), expected \(\(1, 1\),\)"),
        (
            '{"xmin":1,"xmax":2,"xip":[],"lsn":3,"next":2,"unseen":null}',
            "Expected `array`, got `null`",
        ),
    ],
)
def test_malformed_row_is_an_error_with_its_place(text: str | None, problem: str) -> None:
    """It would decide which transactions a reader leaves out."""
    with pytest.raises(DecodeError, match=f"^value of the snapshot 7 in a shape's log.*{problem}"):
        ShapeSnapshot.parse(7, text)


def test_end_of_a_snapshot_changes_no_row() -> None:
    """As the end of a transaction does."""
    assert fold([("insert", "k", '{"id":"1"}'), (SNAPSHOT, None, "{}"), ("commit", None, None)]) == {"k": {"id": "1"}}


def test_snapshot_contains_transactions_of_long_ago() -> None:
    """A shape's log may be older than 2**31 transactions when its snapshot is taken, or taken again."""
    now = 2**32 + 10**9
    snapshot = ShapeSnapshot(1, MvccSnapshot(now - 5, now, (now - 5,)), lsn=900, next_xid=now + 3)
    ages = (1, 2**31 - 1, 2**31 + 1, 3 * 10**9, 2**32 - 4)
    assert [snapshot.contains(10, (now - age) % 2**32) for age in ages] == [True] * len(ages)
    assert [snapshot.contains(10, (now - age) % 2**32) for age in (5, 0, -2)] == [False] * 3


@given(st.integers(1, 2**34), st.sets(st.integers(0, 30)), st.integers(0, 9), st.data())
def test_unseen_ranges_are_what_the_64_bit_xids_say(
    first: int, running: set[int], later: int, data: st.DataObject
) -> None:
    """A transaction at or below `lsn` is unseen if it was in progress, or began at xmax or later, before `next`."""
    xmin = data.draw(st.sampled_from([first, 2**32 - 20, 2**33 - 40]))
    xmax = xmin + 31
    xip = {xmin + each for each in running}
    snapshot = ShapeSnapshot(1, MvccSnapshot(xmin, xmax, tuple(sorted(xip))), 900, xmax + later)
    ranges = json.loads(snapshot.to_json())["unseen"]
    for xid in range(max(1, xmin - 5), xmax + later):
        is_unseen = xid in xip or xid >= xmax
        assert any(low <= xid % 2**32 <= high for low, high in ranges) == is_unseen
        assert snapshot.contains(10, xid % 2**32) != is_unseen
    ends = [each for low, high in ranges for each in (low, high)]
    assert ends == sorted(ends)
    assert all(0 <= each < 2**32 for each in ends)


def test_fold_has_nothing_unseen() -> None:
    """It contains every transaction up to its horizon."""
    assert json.loads(ShapeSnapshot.fold(3, 900, 7).to_json())["unseen"] == []
