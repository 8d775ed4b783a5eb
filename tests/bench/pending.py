"""A batch over many pending shapes: what is pending beside the shapes that a batch reaches should cost nothing.

Through files. P shapes get a transaction each, 1,000 shapes to a transaction, which stays pending. Then each batch has
one event for each of 1,000 shapes, spread over all: in turns their next transaction, all in one fragment, and a flush
of each that leaves its first transaction pending. ``caught up`` shapes were sent a transaction each and have flushed
it, before. ``stalled`` shapes have 4,096 transactions pending each, and get none of the events. The time is Spark's
``triggerExecution``, the median of the batches after the warm-up; the bytes are those of the packed state.
"""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from threading import Event

from pyspark.sql import SparkSession

from flushtracker.events.stream_events import FlushNotification, FragmentEvent
from flushtracker.jobs.track.query import track_flushes
from flushtracker.spark.session import start_session
from tests.bench.measure import Table
from tests.bench.tracking import SHUFFLE_PARTITIONS, progress_of
from tests.support.job_folder import JobFolder
from tests.support.sample_source import SampleSource

_REACHED = 1_000
_PER_FILE = 100_000
_WARM_UP = 5
_BATCHES = 15
_STALLED_TXNS = 4_096
_GROUPS = 16


@dataclass(frozen=True, slots=True)
class Workload:
    """How many shapes of each kind there are."""

    pending: int
    caught_up: int = 0
    stalled: int = 0


WORKLOADS = [
    Workload(1_000),
    Workload(100_000),
    Workload(1_000_000),
    Workload(1_000, caught_up=100_000),
    Workload(1_000, caught_up=1_000_000),
    Workload(1_000, stalled=1_000),
]


def tables(*, quick: bool = False) -> Iterator[Table]:
    """One table; ``quick`` is not for benches with Spark."""
    assert not quick
    spark = start_session("bench", shuffle_partitions=SHUFFLE_PARTITIONS)
    rows = [_row(spark, workload) for workload in WORKLOADS]
    spark.stop()
    header = ["pending", "caught up", "stalled", "a batch", "state", "bytes a pending shape"]
    yield Table(f"A batch with one event for each of {_REACHED:,} shapes", header, rows)


def _row(spark: SparkSession, workload: Workload) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        job = JobFolder(Path(folder))
        _write(job, workload)
        with progress_of(spark) as batches:
            track_flushes(spark, replace(job.config(shape_groups=_GROUPS), trigger_ms=None), Event())
        state = spark.read.format("statestore").load(str(job.root / "checkpoint"))
        groups = state.where("key.shape_group <> ''")
        size = groups.selectExpr("sum(length(value.groupState.packed)) AS size").collect()[0]["size"]
    times = [batch["durationMs"]["triggerExecution"] / 1000 for batch in batches[-_BATCHES:]]
    shapes = workload.pending + workload.stalled
    cells = [f"{count:,}" for count in (workload.pending, workload.caught_up, workload.stalled)]
    return [*cells, f"{median(times):.2f} s", f"{size / 1e6:.1f} MB", f"{size / shapes:,.0f}"]


def _write(job: JobFolder, workload: Workload) -> None:
    """A file for each batch."""
    source, lsn = SampleSource(), 1_000_000
    pending = [f"shape-{number}" for number in range(workload.pending)]
    gone = [f"gone-{number}" for number in range(workload.caught_up)]
    stalled = [f"stalled-{number}" for number in range(workload.stalled)]
    for shapes, are_flushed in ((pending, False), (gone, True)):
        for first in range(0, len(shapes), _PER_FILE):
            events: list[FragmentEvent | FlushNotification] = []
            for at in range(first, min(first + _PER_FILE, len(shapes)), _REACHED):
                lsn += 200
                some = shapes[at : at + _REACHED]
                events.append(source.transaction(lsn, *some))
                events += [source.flushed(shape, lsn) for shape in some if are_flushed]
            job.write(events)
    if stalled:
        job.write([source.transaction(lsn + 200 * number, *stalled) for number in range(1, _STALLED_TXNS + 1)])
        lsn += 200 * _STALLED_TXNS
    reached = pending[:: max(1, len(pending) // _REACHED)][:_REACHED]
    for number in range(_WARM_UP + _BATCHES):
        if number % 2 == 0:
            lsn += 1_000
            job.write([source.transaction(lsn, *reached)])
        else:
            job.write([source.flushed(shape, 1_000_000 - 500 + number) for shape in reached])
