"""The job on a cluster, reading Kafka under load, while its driver and its executors are killed."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.brokers import Broker
from tests.support.kafka_job import KafkaJob
from tests.support.kafka_load import KafkaLoad, await_ack_after
from tests.support.standalone_cluster import StandaloneCluster

_ROOT: Final = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    with StandaloneCluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


def submit(cluster: StandaloneCluster, job: KafkaJob) -> "subprocess.Popen[bytes]":
    """Start the job, which runs until it is stopped."""
    config = str(job.config_file(shape_groups=16, trigger_ms=100))
    return cluster.submit(str(_ROOT / "jobs" / "track_flushes.py"), "--config", config, cwd=job.root)


def kill(driver: "subprocess.Popen[bytes]") -> None:
    """Send SIGKILL to the driver's Python and its JVM."""
    os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()


def test_kills_under_load_lose_and_add_no_ack(cluster: StandaloneCluster, broker: Broker, tmp_path: Path) -> None:
    """An executor and then the driver are killed; at the end everything is acknowledged."""
    job = KafkaJob(tmp_path, broker.bootstrap_servers, partitions=2)
    with KafkaLoad(job) as load:
        driver = submit(cluster, job)
        ack_lsn = await_ack_after(load, -1)
        cluster.kill_an_executor()
        ack_lsn = await_ack_after(load, ack_lsn)
        kill(driver)
        driver = submit(cluster, job)
        ack_lsn = await_ack_after(load, ack_lsn)
    last_commit = load.bound()
    await_ack_after(load, last_commit - 1)
    driver.send_signal(signal.SIGTERM)
    assert driver.wait(120) == 0, cluster.log_of(driver)
    assert load.assert_sound() == last_commit
