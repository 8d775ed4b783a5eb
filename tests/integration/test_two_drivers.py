"""Two concurrent drivers, such as a stale pod and its successor: one of them ends with a clear error."""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.brokers import Broker
from tests.support.kafka_job import KafkaJob
from tests.support.sample_source import SampleSource
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


@pytest.mark.long
@pytest.mark.parametrize("shared", ["checkpoint and ack table", pytest.param("ack table", marks=pytest.mark.soak)])
def test_one_of_two_drivers_ends_and_the_other_continues(
    broker: Broker, tmp_path: Path, start: Callable[[Path], subprocess.Popen[bytes]], shared: str
) -> None:
    """No ack is duplicate or less than the one before, and the last one is that of the last commit."""
    job = KafkaJob(tmp_path, broker.bootstrap_servers)
    source = SampleSource()
    configs = [job.config_file(trigger_ms=100)]
    configs.append(configs[0].with_name("second.yaml"))
    text = configs[0].read_text()
    configs[1].write_text(text if "checkpoint" in shared else text.replace("/checkpoint", "/checkpoint-2"))
    drivers = [start(configs[0])]
    lsn = 2000
    job.write([source.transaction(lsn, "users")])
    wait_until(job.acks, "an ack of the first", _DEADLINE_S)
    drivers.append(start(configs[1]))

    def one_has_ended() -> bool:
        nonlocal lsn
        lsn += 1000
        job.write([source.flushed("users", lsn - 1000), source.transaction(lsn, "users")])
        return any(driver.poll() is not None for driver in drivers)

    wait_until(one_has_ended, "one has ended", _DEADLINE_S, pause_s=0.1)
    ended = next(number for number, driver in enumerate(drivers) if driver.poll() is not None)
    log = configs[ended].with_suffix(".log").read_text()
    assert drivers[ended].returncode in {4, 5}, log
    assert "another driver" in log.splitlines()[-1]
    job.write([source.flushed("users", lsn), source.transaction(lsn + 1000)])
    wait_until(lambda: max(ack_lsn for *_, ack_lsn in job.acks()) == lsn + 1000, "the other's last ack", _DEADLINE_S)
    other = drivers[1 - ended]
    other.send_signal(signal.SIGTERM)
    assert other.wait(60) == 0, configs[1 - ended].with_suffix(".log").read_text()
    acks = [ack_lsn for *_, ack_lsn in job.acks()]
    assert len(acks) == len(set(acks))
    by_time = sorted(job.ack_rows(), key=lambda row: row["acked_at"])
    assert [row["ack_lsn"] for row in by_time] == sorted(acks)
