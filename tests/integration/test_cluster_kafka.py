"""The job on a cluster, reading Kafka under load, while its driver and its executors are killed."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.brokers import Broker
from tests.support.kafka_job import KafkaJob
from tests.support.kafka_load import KafkaLoad, await_ack_after
from tests.support.standalone_cluster import StandaloneCluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    with StandaloneCluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@pytest.mark.soak
def test_kills_under_load_lose_and_add_no_ack(cluster: StandaloneCluster, broker: Broker, tmp_path: Path) -> None:
    """An executor and then the driver are killed; at the end everything is acknowledged."""
    job = KafkaJob(tmp_path, broker.bootstrap_servers, partitions=2)
    with KafkaLoad(job) as load:
        driver = cluster.submit_job(job)
        ack_lsn = await_ack_after(load, -1)
        cluster.kill_an_executor()
        ack_lsn = await_ack_after(load, ack_lsn)
        cluster.kill_driver(driver)
        driver = cluster.submit_job(job)
        ack_lsn = await_ack_after(load, ack_lsn)
    last_commit = load.bound()
    await_ack_after(load, last_commit - 1)
    driver.send_signal(signal.SIGTERM)
    assert driver.wait(120) == 0, cluster.log_of(driver)
    assert load.assert_sound() == last_commit
