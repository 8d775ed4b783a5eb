"""``make soak``: the tracking job's checkpoint with 100,000 shapes pending, over hundreds of micro-batches.

All shapes stay pending: each batch reaches 1,000 of them, spread over all groups, which flush the transaction that they
had and get another. So every batch writes the state of every group again. Spark retains the last 10 batches instead of
100, maintains its state store every second instead of every minute, and cleans up its list of files after a second
instead of ten minutes, so that minutes have the maintenance of hours.

The checkpoint is measured twice a second. After batch 40, it may have at most 1.5 times as many files and bytes as it
had at most until then; it may never have more than 20 times the bytes of the packed state. Then the job is started
again, and must be through one more batch within a minute of wall-clock time.

``python -m tests.integration.soak_checkpoint [--batches 400] [--shapes 100000]``
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Final, NamedTuple

from pyspark.sql import SparkSession

from flushtracker.config.secret_options import SecretOptions
from flushtracker.config.spark_config import SparkConfig
from flushtracker.events.stream_events import FragmentEvent
from flushtracker.spark.session import start_session
from tests.support.job_folder import JobFolder
from tests.support.sample_source import SampleSource

_REACHED: Final = 1_000
_GROUPS: Final = 16
_SETTLED: Final = 40
_LEAST_BATCHES: Final = 60
_MOST_GROWTH: Final = 1.5
_MOST_STATES: Final = 20
_MOST_RESTART_S: Final = 60.0
_SETTINGS: Final = SecretOptions(
    {
        "spark.sql.streaming.minBatchesToRetain": "10",
        "spark.sql.streaming.stateStore.maintenanceInterval": "1s",
        # The list of files that were read is compacted, and what it has replaced is deleted after ten minutes.
        "spark.sql.streaming.fileSource.log.cleanupDelay": "1s",
    }
)


class Size(NamedTuple):
    """Of the checkpoint, when ``batch`` was the last that was committed."""

    batch: int
    files: int
    bytes: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=400, help="default: %(default)s")
    parser.add_argument("--shapes", type=int, default=100_000, help="default: %(default)s")
    arguments = parser.parse_args()
    if arguments.batches < _LEAST_BATCHES:
        parser.error(f"--batches must be at least {_LEAST_BATCHES}: until batch {_SETTLED} the checkpoint still grows")
    spark = start_session("soak", 2, SparkConfig(settings=_SETTINGS))
    with tempfile.TemporaryDirectory(prefix="flushtracker-") as name:
        job, sizes = JobFolder(Path(name)), list[Size]()
        workload = _Workload(job, arguments.shapes)
        for _ in range(arguments.batches - 1):
            workload.write()
        with _measured(job.root / "checkpoint", sizes):
            run_s = _timed_run(spark, job)
        packed = _packed_bytes(spark, job)
        workload.write()
        restart_s = _timed_run(spark, job)
        acks = {ack_lsn for *_, ack_lsn in job.acks()}
    spark.stop()
    print(f"{arguments.batches} batches in {run_s:.0f} s; started again, to the end of one more: {restart_s:.1f} s")  # noqa: T201
    try:
        _judge(sizes, packed)
        assert restart_s < _MOST_RESTART_S, f"the restart took {restart_s:.1f} s"
        assert acks == {workload.first_lsn - 2}, (
            f"shape-0 is pending since {workload.first_lsn}, but the acks are {acks}"
        )
    except AssertionError as error:
        sys.exit(f"violated: {error}")


def _judge(sizes: list[Size], packed: int) -> None:
    before = [size for size in sizes if 0 <= size.batch <= _SETTLED]
    after = [size for size in sizes if size.batch > _SETTLED]
    assert min(len(before), len(after)) > 2, f"measured only {len(before)} and {len(after)} times"
    files, size = max(each.files for each in before), max(each.bytes for each in before)
    print(  # noqa: T201
        f"measured {len(sizes)} times, packed state {packed / 1e6:.2f} MB; until batch {_SETTLED} at most {files:,} "
        f"files and {size / 1e6:.1f} MB, after it {max(each.files for each in after):,} and "
        f"{max(each.bytes for each in after) / 1e6:.1f} MB"
    )
    for each in after:
        assert each.files <= _MOST_GROWTH * files, f"{each} after at most {files:,} files"
        assert each.bytes <= _MOST_GROWTH * size, f"{each} after at most {size:,} bytes"
    for each in sizes:
        assert each.bytes <= _MOST_STATES * packed, f"{each} with a packed state of {packed:,} bytes"


class _Workload:
    """A file for each batch. The first has a transaction for each shape; nothing more ever is of ``shape-0``."""

    def __init__(self, job: JobFolder, shapes: int) -> None:
        self.first_lsn: Final = 1_000_000
        self._job = job
        self._source = SampleSource()
        self._lsn = self.first_lsn
        self._pending = [0] * shapes
        """The transaction of each shape."""
        self._written = 0
        events = [
            self._transaction(range(first, min(first + _REACHED, shapes))) for first in range(0, shapes, _REACHED)
        ]
        job.write(events)

    def write(self) -> None:
        """The next batch: 1,000 shapes flush what they have, and get another transaction."""
        stride = max(1, len(self._pending) // _REACHED)
        reached = range(1 + self._written % stride, len(self._pending), stride)[:_REACHED]
        flushed = [self._source.flushed(f"shape-{number}", self._pending[number]) for number in reached]
        self._job.write([*flushed, self._transaction(reached)])
        self._written += 1

    def _transaction(self, shapes: range) -> FragmentEvent:
        lsn, self._lsn = self._lsn, self._lsn + 1_000
        for number in shapes:
            self._pending[number] = lsn
        return self._source.transaction(lsn, *(f"shape-{number}" for number in shapes))


@contextmanager
def _measured(checkpoint: Path, sizes: list[Size]) -> Iterator[None]:
    ended = Event()

    def measure() -> None:
        while not ended.wait(0.5):
            batch = max((int(path.name) for path in (checkpoint / "commits").glob("[0-9]*")), default=-1)
            found = list[int]()
            for path in checkpoint.rglob("*"):
                # Maintenance deletes some in the meantime.
                with suppress(FileNotFoundError):
                    if path.is_file():
                        found.append(path.stat().st_size)
            sizes.append(Size(batch, len(found), sum(found)))

    thread = Thread(target=measure)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _timed_run(spark: SparkSession, job: JobFolder) -> float:
    started = time.monotonic()
    job.run(spark, shape_groups=_GROUPS)
    return time.monotonic() - started


def _packed_bytes(spark: SparkSession, job: JobFolder) -> int:
    groups = spark.read.format("statestore").load(str(job.root / "checkpoint")).where("key.shape_group <> ''")
    size: int = groups.selectExpr("sum(length(value.groupState.packed)) AS size").collect()[0]["size"]
    return size


if __name__ == "__main__":
    main()
