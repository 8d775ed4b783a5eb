"""The writers' job while it runs: cadences kept across batches, and transactions that many batches write."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import pytest
from pyspark.sql import SparkSession

from flushtracker.errors import FlushtrackerError, StateError
from flushtracker.events.registry_events import ShapeEntry
from flushtracker.events.stream_events import ShapeChangesEvent
from flushtracker.shape_log.table.reader import ShapeLogReader
from flushtracker.shape_log.write.query import write_shapes
from flushtracker.shape_log.write_loop import notifiable
from flushtracker.shapes.definition import FlushPolicy, ShapeDefinition
from flushtracker.wal.changes import Commit, LogItem
from flushtracker.wal.log_offset import LogOffset
from tests.support.background import Background
from tests.support.seeds import every
from tests.support.shape_transactions import SOURCE, Transactions
from tests.support.waiting import wait_until
from tests.support.write_folder import WriteFolder

HOUR_MS = 3_600_000


@contextmanager
def running(spark: SparkSession, job: WriteFolder, flush: str = "hold") -> Iterator[None]:
    """The job with a trigger every 200 ms, until the block ends."""
    stop = Event()
    config = job.config(trigger_ms=200, flush=flush)
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(write_shapes, spark, config, stop)
        try:
            yield
        finally:
            stop.set()
            ended.result(60)


def entry(shape_id: str, policy: FlushPolicy) -> ShapeEntry:
    return ShapeEntry(SOURCE, ShapeDefinition(shape_id, ("public", "t"), flush=policy), 1, LogOffset(900, 0))


def last_notified(job: WriteFolder) -> dict[str, LogOffset]:
    return {shape_id: offset for file in job.notified() for shape_id, offset in file.items()}


def test_shapes_keep_their_own_cadences_and_held_rows_survive_a_restart(spark: SparkSession, tmp_path: Path) -> None:
    """By bytes at once, by time without new data, at a chunk's end in mid-transaction, and not at all for an hour."""
    job = WriteFolder(tmp_path / "job")
    policies = {
        "bytes": FlushPolicy(bytes=1, interval_ms=HOUR_MS),
        "interval": FlushPolicy(bytes=1 << 30, interval_ms=700),
        "chunk": FlushPolicy(bytes=1 << 30, interval_ms=HOUR_MS, chunk_bytes=60),
        "held": FlushPolicy(bytes=1 << 30, interval_ms=HOUR_MS),
    }
    streams = {shape_id: Transactions(shape_id) for shape_id in policies}
    for stream in streams.values():
        stream.grow(3)
    ends = {shape_id: LogOffset.last_of(max(stream.items)) for shape_id, stream in streams.items()}
    job.write([], [entry(*each) for each in policies.items()])
    for stream in streams.values():
        job.write(stream.events(list(stream.items)))
    with running(spark, job):
        wait_until(lambda: {"bytes", "interval", "chunk"} <= last_notified(job).keys(), "three shapes notified", 60)
        wait_until(lambda: last_notified(job)["interval"] == ends["interval"], "the interval passes", 20)
    said = last_notified(job)
    assert said["bytes"] == ends["bytes"]
    assert said["chunk"] < ends["chunk"]
    assert "held" not in said
    for shape_id in ("bytes", "interval"):
        assert job.log_rows(shape_id) == streams[shape_id].expected_rows()
    written = job.log_rows("chunk")
    assert written == streams["chunk"].expected_rows()[: len(written)]
    assert said["chunk"] == notifiable(LogOffset(*written[-1][:2]))
    assert job.log_rows("held") == []
    # The state has the rest. Other limits make it due, without any change of these shapes.
    job.write([], [entry("chunk", FlushPolicy(interval_ms=1)), entry("held", FlushPolicy(interval_ms=1))])
    with running(spark, job):
        wait_until(lambda: last_notified(job) == ends, "all are notified", 60)
    for shape_id, stream in streams.items():
        assert job.log_rows(shape_id) == stream.expected_rows()


def test_other_flush_mode_needs_another_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    """Spark's state of the two differs, and what shapes hold back would wait for their next change."""
    job, stream = WriteFolder(tmp_path / "job"), Transactions()
    stream.grow(2)
    job.write(stream.events(list(stream.items)))
    with running(spark, job):
        wait_until(lambda: last_notified(job), "a notification", 60)
    with pytest.raises(StateError, match=r"was made for flush hold, but flush is now batch; change it back, or set wr"):
        job.run(spark)


ROWS_OF_EVENT = 100
EVENTS_OF_FILE = 250


def large_transaction(job: WriteFolder, shape_id: str, rows: int) -> LogOffset:
    """Write a transaction in events of 100 rows and files of 25,000; returns its boundary."""
    lsn, last, events = 1000, None, list[ShapeChangesEvent]()
    for first in range(0, rows, ROWS_OF_EVENT):
        items = tuple(
            LogItem(LogOffset(lsn, 2 * n), "insert", f'"t"/"{n}"', {"id": str(n), "text": "x" * 50})
            for n in range(first, first + ROWS_OF_EVENT)
        )
        offset = items[-1].offset
        commit = Commit("2026-01-01T00:00:00.000000Z", lsn + 40) if first + ROWS_OF_EVENT == rows else None
        follows = last or LogOffset(900, 0)
        events.append(
            ShapeChangesEvent(
                *(SOURCE, shape_id, 7, follows, offset),
                start=not last,
                has_begin=not last,
                commit=commit,
                items=items,
            )
        )
        last = offset
        if len(events) == EVENTS_OF_FILE or commit is not None:
            job.write(events)
            events = []
    return LogOffset.last_of(lsn)


class Poller(Background):
    """Reads a shape all the time, and keeps each number of rows that it has seen."""

    def __init__(self, log: Path, shape_id: str) -> None:
        super().__init__(self._play)
        self.seen: list[int] = []
        self._log, self._shape_id = log, shape_id

    def _play(self) -> None:
        while not self.stopping.is_set():
            try:
                found = ShapeLogReader(str(self._log)).read_log(self._shape_id)
            except FlushtrackerError:
                continue  # There is no such table or shape yet.
            self.seen.append(found.rows.num_rows)
            time.sleep(0.02)


def peak_worker_kib() -> int:
    """The greatest memory that any Python worker of this session's JVM has had, in KiB."""
    return max(map(_peak_kib, Path("/proc").glob("[0-9]*")))


def _peak_kib(process: Path) -> int:
    try:
        if b"pyspark.daemon" not in (process / "cmdline").read_bytes():
            return 0
        (line,) = (line for line in (process / "status").read_text().splitlines() if line.startswith("VmHWM:"))
    except (OSError, ValueError):
        return 0  # It has ended.
    return int(line.split()[1])


@every(2, 0)
def test_large_transaction_is_written_with_flat_memory_and_never_read_in_part(
    spark: SparkSession, tmp_path: Path
) -> None:
    """200,000 rows in 8 batches take the workers no more than 50,000 in 2, and leave a state of a few hundred bytes."""
    peaks = []
    for rows in (50_000, 200_000):
        job = WriteFolder(tmp_path / str(rows))
        boundary = large_transaction(job, "a", rows)
        with Poller(job.root / "log", "a") as poller:
            job.run(spark)
            wait_until(lambda: poller.seen[-1:] == [rows + 1], "the reader has all", 30)  # noqa: B023  called here
        assert set(poller.seen) == {0, rows + 1}
        assert last_notified(job) == {"a": boundary}
        assert len(job.notified()) == rows // (ROWS_OF_EVENT * EVENTS_OF_FILE)
        state = sum(file.stat().st_size for file in (job.root / "checkpoint" / "state").rglob("*.delta"))
        assert state < 20_000
        peaks.append(peak_worker_kib())
    assert 0 < peaks[1] < peaks[0] * 1.2, peaks


@every(2, 1)
def test_whole_transactions_of_several_batches_are_never_read_in_part(spark: SparkSession, tmp_path: Path) -> None:
    """With ``write_unit: txn`` they wait in the state, and are appended at once."""
    job = WriteFolder(tmp_path / "job")
    boundary = large_transaction(job, "a", 40_000)
    with Poller(job.root / "log", "a") as poller:
        job.run(spark, write_unit="txn")
        wait_until(lambda: poller.seen[-1:] == [40_001], "the reader has all", 30)
    assert set(poller.seen) <= {0, 40_001}
    assert job.notified() == [{"a": boundary}]
    assert len(set(job.log_rows("a"))) == 40_001
