"""How many events per second the whole tracking job takes, from Kafka or files to the ack: wall-clock time, warm.

A batch has 300,000 events of :class:`tests.bench.load.Load`: with 3 flushes to a transaction a quarter are fragments
with three shapes each. All events are published before the job starts, on two partitions for each topic, and read in
batches of that size. The first batches warm the JVM up; the time of a batch is Spark's ``triggerExecution``: from
planning it until it is committed.
"""

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from statistics import median
from threading import Event
from typing import Any
from unittest.mock import patch

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from flushtracker.kafka.client import PRODUCER_DEFAULTS
from flushtracker.local.broker import LocalBroker
from flushtracker.spark.query_run import start_query
from flushtracker.spark.session import start_session
from flushtracker.tracking.job import query as track_flushes_query
from flushtracker.tracking.job.query import track_flushes
from tests.bench.load import SOURCE, Load
from tests.bench.measure import Table
from tests.support.job_folder import JobFolder
from tests.support.kafka_job import KafkaJob

BATCH = 300_000
SHUFFLE_PARTITIONS = 2
_WARM_UP = 3
_MEASURED = 5

WORKLOADS: list[tuple[str, Load, str, int]] = [
    ("Kafka", Load(), "kafka", 16),
    ("files", Load(), "files", 16),
    ("Kafka", Load(shapes=10), "kafka", 16),
    ("Kafka", Load(shapes=1_000_000), "kafka", 16),
    ("Kafka, 9 shapes to a fragment", Load(each=9, flushes=9), "kafka", 16),
    ("Kafka, few flushes", Load(flushes=1, every=9), "kafka", 16),
    ("Kafka", Load(shapes=10_000), "kafka", 16),
    ("Kafka, a group for each shape", Load(shapes=10_000), "kafka", 0),
]
"""What it is, the events, how they come, and the number of groups of shapes (0: one for each)."""


@contextmanager
def progress_of(spark: SparkSession, program: Any = track_flushes_query) -> Iterator[list[StreamingQueryProgress]]:
    """What Spark says of each batch that had events, of the query that starts and ends in the block: there at its end.

    ``program`` is the module that starts the query. A listener in Python would cost a third of a core.
    """
    queries: list[StreamingQuery] = []
    batches: list[StreamingQueryProgress] = []

    def start(*arguments: Any) -> StreamingQuery:
        queries.append(start_query(*arguments))
        return queries[-1]

    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", "100000")
    with patch.object(program, "start_query", start):
        yield batches
    batches += [each for query in queries for each in query.recentProgress if each["numInputRows"]]


def tables(*, quick: bool = False) -> Iterator[Table]:
    """One table; ``quick`` is not for benches with Spark."""
    assert not quick
    spark = start_session("bench", shuffle_partitions=SHUFFLE_PARTITIONS)
    rows = []
    for label, load, transport, shape_groups in WORKLOADS:
        seconds = measure(spark, load, transport, shape_groups)
        cells = [
            f"{load.shapes:,}",
            f"{load.flush_share:.0%}",
            f"{median(seconds):.2f} s",
            f"{BATCH / median(seconds):,.0f}",
        ]
        rows.append([label, *cells])
    spark.stop()
    header = ["", "shapes", "flushes", "a batch", "events/s"]
    yield Table(f"The tracking job, batches of {BATCH:,} events", header, rows)


def measure(spark: SparkSession, load: Load, transport: str, shape_groups: int) -> list[float]:
    """The seconds of each batch after the warm-up."""
    with tempfile.TemporaryDirectory() as folder, _job(Path(folder), transport) as job:
        publish_batches(job, load, _WARM_UP + _MEASURED)
        config = job.config(shape_groups=shape_groups, max_files_per_trigger=4)
        with progress_of(spark) as batches:
            track_flushes(spark, replace(config, trigger_ms=None), Event())
    whole = [batch for batch in batches if batch["numInputRows"] > BATCH * 0.9]
    return [batch["durationMs"]["triggerExecution"] / 1000 for batch in whole[_WARM_UP:]]


@contextmanager
def _job(folder: Path, transport: str) -> Iterator[JobFolder]:
    broker = LocalBroker(folder / "broker", heap_mb=1024) if transport == "kafka" else nullcontext()
    with broker as local:
        yield JobFolder(folder / "job") if local is None else kafka_job(folder / "job", local.bootstrap_servers)


def kafka_job(root: Path, servers: str, events: int = BATCH) -> KafkaJob:
    """A job with so many events in a batch, which are published as capture does."""
    options = {"maxOffsetsPerTrigger": str(events)}
    return KafkaJob(root, servers, partitions=2, options=options, producer_options=PRODUCER_DEFAULTS)


def publish_batches(job: JobFolder, load: Load, batches: int, events: int = BATCH) -> None:
    """Publish all events of so many batches; for files, in four files a batch."""
    each = int(events / load.events_per_transaction)
    for batch in range(batches):
        transactions = list(load.transactions(batch * each, each))
        if isinstance(job, KafkaJob):
            publish(job, transactions)
        else:
            half = len(transactions) // 2
            for part in (transactions[:half], transactions[half:]):
                job.write([fragment for fragment, _ in part], [flush for _, flushes in part for _, flush in flushes])


def publish(job: KafkaJob, transactions: Iterable[tuple[str, list[tuple[str, str]]]]) -> None:
    """Publish transactions of a :class:`Load` and their flushes, until the broker has them."""
    for fragment, flushes in transactions:
        produce(job, "fragments", SOURCE, fragment)
        for shape, flush in flushes:
            produce(job, "flushes", f"{SOURCE} {shape}", flush)
    assert job._producer.flush(60) == 0


def produce(job: KafkaJob, stream: str, key: str, value: str) -> None:
    """Publish one event; waits while too many are on their way."""
    while len(job._producer) > 50_000:
        job._producer.poll(0.1)
    job._producer.produce(job.topic(stream), value, key)
