"""The job on a standalone cluster with one executor of one core, and with two: what scales with executors.

Events of :class:`tests.bench.load.Load` from Kafka, as in :mod:`tests.bench.tracking`: batches of 300,000, four
partitions for each topic, all published before the job starts with spark-submit in client mode. A batch's time is that
between two commits in the checkpoint. The machine's cores are also those of the driver and the broker, so with two
executors on two cores it says how much of a batch is not the executors' work, and not how fast three cores would be.
"""

import signal
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median

from flushtracker.kafka.publisher import _DEFAULTS
from flushtracker.local.broker import LocalBroker
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
    times = {executors: _measure(executors) for executors in (1, 2)}
    rows = [[f"{executors}", f"{each:.2f} s", f"{BATCH / each:,.0f}"] for executors, each in times.items()]
    rows.append(["ratio", f"{times[1] / times[2]:.2f}", ""])
    yield Table(f"Executors of one core, batches of {BATCH:,} events", ["executors", "a batch", "events/s"], rows)


def _measure(executors: int) -> float:
    with tempfile.TemporaryDirectory() as folder, LocalBroker(Path(folder) / "broker", heap_mb=1024) as broker:
        root, servers = Path(folder) / "job", broker.bootstrap_servers
        options = {"maxOffsetsPerTrigger": str(BATCH)}
        job = KafkaJob(root, servers, partitions=4, options=options, producer_options=_DEFAULTS)
        publish_batches(job, Load(), _WARM_UP + _MEASURED)
        commits = root / "checkpoint" / "commits"
        with StandaloneCluster(Path(folder) / "cluster", executors, java_options="") as cluster:
            driver = cluster.submit_job(job)
            last = commits / str(_WARM_UP + _MEASURED - 1)
            wait_until(lambda: last.exists() or driver.poll() is not None, "the last batch", _DEADLINE_S)
            assert driver.poll() is None, cluster.log_of(driver)
            driver.send_signal(signal.SIGTERM)
            driver.wait(_DEADLINE_S)
        ends = [(commits / str(number)).stat().st_mtime for number in range(_WARM_UP - 1, _WARM_UP + _MEASURED)]
    return median(end - start for start, end in pairwise(ends))
