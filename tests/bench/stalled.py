"""The cost of a micro-batch for a shape group whose writers are out: to read its state, apply the batch, and write it.

``JSON`` is what it takes to read and write the same state as one JSON value, as version 1 of the format did, without an
object for anything in it; the ratio is that to the whole batch.
"""

import json
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from time import process_time

from flushtracker.tracking.shape_offsets import ShapeOffsets
from flushtracker.tracking.txn_offset_mapping import TxnOffsetMapping

from flushtracker.tracking.shape_group import ShapeFlush, ShapeFragment, ShapeGroup
from flushtracker.wal.log_offset import LogOffset
from tests.bench.measure import Table, medians, seconds
from tests.support.plain_group import Batch

FIRST_LSN = 2**40
STEP = 200
SINCE_MS = 1_795_000_000_000
SIZES = [(1, 4000), (100, 4000), (1_000, 4000), (6_250, 1)]
STEPS = ("unpack", "apply", "report", "pack")


def tables(*, quick: bool = False) -> Iterator[Table]:
    rounds, json_rounds = (1, 1) if quick else (7, 3)
    rows = []
    for shapes, transactions in [(3, 10)] if quick else SIZES:
        packed, old = _group(shapes, transactions).pack(), _json(shapes, transactions)
        (json_s,) = medians([seconds(partial(_read_and_write, old))] for _ in range(json_rounds))
        batches: dict[str, Batch] = {
            "one flush": ([], [ShapeFlush("shape-0", LogOffset(FIRST_LSN, 2))]),
            "one shape's fragment": (_transaction(transactions, 1), []),
            "all shapes' fragments": (_transaction(transactions, shapes), []),
        }
        for name, batch in batches.items():
            times = medians(_times(packed, batch) for _ in range(rounds))
            milliseconds = [f"{1000 * time:.2f}" for time in (*times, sum(times), json_s)]
            sizes = [f"{len(packed):,}", f"{len(old):,}"]
            label = f"{shapes:,} x {transactions:,}, {name}"
            rows.append([label, *milliseconds, f"{json_s / sum(times):.1f}", *sizes, f"{len(old) / len(packed):.1f}"])
    yield Table(
        "A batch on a group of shapes x pending transactions, ms; and the size of its state",
        ["", *STEPS, "all", "JSON", "ratio", "bytes", "JSON", "ratio"],
        rows,
    )


def _group(shapes: int, transactions: int) -> ShapeGroup:
    """A group in which every shape has all transactions pending."""
    txns = TxnOffsetMapping()
    group = ShapeGroup(LogOffset.before_all())
    for number in range(transactions):
        (fragment,) = _transaction(number, 1)
        txns.append(LogOffset(fragment.last_log_offset.tx_offset, 2), fragment.last_log_offset)
        group.cursor = fragment.reaches
    packed = txns.pack()
    for shape in range(shapes):
        group.shapes[f"shape-{shape}"] = ShapeOffsets(TxnOffsetMapping.unpack(packed, 0), since_ms=SINCE_MS)
    return group


def _json(shapes: int, transactions: int) -> str:
    """The same state as version 1 stored it."""
    txns = [[lsn, lsn, 2, 4] for lsn in (FIRST_LSN + STEP * number for number in range(transactions))]
    record = [SINCE_MS, None, None, None, txns]
    return json.dumps([[txns[-1][0], 4], {f"shape-{shape}": record for shape in range(shapes)}], separators=(",", ":"))


def _read_and_write(old: str) -> None:
    json.dumps(json.loads(old), separators=(",", ":"))


def _transaction(number: int, shapes: int) -> list[ShapeFragment]:
    lsn = FIRST_LSN + STEP * number
    offsets = LogOffset(lsn, 2), LogOffset(lsn, 4)
    return [ShapeFragment(f"shape-{shape}", *offsets, is_commit=True) for shape in range(shapes)]


def _times(packed: bytes, batch: Batch) -> list[float]:
    """The CPU time of each of ``STEPS``, in seconds."""
    clock = [process_time()]
    group = ShapeGroup.unpack(packed)
    clock.append(process_time())
    group.apply(*batch, now_ms=SINCE_MS + 1000, max_pending=4096)
    clock.append(process_time())
    group.report()
    clock.append(process_time())
    group.pack()
    clock.append(process_time())
    return [after - before for before, after in pairwise(clock)]
