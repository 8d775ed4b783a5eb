"""``ContainedTransactions`` compared with the MVCC snapshot that it says in another way."""

from random import Random

import pytest

from flushtracker.wal.contained_transactions import ContainedTransactions
from flushtracker.wal.mvcc_snapshot import MvccSnapshot

XIDS = 2**32


@pytest.mark.parametrize("seed", range(50))
def test_it_contains_what_commits_before_the_end_and_is_seen(seed: int) -> None:
    """Also where xids of 32 bits begin again, and for each xid that a transaction may have."""
    rng = Random(seed)  # noqa: S311  reproducible
    xmin = rng.choice([XIDS - 20, 2 * XIDS - 3, 1000, XIDS + 3])
    xmax = xmin + rng.randint(0, 30)
    xip = tuple(sorted(rng.sample(range(xmin, xmax), rng.randint(0, xmax - xmin))))
    next_xid = xmax + rng.randint(0, 10)
    visible, lsn = MvccSnapshot(xmin, xmax, xip), 900
    contained = ContainedTransactions.of(visible, lsn, next_xid)
    for xid in range(xmin - 50, next_xid):
        is_seen = xid < xmax and xid not in xip
        for tx_offset in (1, lsn - 1, lsn):
            assert contained.contains(tx_offset, xid % XIDS) == is_seen
        # 0: rows of a snapshot, and -1: before all.
        for tx_offset in (-1, 0, lsn + 1):
            assert not contained.contains(tx_offset, xid % XIDS)


@pytest.mark.parametrize("unseen", [((5, 4),), ((-1, 4),), ((4, XIDS),), ((7, 8), (3, 4)), ((3, 5), (5, 9))])
def test_ranges_that_are_none_or_not_ascending_are_refused(unseen: tuple[tuple[int, int], ...]) -> None:
    """They come from Kafka, and a binary search over them would find anything."""
    with pytest.raises(ValueError, match=r"^unseen is \(.*, expected ascending ranges of 32-bit xids$"):
        ContainedTransactions(1, unseen)


@pytest.mark.parametrize("unseen", [(), ((0, XIDS - 1),), ((3, 4), (5, 5))])
def test_ranges_of_any_xids_are_accepted(unseen: tuple[tuple[int, int], ...]) -> None:
    """Up to the first and the last xid, and ranges that touch."""
    assert ContainedTransactions(1, unseen).unseen == unseen
