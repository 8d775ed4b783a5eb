"""Requests for Spark's checkpoint that arrive late at a server with the API of S3: a driver has given up, or is stale.

``tests/integration/test_s3_late_writes.py`` has those for tables.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from flushtracker.delta.storage import table_rows
from flushtracker.errors import FlushtrackerError
from flushtracker.tracking.job.driver import AckDriver
from flushtracker.tracking.job.query import track_flushes
from tests.support.brokers import Broker
from tests.support.faulty_proxy import HELD, Fault, FaultyProxy, faulty_proxy
from tests.support.kafka_job import KafkaJob
from tests.support.object_store import store_options
from tests.support.processes import run_to_end
from tests.support.s3_server import S3Server, running_s3
from tests.support.s3_session import config_on_store, s3_store, store_session
from tests.support.sample_source import SampleSource
from tests.support.seeds import every
from tests.support.waiting import wait_until

_OK: Final = 200
_REFUSED: Final = 412
_IMPATIENT: Final = {
    "fs.s3a.connection.part.upload.timeout": "3s",
    "fs.s3a.connection.request.timeout": "3s",
    "fs.s3a.attempts.maximum": "0",
    "fs.s3a.retry.limit": "0",
}


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with running_s3() as found:
        yield found


@pytest.fixture(scope="module")
def proxy(s3: S3Server) -> Iterator[FaultyProxy]:
    with faulty_proxy(s3.port) as found:
        yield found


class _Job:
    """``track`` on topics, with tables and checkpoint on the store: each run is another driver.

    It has acknowledged all but the transaction at 2000, in the first batch.
    """

    def __init__(self, spark: SparkSession, root: Path, broker: Broker, s3: S3Server, proxy: FaultyProxy) -> None:
        self._spark, self._proxy, self._name = spark, proxy, root.name
        self._checkpoint = s3.folder / self._name / "checkpoint"
        self._topics = KafkaJob(root, broker.bootstrap_servers)
        self.write, self.source = self._topics.write, SampleSource()
        self._file = s3_store(proxy.port).take(self._topics.config_file(), self._name)
        self.write([self.source.transaction(2000, "a")])
        self.run()
        assert self.ack() == 1998

    def run(self, *, is_patient: bool = True) -> None:
        """In this process, until all is read; without patience, a request is given up after seconds, at once."""
        hadoop: Any = self._spark.sparkContext._jsc.hadoopConfiguration()
        settings = {} if is_patient else _IMPATIENT
        for name, value in settings.items():
            hadoop.set(name, value)
        try:
            with store_session(self._spark, self._proxy.port):
                config = config_on_store(self._topics.config(), self._proxy.port, self._name)
                track_flushes(self._spark, config, Event())
        finally:
            for name in settings:
                hadoop.unset(name)

    def give_up(self, file: str) -> None:
        """Run, until a driver gives up the request that writes this file of the checkpoint, which is held."""
        self.hold(file)
        with pytest.raises(FlushtrackerError):
            self.run(is_patient=False)
        assert self._proxy.held() == 1

    def succeed(self) -> None:
        """Run in a process of its own, while a driver still runs in this one."""
        command = [sys.executable, "-m", "flushtracker", "track", "--config", str(self._file)]
        done = run_to_end(command, timeout=600)
        assert done.returncode == 0, done.stderr

    def hold(self, file: str) -> None:
        """Hold the next request that writes a file of the checkpoint."""
        self._proxy.add(Fault(rf"PUT .*{self._name}/checkpoint/{file}(\?|$)", HELD))

    def release(self) -> int:
        """What the store answers to the request that was held."""
        ((_, status),) = self._proxy.release()
        return status

    def state(self) -> dict[str, bytes]:
        """The files of the state after the second batch."""
        files = {str(path): path.read_bytes() for path in (self._checkpoint / "state/0").glob("*/2.delta")}
        assert len(files) > 1
        return files

    def ack(self) -> int:
        table = DeltaTable(f"s3://bucket/{self._name}/acks", storage_options=store_options(self._proxy.port))
        lsns: list[int] = table_rows(table, ["ack_lsn"])["ack_lsn"].to_pylist()
        assert len(lsns) == len({*lsns})
        return max(lsns)

    def finish(self) -> None:
        """The transaction at 3000 keeps the ack, whoever continues; in the end nothing was lost."""
        assert self.ack() == 2998
        self.write([self.source.transaction(4000, "a"), self.source.flushed("a", 4000)])
        self.run()
        assert self.ack() == 2998
        self.write([self.source.flushed("b", 3000)])
        self.run()
        assert self.ack() == 4000


@pytest.fixture
def job(spark: SparkSession, tmp_path: Path, broker: Broker, s3: S3Server, proxy: FaultyProxy) -> _Job:
    return _Job(spark, tmp_path, broker, s3, proxy)


@pytest.fixture
def refused(spark: SparkSession) -> int:
    """The answer to a file that is there; Hadoop 3.4.1 has no conditional writes."""
    return _OK if spark.version.startswith("4.0.") else _REFUSED


@every(4, 0)
def test_offsets_that_arrive_after_those_of_the_next_driver_lose_nothing(job: _Job, refused: int) -> None:
    """The next driver has planned the same batch with more in it."""
    job.write([job.source.flushed("a", 2000)])
    job.give_up("offsets/1")
    job.write([job.source.transaction(3000, "b")])
    job.run()
    assert job.release() == refused
    job.finish()


@every(4, 1)
def test_stale_driver_whose_offsets_arrive_late_is_fenced_before_it_runs_the_batch(
    job: _Job, proxy: FaultyProxy, refused: int
) -> None:
    """Otherwise its state would replace that of the next driver, in which a shape is pending."""
    failures = list[BaseException]()

    def run() -> None:
        try:
            job.run()
        except BaseException as error:  # noqa: BLE001  checked below
            failures.append(error)

    job.hold("offsets/1")
    job.write([job.source.flushed("a", 2000)])
    stale = Thread(target=run)
    stale.start()
    wait_until(lambda: proxy.held() == 1, "the stale driver has planned its batch", 120)
    job.write([job.source.transaction(3000, "b")])
    job.succeed()
    state = job.state()
    assert job.release() == refused
    stale.join(120)
    assert not stale.is_alive()
    (failure,) = failures
    assert "this driver has been fenced: another driver (process " in str(failure)
    assert job.state() == state
    job.finish()


@every(4, 3)
@pytest.mark.parametrize("in_its_batch", [False, True])
def test_commit_of_a_batch_that_arrives_late_changes_nothing(
    job: _Job, monkeypatch: pytest.MonkeyPatch, refused: int, *, in_its_batch: bool
) -> None:
    """The next driver runs the batch again; if the commit arrives just then, it begins anew after it."""
    job.write([job.source.flushed("a", 2000), job.source.transaction(3000, "b")])
    job.give_up("commits/1")
    handle, answers = AckDriver.handle_batch, list[int]()

    def release_first(driver: AckDriver, *arguments: Any) -> None:
        if not answers:
            answers.append(job.release())
        handle(driver, *arguments)

    if in_its_batch:
        monkeypatch.setattr(AckDriver, "handle_batch", release_first)
    job.run()
    assert (answers or [job.release()]) == [_OK if in_its_batch else refused]
    job.finish()


@every(4, 2)
def test_state_that_arrives_after_that_of_the_next_driver_is_refused(job: _Job, refused: int) -> None:
    """It was begun when there was none; the next driver has run the same batch again, since its offsets were there."""
    job.write([job.source.flushed("a", 2000), job.source.transaction(3000, "b")])
    job.give_up(r"state/0/\d+/2\.delta")
    job.run()
    state = job.state()
    assert job.release() == refused
    assert job.state() == state
    job.finish()
