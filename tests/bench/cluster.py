"""The job on a standalone cluster with one executor of one core, and with two: what scales with executors.

Events of :class:`tests.bench.load.Load` from Kafka, as in :mod:`tests.bench.tracking`: batches of 300,000, four
partitions for each topic, all published before the job starts with spark-submit in client mode. A batch's time is that
between two commits in the checkpoint; the CPU time is that of the executors with their Python workers, and that of the
driver. The machine's cores are also those of the driver and the broker, so the times of two executors on two cores do
not say how fast more cores would be. What a core of an executor takes is a batch's events by its CPU time.
"""

import signal
import subprocess
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median

from flushtracker.kafka.client import PRODUCER_DEFAULTS
from flushtracker.local.broker import LocalBroker
from tests.bench.cpu import cpu_seconds
from tests.bench.load import Load
from tests.bench.measure import Table
from tests.bench.tracking import BATCH, publish_batches
from tests.support.kafka_job import KafkaJob
from tests.support.standalone_cluster import StandaloneCluster
from tests.support.waiting import wait_until

_WARM_UP = 4
_MEASURED = 6
_DEADLINE_S = 600


def tables(*, quick: bool = False) -> Iterator[Table]:
    """One table; ``quick`` is not for benches with Spark."""
    assert not quick
    found = {executors: _measure(executors) for executors in (1, 2)}
    rows = []
    for executors, (batch_s, executors_s, driver_s) in found.items():
        cells = [f"{batch_s:.2f} s", f"{BATCH / batch_s:,.0f}", f"{executors_s:.2f} s", f"{driver_s:.2f} s"]
        rows.append([f"{executors}", *cells, f"{BATCH / executors_s:,.0f}"])
    header = ["executors", "a batch", "events/s", "CPU, executors", "CPU, driver", "events per core second"]
    yield Table(f"Executors of one core, batches of {BATCH:,} events", header, rows)


def _measure(executors: int) -> tuple[float, float, float]:
    """The seconds of a batch, and the CPU seconds of executors and driver for one."""
    with tempfile.TemporaryDirectory() as folder, LocalBroker(Path(folder) / "broker", heap_mb=1024) as broker:
        root, servers = Path(folder) / "job", broker.bootstrap_servers
        options = {"maxOffsetsPerTrigger": str(BATCH)}
        job = KafkaJob(root, servers, partitions=4, options=options, producer_options=PRODUCER_DEFAULTS)
        publish_batches(job, Load(), _WARM_UP + _MEASURED)
        commits = root / "checkpoint" / "commits"
        with StandaloneCluster(Path(folder) / "cluster", executors, java_options="") as cluster:
            driver = cluster.submit_job(job)
            _await(commits / str(_WARM_UP - 1), cluster, driver)
            pids = cluster.executor_pids()
            before = _cpu(pids, driver.pid)
            _await(commits / str(_WARM_UP + _MEASURED - 1), cluster, driver)
            used = [(after - start) / _MEASURED for start, after in zip(before, _cpu(pids, driver.pid), strict=True)]
            driver.send_signal(signal.SIGTERM)
            driver.wait(_DEADLINE_S)
        ends = [(commits / str(number)).stat().st_mtime for number in range(_WARM_UP - 1, _WARM_UP + _MEASURED)]
    return median(end - start for start, end in pairwise(ends)), used[0], used[1]


def _await(commit: Path, cluster: StandaloneCluster, driver: "subprocess.Popen[bytes]") -> None:
    wait_until(lambda: commit.exists() or driver.poll() is not None, "the batch", _DEADLINE_S)
    assert driver.poll() is None, cluster.log_of(driver)


def _cpu(executors: list[int], driver: int) -> tuple[float, float]:
    return sum(map(cpu_seconds, executors)), cpu_seconds(driver)
