"""The cost of a micro-batch for a shape group whose writers are out: to read its state, apply the batch, and write it.

A group has some shapes, each with the same number of transactions pending: one for 200 bytes of WAL, the shape's last
operation 2, the boundary 4. The batch is one flush, the next transaction of one shape, or of all.
"""

from collections.abc import Iterator
from itertools import pairwise
from time import process_time

import numpy as np

from flushtracker.tracking.shape_events import FLUSHED, SENT_WITH_COMMIT, ShapeEvents
from flushtracker.tracking.shape_group import ShapeGroup
from flushtracker.wal.log_offset import LogOffset
from tests.bench.measure import Table, medians

FIRST_LSN = 2**40
STEP = 200
SINCE_MS = 1_795_000_000_000
MAX_PENDING = 4096
SIZES = [(1, 4000), (100, 4000), (1_000, 4000), (6_250, 1), (62_500, 1)]
STEPS = ("unpack", "apply", "report", "pack")


def tables(*, quick: bool = False) -> Iterator[Table]:
    rounds = 1 if quick else 7
    rows = []
    for shapes, transactions in [(3, 10)] if quick else SIZES:
        packed = _group(shapes, transactions).pack()
        next_lsn = FIRST_LSN + STEP * transactions
        batches = {
            "one flush": _events(["shape-0"], FLUSHED, [FIRST_LSN]),
            "one shape's fragment": _events(["shape-0"], SENT_WITH_COMMIT, [next_lsn]),
            "all shapes' fragments": _events(_names(shapes), SENT_WITH_COMMIT, [next_lsn] * shapes),
        }
        for name, batch in batches.items():
            times = medians(_times(packed, batch) for _ in range(rounds))
            milliseconds = [f"{1000 * time:.2f}" for time in (*times, sum(times))]
            label = f"{shapes:,} x {transactions:,}, {name}"
            rows.append([label, *milliseconds, f"{len(packed):,}", f"{len(packed) / shapes / transactions:.1f}"])
    yield Table(
        "A batch on a group of shapes x pending transactions, ms; and the size of its state",
        ["", *STEPS, "all", "bytes", "a transaction"],
        rows,
    )


def _names(shapes: int) -> list[str]:
    return [f"shape-{number}" for number in range(shapes)]


def _group(shapes: int, transactions: int) -> ShapeGroup:
    """A group in which every shape has all transactions pending."""
    lsns = [FIRST_LSN + STEP * number for number in range(transactions) for _ in range(shapes)]
    group = ShapeGroup(LogOffset.before_all())
    events = _events(_names(shapes) * transactions, SENT_WITH_COMMIT, lsns)
    group.apply(events, now_ms=SINCE_MS, max_pending=MAX_PENDING)
    return group


def _events(shape_ids: list[str], kind: int, lsns: list[int]) -> ShapeEvents:
    count = len(lsns)
    return ShapeEvents(shape_ids, np.array([[kind] * count, lsns, [2] * count, [4] * count], np.int64))


def _times(packed: bytes, batch: ShapeEvents) -> list[float]:
    """The CPU time of each of ``STEPS``, in seconds."""
    clock = [process_time()]
    group = ShapeGroup.unpack(packed)
    clock.append(process_time())
    group.apply(batch, now_ms=SINCE_MS + 1000, max_pending=MAX_PENDING)
    clock.append(process_time())
    group.report()
    clock.append(process_time())
    group.pack()
    clock.append(process_time())
    return [after - before for before, after in pairwise(clock)]
