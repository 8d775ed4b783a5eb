"""Two concurrent drivers, such as a stale pod and its successor: one of them ends with a clear error."""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Final

import pytest
from pyspark.sql import SparkSession

from flushtracker.errors import FlushtrackerError
from flushtracker.tracking.job.query import track_flushes
from tests.support.brokers import Broker
from tests.support.kafka_job import KafkaJob
from tests.support.sample_source import SampleSource
from tests.support.seeds import every
from tests.support.waiting import wait_until

_ROOT: Final = Path(__file__).parents[2]
_DEADLINE_S: Final = 600


@pytest.fixture
def start() -> Iterator[Callable[[Path], subprocess.Popen[bytes]]]:
    """Starts the job with a configuration file; its output goes to the ``.log`` file next to it."""
    drivers: list[subprocess.Popen[bytes]] = []

    def started(config: Path) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "flushtracker", "track", "--config", str(config)]
        with config.with_suffix(".log").open("wb") as log:
            drivers.append(subprocess.Popen(command, cwd=_ROOT, stdout=log, stderr=log, start_new_session=True))
        return drivers[-1]

    yield started
    for driver in drivers:
        if driver.poll() is None:
            driver.kill()
        driver.wait()


@every(2, 0)
@pytest.mark.parametrize("shared", ["checkpoint and ack table", pytest.param("ack table", marks=pytest.mark.soak)])
def test_one_of_two_drivers_ends_and_the_other_continues(
    spark: SparkSession, broker: Broker, tmp_path: Path, start: Callable[[Path], subprocess.Popen[bytes]], shared: str
) -> None:
    """No ack is duplicate or less than the one before, and the last one is that of the last commit.

    The second driver runs in this process, with a JVM of its own like the first.
    """
    job = KafkaJob(tmp_path, broker.bootstrap_servers)
    source = SampleSource()
    file = job.config_file(trigger_ms=100)
    config = job.config(trigger_ms=100)
    if "checkpoint" not in shared:
        config = replace(config, state=replace(config.state, checkpoint=f"{config.state.checkpoint}-2"))
    first = start(file)
    lsn = 2000
    job.write([source.transaction(lsn, "users")])
    wait_until(job.acks, "an ack of the first", _DEADLINE_S)
    stop = Event()

    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(track_flushes, spark, config, stop)

        def one_has_ended() -> bool:
            nonlocal lsn
            lsn += 1000
            job.write([source.flushed("users", lsn - 1000), source.transaction(lsn, "users")])
            return first.poll() is not None or second.done()

        try:
            wait_until(one_has_ended, "one has ended", _DEADLINE_S, pause_s=0.1)
            has_first_ended = first.poll() is not None
            job.write([source.flushed("users", lsn), source.transaction(lsn + 1000)])
            wait_until(lambda: max(job.ack_lsns(source.name).values()) == lsn + 1000, "the last ack", _DEADLINE_S)
        finally:
            stop.set()
            first.send_signal(signal.SIGTERM)
            failure, code = second.exception(60), first.wait(60)
    log = file.with_suffix(".log").read_text()
    if has_first_ended:
        assert failure is None
        assert code in {4, 5}, log
        assert "another driver" in log.splitlines()[-1]
    else:
        assert code == 0, log
        assert isinstance(failure, FlushtrackerError)
        assert failure.exit_code in {4, 5}
        assert "another driver" in str(failure)
    acks = [ack_lsn for *_, ack_lsn in job.acks()]
    assert len(acks) == len(set(acks))
    by_time = sorted(job.ack_rows(), key=lambda row: row["acked_at"])
    assert [row["ack_lsn"] for row in by_time] == sorted(acks)
