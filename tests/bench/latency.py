"""How long a flush takes from its publication to the ack that it allows, at steady rates through Kafka.

Events of :class:`tests.bench.load.Load`, one flush for each shape of a transaction, published 50 times a second, each
transaction's flushes with the next publication, so all is caught up but for the last. The job runs in this process, a
second one publishes. The latency of a transaction's flushes is the time from their publication until the ack table, as
``deltalake`` reads it 50 times a second, has an ack at or past the transaction. The first 20 seconds are not counted.
"""

import tempfile
import time
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import Process, Queue
from pathlib import Path
from statistics import quantiles
from threading import Event, Thread

from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryProgress

from flushtracker.kafka.client import PRODUCER_DEFAULTS
from flushtracker.local.broker import LocalBroker
from flushtracker.spark.session import start_session
from flushtracker.tracking.job.query import track_flushes
from tests.bench.load import SOURCE, Load
from tests.bench.measure import Table
from tests.bench.tracking import SHUFFLE_PARTITIONS, produce, progress_of
from tests.support.kafka_job import KafkaJob

_TICK_S = 0.02
_SECONDS = 300
TRIGGER_MS = 100
_WARM_UP_S = 20.0
LOAD = Load()


def tables(*, quick: bool = False) -> Iterator[Table]:
    """One table; ``quick`` is not for benches with Spark."""
    assert not quick
    spark = start_session("bench", shuffle_partitions=SHUFFLE_PARTITIONS)
    rows = [measure(spark, rate, _SECONDS, TRIGGER_MS) for rate in (100, 4_000, 20_000)]
    spark.stop()
    header = ["events/s", "published/s", "p50", "p99", "max", "batches/s", "ms a batch"]
    yield Table(f"Flush published to ack readable, {_SECONDS} s each, trigger {TRIGGER_MS} ms", header, rows)


def measure(spark: SparkSession, rate: int, seconds: float, trigger_ms: int) -> list[str]:
    """One rate's row of the table."""
    with _running_job(spark, trigger_ms) as (job, batches):
        published: Queue[tuple[float, int]] = Queue()
        publisher = Process(target=publish, args=(job, rate, _WARM_UP_S + seconds, published))
        publisher.start()
        sent, acked = poll_acks(job, publisher, published)
        publisher.join()
    latencies = latencies_of(sent, acked, sent[0][0] + _WARM_UP_S)
    durations_ms = [batch["durationMs"]["triggerExecution"] for batch in batches]
    cuts = quantiles(latencies, n=100)
    events = LOAD.events_per_transaction * (sent[-1][1] - sent[0][1]) / 500 / (sent[-1][0] - sent[0][0])
    times = [f"{each:.2f} s" for each in (cuts[49], cuts[98], max(latencies))]
    batch_ms = f"{sum(durations_ms) / len(durations_ms):.0f}"
    return [f"{rate:,}", f"{events:,.0f}", *times, f"{len(batches) / (_WARM_UP_S + seconds):.2f}", batch_ms]


@contextmanager
def _running_job(spark: SparkSession, trigger_ms: int) -> Iterator[tuple[KafkaJob, list[StreamingQueryProgress]]]:
    with tempfile.TemporaryDirectory() as folder, LocalBroker(Path(folder) / "broker") as broker:
        root, servers = Path(folder) / "job", broker.bootstrap_servers
        job = KafkaJob(root, servers, partitions=2, producer_options=PRODUCER_DEFAULTS)
        with progress_of(spark) as batches, tracking(spark, job, trigger_ms):
            yield job, batches


@contextmanager
def tracking(spark: SparkSession, job: KafkaJob, trigger_ms: int) -> Iterator[None]:
    """The job runs in a thread during the block."""
    stop = Event()
    config = replace(job.config(shape_groups=16), trigger_ms=trigger_ms)
    thread = Thread(target=track_flushes, args=(spark, config, stop))
    thread.start()
    yield
    stop.set()
    thread.join()


def publish(job: KafkaJob, rate: int, seconds: float, published: "Queue[tuple[float, int]]", first: int = 0) -> None:
    """Publish from transaction ``first`` on at the rate, and say when the flushes of which one were handed over."""
    start, number, flushes = time.time(), first, list[tuple[str, str]]()
    while (elapsed := time.time() - start) < seconds:
        due = first + int(elapsed * rate / LOAD.events_per_transaction) - number
        for shape, flush in flushes:
            produce(job, "flushes", f"{SOURCE} {shape}", flush)
        if flushes:
            published.put((time.time(), LOAD.lsn(number - 1)))
        flushes = []
        for fragment, its_flushes in LOAD.transactions(number, due):
            produce(job, "fragments", SOURCE, fragment)
            flushes += its_flushes
        number += due
        job._producer.poll(0)
        time.sleep(_TICK_S)
    for shape, flush in flushes:
        produce(job, "flushes", f"{SOURCE} {shape}", flush)
    job._producer.flush(30)


def poll_acks(
    job: KafkaJob, publisher: Process, published: "Queue[tuple[float, int]]"
) -> tuple[list[tuple[float, int]], list[tuple[int, float]]]:
    """What was published when, and each ack with the time at which it was first read."""
    sent: list[tuple[float, int]] = []
    found: list[tuple[int, float]] = []
    end = float("inf")
    table: DeltaTable | None = None
    while time.time() < end:
        # Emptied all the time: a process does not end while its queue is full.
        while not published.empty():
            sent.append(published.get())
        if table is None and DeltaTable.is_deltatable(str(job.root / "acks")):
            table = DeltaTable(str(job.root / "acks"))
        if table is not None:
            table.update_incremental()
            ack = table.transaction_version(SOURCE)
            if ack is not None and (not found or ack > found[-1][0]):
                found.append((ack, time.time()))
        if not publisher.is_alive():
            end = min(end, time.time() + 10)
        time.sleep(_TICK_S)
    return sent, found


def latencies_of(sent: list[tuple[float, int]], acked: list[tuple[int, float]], start: float) -> list[float]:
    """One for each publication after ``start``; the last may not be acknowledged yet when the job is stopped."""
    lsns = [lsn for lsn, _ in acked]
    result = []
    for at, lsn in sent:
        place = bisect_right(lsns, lsn - 1)
        if at >= start and place < len(acked):
            result.append(acked[place][1] - at)
    return result
