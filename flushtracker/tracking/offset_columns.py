"""Offsets as two columns of numbers, ``tx_offset`` and ``op_offset``, to compare and reduce many at once."""

from typing import Final, TypeAlias

import numpy as np

from flushtracker.tracking.packed_columns import Bools, Ints
from flushtracker.wal.log_offset import LogOffset

NO_TX: Final = -2
"""The ``tx_offset`` for "no offset", below all real ones."""

Offsets: TypeAlias = tuple[Ints | int, Ints | int]
OffsetColumns: TypeAlias = tuple[Ints, Ints]


def at_most(left: Offsets, right: Offsets) -> Bools:
    (tx, op), (other_tx, other_op) = left, right
    return np.asarray((tx < other_tx) | ((tx == other_tx) & (op <= other_op)))


def greater_of(left: OffsetColumns, right: OffsetColumns) -> OffsetColumns:
    is_left = at_most(right, left)
    return np.where(is_left, left[0], right[0]), np.where(is_left, left[1], right[1])


def greatest(offsets: OffsetColumns) -> LogOffset:
    """The greatest offset; there must be one.

    >>> greatest((np.array([7, 9, 9]), np.array([5, 1, 0])))
    LogOffset(tx_offset=9, op_offset=1)
    """
    tx, op = offsets
    most = tx.max()
    return LogOffset(int(most), int(op[tx == most].max()))


def least(offsets: OffsetColumns, count: int) -> tuple[Ints, Ints]:
    """The indexes of the ``count`` least offsets: those below the last of these, and all that tie with it; in any
    order.

    >>> below, equal = least((np.array([7, 9, 9, 9, 8]), np.array([5, 1, 0, 0, 3])), 3)
    >>> below.tolist(), equal.tolist()
    ([0, 4], [2, 3])
    """
    tx, op = offsets
    if len(tx) <= count:
        return np.arange(len(tx)), np.arange(0)
    last_tx = np.partition(tx, count - 1)[count - 1]
    below, at = np.flatnonzero(tx < last_tx), np.flatnonzero(tx == last_tx)
    missing = count - len(below)
    last_op = np.partition(op[at], missing - 1)[missing - 1]
    return np.concatenate([below, at[op[at] < last_op]]), at[op[at] == last_op]


def ends_of_runs(column: Ints) -> Bools:
    """Where the next value differs, and at the end."""
    ends = np.ones(len(column), np.bool_)
    np.not_equal(column[1:], column[:-1], out=ends[:-1])
    return ends


def starts_of_runs(*columns: Ints) -> Bools:
    """Where a value of any of the columns differs from the one before, and at the start."""
    starts = np.ones(len(columns[0]), np.bool_)
    np.any([column[1:] != column[:-1] for column in columns], axis=0, out=starts[1:])
    return starts
