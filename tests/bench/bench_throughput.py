"""How many events per second the whole tracking job takes, from Kafka or files to the ack: wall-clock time, warm.

``python -m tests.bench.bench_throughput [--transport kafka|files] [--shapes N] [--flushes N] [--batches N]``. A batch
has 300,000 events of :class:`tests.bench.load.Load`: with 3 flushes to a transaction (the default) a quarter are
fragments with three shapes each; with 9 of 9 shapes 10 %, with 1 of 9 half. The events are all published before the job
starts, on two partitions for each topic, and read in batches of that size. The first two batches warm the JVM up; the
time of a batch is Spark's ``triggerExecution``: from planning it until it is committed.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from statistics import median
from threading import Event
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

from flushtracker.kafka.publisher import _DEFAULTS
from flushtracker.local.broker import LocalBroker
from flushtracker.spark.session import start_session
from flushtracker.spark.track_flushes_query import track_flushes
from tests.bench.load import SOURCE, Load
from tests.support.job_folder import JobFolder
from tests.support.kafka_job import KafkaJob

BATCH = 300_000
_WARM_UP = 2


class Progress(StreamingQueryListener):
    """What Spark says of each batch that had events."""

    def __init__(self) -> None:
        self.batches: list[dict[str, Any]] = []

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802  pyspark's name
        """Not needed."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802  pyspark's name
        progress = json.loads(event.progress.json)
        if progress["numInputRows"]:
            self.batches.append(progress)

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802  pyspark's name
        """Not needed."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.bench_throughput", description=__doc__)
    parser.add_argument("--transport", choices=["kafka", "files"], default="kafka")
    parser.add_argument("--shapes", type=int, default=100_000)
    parser.add_argument("--each", type=int, default=3)
    parser.add_argument("--flushes", type=int, default=3)
    parser.add_argument("--batches", type=int, default=7)
    parser.add_argument("--shape-groups", type=int, default=16)
    arguments = parser.parse_args()
    load = Load(arguments.shapes, arguments.each, arguments.flushes)
    spark = start_session("bench", shuffle_partitions=4)
    seconds = measure(spark, load, arguments.transport, arguments.batches, arguments.shape_groups)
    print(f"{arguments}\nmedian {BATCH / median(seconds):,.0f} events/s, batches of {BATCH:,}: {seconds}")  # noqa: T201
    spark.stop()
    return 0


def measure(spark: SparkSession, load: Load, transport: str, batches: int, shape_groups: int = 16) -> list[float]:
    """The seconds of each batch after the warm-up."""
    with tempfile.TemporaryDirectory() as folder, _job(Path(folder), transport) as job:
        _publish(job, load, batches)
        progress = Progress()
        spark.streams.addListener(progress)
        config = job.config(shape_groups=shape_groups, max_files_per_trigger=4)
        track_flushes(spark, replace(config, trigger_ms=None), Event())
        spark.streams.removeListener(progress)
    for batch in progress.batches:
        sys.stderr.write(f"{batch['numInputRows']:,} events {batch['durationMs']}\n")
    return [batch["durationMs"]["triggerExecution"] / 1000 for batch in progress.batches[_WARM_UP:]]


@contextmanager
def _job(folder: Path, transport: str) -> Iterator[JobFolder]:
    broker = LocalBroker(folder / "broker", heap_mb=1024) if transport == "kafka" else nullcontext()
    with broker as local:
        if local is None:
            yield JobFolder(folder / "job")
        else:
            options = {"maxOffsetsPerTrigger": str(BATCH)}
            # Published as capture does.
            root, servers = folder / "job", local.bootstrap_servers
            yield KafkaJob(root, servers, partitions=2, options=options, producer_options=_DEFAULTS)


def _publish(job: JobFolder, load: Load, batches: int) -> None:
    each = BATCH // load.events_per_transaction
    for batch in range(batches):
        transactions = list(load.transactions(batch * each, each))
        if isinstance(job, KafkaJob):
            for fragment, flushes in transactions:
                _produce(job, "fragments", SOURCE, fragment)
                for shape, flush in flushes:
                    _produce(job, "flushes", f"{SOURCE} {shape}", flush)
            assert job._producer.flush(60) == 0
        else:
            half = len(transactions) // 2
            for part in (transactions[:half], transactions[half:]):
                job.write([fragment for fragment, _ in part], [flush for _, flushes in part for _, flush in flushes])


def _produce(job: KafkaJob, stream: str, key: str, value: str) -> None:
    while len(job._producer) > 50_000:
        job._producer.poll(0.1)
    job._producer.produce(job.topic(stream), value, key)


if __name__ == "__main__":
    sys.exit(main())
