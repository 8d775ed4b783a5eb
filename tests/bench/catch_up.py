"""How long the job takes to catch up after it was down for ten minutes while 20,000 events/s were published.

What was published meanwhile, 12 million events of :class:`tests.bench.load.Load`, is there before the job starts, and
20,000 events/s go on (:func:`tests.bench.latency.publish`). The time is that from the start of the query until the
flushes of five seconds in a row have a median latency below one second.
"""

import tempfile
import time
from collections.abc import Iterator
from multiprocessing import Process, Queue
from pathlib import Path
from statistics import median

from flushtracker.kafka.publisher import _DEFAULTS
from flushtracker.local.broker import LocalBroker
from flushtracker.spark.session import start_session
from tests.bench.latency import LOAD, TRIGGER_MS, latencies_of, poll_acks, publish, tracking
from tests.bench.load import SOURCE
from tests.bench.measure import Table
from tests.bench.tracking import SHUFFLE_PARTITIONS, produce
from tests.support.kafka_job import KafkaJob

_RATE = 20_000
_DOWN_S = 600
_STEADY_S = 300.0
_WINDOW_S = 5.0
_LOW_S = 1.0
_PART = 10_000


def tables(*, quick: bool = False) -> Iterator[Table]:
    """One table; ``quick`` is not for benches with Spark."""
    assert not quick
    spark = start_session("bench", shuffle_partitions=SHUFFLE_PARTITIONS)
    with tempfile.TemporaryDirectory() as folder, LocalBroker(Path(folder) / "broker", heap_mb=1024) as broker:
        options = {"maxOffsetsPerTrigger": "500000"}
        root, servers = Path(folder) / "job", broker.bootstrap_servers
        job = KafkaJob(root, servers, partitions=2, options=options, producer_options={**_DEFAULTS, "linger.ms": 5})
        missed = int(_RATE * _DOWN_S / LOAD.events_per_transaction)
        # In a process of its own, as all that publishes: a producer does not survive a fork.
        backlog = Process(target=_publish_all, args=(job, missed))
        backlog.start()
        backlog.join()
        assert backlog.exitcode == 0
        published: Queue[tuple[float, int]] = Queue()
        publisher = Process(target=publish, args=(job, _RATE, _STEADY_S, published, missed))
        started = time.time()
        with tracking(spark, job, TRIGGER_MS):
            publisher.start()
            sent, acked = poll_acks(job, publisher, published)
            publisher.join()
    spark.stop()
    backlog_s = next(at for lsn, at in acked if lsn >= LOAD.lsn(missed - 1)) - started
    starts = [started + _WINDOW_S * number for number in range(int(_STEADY_S / _WINDOW_S))]
    windows = [(start, [item for item in sent if start <= item[0] < start + _WINDOW_S]) for start in starts]
    medians = [(start, median(latencies_of(part, acked, start))) for start, part in windows if part]
    low = next(start for start, latency in medians if latency < _LOW_S) + _WINDOW_S - started
    rows = [["what was missed is acknowledged", f"{backlog_s:.0f} s"], ["p50 below one second", f"{low:.0f} s"]]
    yield Table(f"After {_DOWN_S} s without the job, at {_RATE:,} events/s", ["", "after"], rows)


def _publish_all(job: KafkaJob, transactions: int) -> None:
    for first in range(0, transactions, _PART):
        for fragment, flushes in LOAD.transactions(first, min(_PART, transactions - first)):
            produce(job, "fragments", SOURCE, fragment)
            for shape, flush in flushes:
                produce(job, "flushes", f"{SOURCE} {shape}", flush)
    assert job._producer.flush(60) == 0
