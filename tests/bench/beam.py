"""Tracking alone, on one core, in the terms in which Electric's own tracker (Elixir, on the BEAM) was measured.

P shapes are pending in one :class:`ShapeGroup`: for i in order, fragment ``(1000+i, 10)`` on shape i, and for a and b
then one fragment ``(2^40, 10)`` on all. Then calls, 10,000 to a batch:

- a: fragment ``(2^40+1+k, 10)`` on the shapes ``((3k+j)·7919) mod P``, j = 0..2;
- b: shape ``i = (k·7919) mod P`` flushes ``(999 + (k div P + 1)·P + i, 0)``, which leaves it pending;
- c: pair k takes the shape ``(k·s) mod P`` (s = 7919 in even rounds, 104729 in odd), flushes it at its last offset, and
  sends it the fragment ``(1000+P+k, 10)``; both are counted.

A batch is what the job does with one: its packed events are read, applied and the report made; the state stays in
memory, as the BEAM's does. ``FlushTracker``, the driver's, takes single calls. All shapes are in one group, which the
job has only with ``shape_groups: 1``. The BEAM's figures are from a machine of this kind, not from this run.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from time import process_time

from flushtracker.tracking.flush_tracker import FlushTracker
from flushtracker.tracking.shape_events import FLUSHED, SENT_WITH_COMMIT, ShapeEvent, ShapeEvents
from flushtracker.tracking.shape_group import ShapeGroup
from flushtracker.wal.log_offset import LogOffset
from tests.bench.measure import Table

BATCH = 10_000
BEAM = {
    10: (2_460_000, 1_630_000, 2_070_000),
    10_000: (471_000, 299_000, 437_000),
    100_000: (121_000, 81_000, 102_000),
    1_000_000: (88_000, 59_000, 58_000),
}
_ALL = 2**40
_MAX_PENDING = 4096

Call = list[ShapeEvent]
"""The events of one call: of a fragment, one for each of its shapes."""


def tables(*, quick: bool = False) -> Iterator[Table]:
    rows = []
    for pending, beam in BEAM.items():
        if quick and pending > 10:
            break
        for name, calls, theirs in zip("abc", (_fragments, _flushes, _pairs), beam, strict=True):
            batches = 1 if quick else 5
            ours = _batched(pending, calls, batches, both=name == "c")
            single = _single(pending, calls, BATCH if quick else 5 * BATCH, both=name == "c")
            figures = [f"{each:,.0f}" for each in (theirs, ours, single)]
            rows.append([f"{pending:,} pending, {name}", *figures, f"{ours / theirs:.2f}", f"{single / theirs:.2f}"])
    yield Table("Tracking alone, calls/s", ["", "BEAM", "batches", "single", "batches/BEAM", "single/BEAM"], rows)


def _fragments(pending: int) -> Iterator[Call]:
    number = 0
    while True:
        shapes = {(3 * number + j) * 7919 % pending for j in range(3)}
        yield [ShapeEvent(f"{shape}", SENT_WITH_COMMIT, _ALL + 1 + number, 10, 10) for shape in shapes]
        number += 1


def _flushes(pending: int) -> Iterator[Call]:
    number = 0
    while True:
        shape = number * 7919 % pending
        yield [ShapeEvent(f"{shape}", FLUSHED, 999 + (number // pending + 1) * pending + shape, 0)]
        number += 1


def _pairs(pending: int) -> Iterator[Call]:
    last = {shape: 1000 + shape for shape in range(pending)}
    number = 0
    while True:
        step = 104_729 if number // pending % 2 else 7919
        shape = number * step % pending
        yield [ShapeEvent(f"{shape}", FLUSHED, last[shape], 10)]
        last[shape] = 1000 + pending + number
        yield [ShapeEvent(f"{shape}", SENT_WITH_COMMIT, last[shape], 10, 10)]
        number += 1


def _preload(pending: int, *, both: bool) -> Iterator[Call]:
    for shape in range(pending):
        yield [ShapeEvent(f"{shape}", SENT_WITH_COMMIT, 1000 + shape, 10, 10)]
    if not both:
        yield [ShapeEvent(f"{shape}", SENT_WITH_COMMIT, _ALL, 10, 10) for shape in range(pending)]


def _batched(pending: int, calls: Callable[[int], Iterator[Call]], batches: int, *, both: bool) -> float:
    """Calls per second through a group, in the median batch."""
    group = ShapeGroup(LogOffset.before_all())
    preload = [event for call in _preload(pending, both=both) for event in call]
    group.apply(ShapeEvents.of(preload), now_ms=0, max_pending=_MAX_PENDING)
    source, times = calls(pending), []
    for batch in range(batches):
        packed = ShapeEvents.of(event for call in islice(source, BATCH) for event in call).pack()
        start = process_time()
        group.apply(ShapeEvents.unpack(packed), now_ms=batch, max_pending=_MAX_PENDING)
        group.report()
        times.append(process_time() - start)
    return BATCH / sorted(times)[batches // 2]


def _single(pending: int, calls: Callable[[int], Iterator[Call]], count: int, *, both: bool) -> float:
    """Calls per second of a ``FlushTracker``."""
    tracker = FlushTracker()
    for call in _preload(pending, both=both):
        _call(tracker, call)
    prepared = list(islice(calls(pending), count))
    start = process_time()
    for call in prepared:
        _call(tracker, call)
    return count / (process_time() - start)


def _call(tracker: FlushTracker, call: Call) -> None:
    offset = LogOffset(call[0].tx, call[0].op)
    if call[0].kind == FLUSHED:
        tracker.handle_flush_notification(call[0].label, offset, now_ms=0)
    else:
        tracker.handle_txn_fragment(offset, [event.label for event in call], is_commit=True, now_ms=0)
