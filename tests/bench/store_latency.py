"""How long an ack takes on an object store, beside a disk.

From when 1,000 events are on Kafka until the ack that they allow is durable. They are published once those before are
acknowledged, while Spark still has to commit that batch, so the time is that of a whole batch; at another moment, an
event may wait for up to one more. Tables and checkpoint are on a disk, on versitygw, and on versitygw behind a proxy
that takes 20 ms longer for each request; there also with the files of the checkpoint renamed, as Spark does by itself.
All run on this machine.
"""

import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from queue import Queue
from statistics import quantiles
from threading import Event
from typing import Final
from unittest.mock import patch

from pyspark.sql import SparkSession

from flushtracker.config.job_config import JobConfig
from flushtracker.delta.acks.table import AckRow, AckTable
from flushtracker.jobs.track.query import track_flushes
from flushtracker.local.broker import LocalBroker
from flushtracker.spark.file_manager import FILE_MANAGER, default_file_manager
from flushtracker.spark.session import start_session
from tests.bench.load import Load
from tests.bench.measure import Table, say
from tests.bench.tracking import SHUFFLE_PARTITIONS, kafka_job, publish
from tests.support.faulty_proxy import faulty_proxy
from tests.support.kafka_job import KafkaJob
from tests.support.s3_server import running_s3
from tests.support.s3_session import config_on_store, store_session

_WARM_UP: Final = 6
_SAMPLES: Final = 100
_AT_MOST_S: Final = 150
"""For each place, without the warm-up: a busy machine has fewer samples."""
_EVENTS: Final = 1_000
_DELAY_S: Final = 0.02
_TRIGGER_MS: Final = 50
_SAID_EVERY: Final = 10
_RENAMED: Final = "renamed"


def tables(*, quick: bool = False) -> Iterator[Table]:
    """One table; ``quick`` is not for benches with Spark."""
    assert not quick
    spark = start_session("bench", SHUFFLE_PARTITIONS, paths=["s3://bucket"])
    with tempfile.TemporaryDirectory() as name, LocalBroker(Path(name) / "broker") as broker, running_s3() as s3:
        lines, slow = list[list[str]](), f"store, {1000 * _DELAY_S:.0f} ms"
        places = (("disk", None), ("store", 0.0), (slow, _DELAY_S), (f"{slow}, {_RENAMED}", _DELAY_S))
        for place, delay_s in places:
            if place.endswith(_RENAMED):
                spark.conf.set(FILE_MANAGER, default_file_manager(spark.version))
            job = kafka_job(Path(name) / f"job{len(lines)}", broker.bootstrap_servers)
            config = replace(job.config(shape_groups=16), trigger_ms=_TRIGGER_MS)
            if delay_s is None:
                found = _until_acked(spark, job, config, place)
            else:
                between = faulty_proxy(s3.port, delay_s) if delay_s else nullcontext(s3)
                with between as server, store_session(spark, server.port):
                    at = config_on_store(config, server.port, job.root.name)
                    found = _until_acked(spark, job, at, place)
            lines.append(_line(place, found))
    spark.stop()
    yield Table("Events published to ack durable", ["", "batches", "p50", "p99", "max"], lines)


def _line(place: str, seconds: Sequence[float]) -> list[str]:
    cuts = quantiles(seconds, n=100, method="inclusive")
    return [place, f"{len(seconds)}", *(f"{1000 * each:,.0f} ms" for each in (cuts[49], cuts[98], max(seconds)))]


def _until_acked(spark: SparkSession, job: KafkaJob, config: JobConfig, place: str) -> list[float]:
    """The seconds from when a batch is published until its ack is durable, after the warm-up."""
    load, stop, found, transactions = Load(), Event(), list[float](), int(_EVENTS / Load().events_per_transaction)
    # When the ack was there, and which; None once the job has ended.
    acked, append = Queue[tuple[float, int] | None](), AckTable.append

    def appended(table: AckTable, *rows: AckRow) -> int:
        count = append(table, *rows)
        acked.put((time.monotonic(), max(row.ack_lsn for row in rows)))
        return count

    with patch.object(AckTable, "append", appended), ThreadPoolExecutor(1) as thread:
        running = thread.submit(track_flushes, spark, config, stop)
        running.add_done_callback(lambda _: acked.put(None))
        try:
            for batch in range(_WARM_UP + _SAMPLES):
                if sum(found[_WARM_UP:]) > _AT_MOST_S:
                    break
                publish(job, load.transactions(batch * transactions, transactions))
                allowed, started = load.lsn((batch + 1) * transactions - 1), time.monotonic()
                while (ack := acked.get()) is not None and ack[1] < allowed:
                    pass
                if ack is None:
                    break
                found.append(ack[0] - started)
                if batch % _SAID_EVERY == 0:
                    say(f"{place}: {batch} of {_WARM_UP + _SAMPLES} batches, the last took {found[-1]:.2f} s")
        finally:
            stop.set()
        running.result()
    return found[_WARM_UP:]
