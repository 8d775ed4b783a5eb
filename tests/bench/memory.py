"""The memory of the program over half an hour of steady load, with 100,000 and 1,000,000 shapes pending.

``flushtracker track`` on Kafka, as a user starts it, with the trigger of deploy/compose/flushtracker.yaml. Events of
:class:`tests.bench.load.Load`, 1,000 a second; each transaction's flushes follow so many transactions later that the
shapes between are always pending, and the ack moves all the time. The memory is the resident set of the driver (Python
and JVM) and of Spark's Python workers, every ten seconds.
"""

import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from threading import Event, Thread

from flushtracker.kafka.client import PRODUCER_DEFAULTS
from flushtracker.local.broker import LocalBroker
from tests.bench.cpu import descendants
from tests.bench.lifetime import running, seconds_to_ack
from tests.bench.load import SOURCE, Load
from tests.bench.measure import Table
from tests.bench.tracking import produce
from tests.support.kafka_job import KafkaJob

_RATE = 1_000
_SECONDS = 1_800
_SAMPLE_S = 10.0
_PART_S = 300


def tables(*, quick: bool = False) -> Iterator[Table]:
    """A table for each number of pending shapes; ``quick`` is not for benches with Spark."""
    assert not quick
    for pending in (100_000, 1_000_000):
        yield _measure(pending)


def _measure(pending: int) -> Table:
    # Three shapes to a transaction; twice as many shapes, so that none is reached again while it is pending.
    load, late = Load(shapes=2 * pending), pending // 3
    with tempfile.TemporaryDirectory() as folder, LocalBroker(Path(folder) / "broker") as broker:
        root, servers = Path(folder) / "job", broker.bootstrap_servers
        options = {"maxOffsetsPerTrigger": "500000"}
        job = KafkaJob(root, servers, partitions=2, options=options, producer_options=PRODUCER_DEFAULTS)
        for fragment, _ in load.transactions(0, late):
            produce(job, "fragments", SOURCE, fragment)
        stop = Event()
        publisher = Thread(target=_publish, args=(job, load, late, stop))
        with running(job) as pid:
            publisher.start()
            seconds_to_ack(job, load.lsn(0))
            samples = _sample(pid, time.monotonic())
            stop.set()
            publisher.join()
    rows = []
    for start in range(0, _SECONDS, _PART_S):
        part = [sizes for at, sizes in samples if start <= at < start + _PART_S]
        figures = [f"{median(column):,.0f} MB" for column in zip(*part, strict=True)]
        rows.append([f"{start // 60} to {(start + _PART_S) // 60} min", *figures])
    header = ["", "driver, Python", "driver, JVM", "workers"]
    return Table(f"Memory with {pending:,} pending shapes and {_RATE:,} events/s, medians", header, rows)


def _publish(job: KafkaJob, load: Load, late: int, stop: Event) -> None:
    started, number = time.monotonic(), 0
    while not stop.wait(0.05):
        due = int((time.monotonic() - started) * _RATE / load.events_per_transaction) - number
        for fragment, _ in load.transactions(late + number, due):
            produce(job, "fragments", SOURCE, fragment)
        for _, flushes in load.transactions(number, due):
            for shape, flush in flushes:
                produce(job, "flushes", f"{SOURCE} {shape}", flush)
        number += due
        job._producer.poll(0)


def _sample(pid: int, start: float) -> list[tuple[float, tuple[float, float, float]]]:
    """The megabytes of the driver's Python, its JVM and the workers, with the seconds since ``start``."""
    samples = []
    while (at := time.monotonic() - start) < _SECONDS:
        sizes = {"python": 0.0, "java": 0.0, "workers": 0.0}
        for child in descendants(pid):
            name, megabytes = _resident(child)
            sizes["python" if child == pid else "java" if name == "java" else "workers"] += megabytes
        samples.append((at, (sizes["python"], sizes["java"], sizes["workers"])))
        time.sleep(_SAMPLE_S)
    return samples


def _resident(pid: int) -> tuple[str, float]:
    """A process's name and resident megabytes; nothing, if it has just ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return "", 0.0
    name, size = re.search(r"Name:\s+(\S+)", status), re.search(r"VmRSS:\s+(\d+) kB", status)
    return name[1] if name else "", int(size[1]) / 1024 if size else 0.0
