"""The running job's status over HTTP: what holds the ack now, also where the ack table's last row says otherwise."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread

import pytest
from msgspec import structs
from pyspark.sql import SparkSession

from flushtracker.config.status_config import StatusConfig
from flushtracker.errors import ConfigError, StatusError
from flushtracker.local.free_ports import free_port
from flushtracker.status.http.peers import read_program_status
from flushtracker.status.job_status import JobStatus, SourceStatus
from flushtracker.tracking.job.query import track_flushes
from tests.support.job_folder import JobFolder
from tests.support.sample_source import SampleSource
from tests.support.waiting import wait_until

_DEADLINE_S = 120


class RunningJob:
    """The job in a thread, and what it tells."""

    def __init__(self, spark: SparkSession, job: JobFolder) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.stop = Event()
        config = replace(job.config(trigger_ms=100), status=StatusConfig("127.0.0.1", port))
        self.thread = Thread(target=track_flushes, args=(spark, config, self.stop))

    def status(self) -> JobStatus | None:
        """``None`` while the server is not up."""
        try:
            status = read_program_status(self.url, 10.0)
        except StatusError:
            return None
        assert isinstance(status, JobStatus)
        return status

    def source(self) -> SourceStatus | None:
        status = self.status()
        return status.sources[0] if status is not None and status.sources else None

    def wait_for(self, *holders: str) -> SourceStatus:
        """Wait until exactly these shapes hold the ack back."""

        def found() -> bool:
            source = self.source()
            return source is not None and [holder.shape_id for holder in source.holders] == list(holders)

        wait_until(found, f"the holders {holders}", _DEADLINE_S)
        source = self.source()
        assert source is not None
        return source


@contextmanager
def running(spark: SparkSession, job: JobFolder) -> Iterator[RunningJob]:
    """The job, until the block ends."""
    process = RunningJob(spark, job)
    process.thread.start()
    try:
        yield process
    finally:
        process.stop.set()
        process.thread.join(_DEADLINE_S)


def test_a_job_tells_over_http_what_holds_its_ack_now(spark: SparkSession, tmp_path: Path) -> None:
    """Two of three shapes of one transaction flush, so the ack does not move; a restarted job knows it at once."""
    job, source = JobFolder(tmp_path), SampleSource()
    before_ms = time.time() * 1000
    with running(spark, job) as process:
        wait_until(lambda: (status := process.status()) is not None and status.is_ready, "readiness", _DEADLINE_S)
        job.write([source.transaction(2000, "a", "b", "c")])
        first = process.wait_for("a", "b", "c")
        assert (first.ack_lsn, first.last_seen_lsn, first.unacknowledged_bytes) == (1998, 2000, 2)
        job.write([source.flushed("a", 2000), source.flushed("b", 2000)])
        status = process.wait_for("c")
        (holder,) = status.holders
        assert (holder.held_bytes, holder.ack_if_removed, holder.pending_transactions) == (2, 2000, 1)
        assert status.waiting_since_ms is not None
        assert before_ms <= status.waiting_since_ms <= time.time() * 1000
        told = process.status()
        assert told is not None
        assert (told.is_ready, told.events, told.records_behind) == (True, 3, None)
        assert told.state_bytes is not None
        assert told.state_bytes > 0
        assert told.batch_ms > 0
    assert process.status() is None
    assert [*job.ack_lsns(source.name).values()] == [1998]  # A batch may have found the empty file of flushes alone.
    with running(spark, job) as again:
        assert structs.replace(again.wait_for("c"), events=0) == structs.replace(status, events=0)
        job.write([source.removed("c", 2000)])
        assert again.wait_for().waiting_since_ms is None


def test_a_taken_port_is_refused_before_the_job_starts(spark: SparkSession, tmp_path: Path) -> None:
    """Nothing is read, and no table is created."""
    job = JobFolder(tmp_path)
    with running(spark, job) as process:
        wait_until(lambda: process.status() is not None, "the server", _DEADLINE_S)
        port = int(process.url.rpartition(":")[2])
        config = replace(JobFolder(tmp_path / "other").config(), status=StatusConfig("127.0.0.1", port))
        with pytest.raises(ConfigError, match=r"status\.listen"):
            track_flushes(spark, config, Event())
        assert not Path(config.sink.acks).exists()
