"""What ``track`` and ``write`` cost on an object store, beside a disk: throughput, requests and money.

Streams are on Kafka, everything else on versitygw. Both run on this machine, as the proxy does that counts requests.

- Throughput: all events are there before the job starts. A batch's time is Spark's ``triggerExecution``, from planning
  it until it is committed; its CPU time is that of the job, its JVM and its workers, without the server's and the
  broker's.
- Requests: of batches of 1,000 events or rows, and of a job that has nothing to do. Their number does not depend on how
  many events a batch has, so a batch each second is the most that 1,000 changes/s can cost. Each batch deletes the logs
  of an old one, which otherwise begins with the 101st.
"""

import re
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from threading import Event, Thread
from typing import Any, Final, TypeAlias
from unittest.mock import patch

from pyspark.sql import SparkSession

from flushtracker.config.job_config import JobConfig
from flushtracker.config.write_config import WriteConfig
from flushtracker.local.broker import LocalBroker
from flushtracker.shape_log.write import query as write_query
from flushtracker.shape_log.write.driver import WriteDriver
from flushtracker.spark.session import start_session
from flushtracker.tracking.job import query as track_query
from flushtracker.tracking.job.driver import AckDriver
from tests.bench.cpu import cpu_seconds
from tests.bench.load import Load as Events
from tests.bench.measure import Table, say
from tests.bench.request_prices import PRICES, counted, month
from tests.bench.tracking import SHUFFLE_PARTITIONS, kafka_job, progress_of, publish_batches
from tests.bench.writing import Load as Rows
from tests.bench.writing import kafka_config
from tests.support.faulty_proxy import FaultyProxy, faulty_proxy
from tests.support.s3_server import running_s3
from tests.support.s3_session import config_on_store, store_session

_WARM_UP: Final = 3
_MEASURED: Final = 4
_COUNTED: Final = 10
_SMALL: Final = 1_000
_SETTLED_S: Final = 75
"""From a job's start until Spark has maintained its state once, each minute; only that first time it has work to do."""
_IDLE_S: Final = 60
_TRIGGERS_S: Final = (1, 10, 60)

_Config: TypeAlias = JobConfig | WriteConfig


@dataclass(frozen=True, slots=True)
class _Program:
    """A job: ``published`` gives its configuration, with so many batches of ``unit`` on brokers; ``run`` handles them.

    ``large`` is a batch of the throughput. ``module`` starts its query, and ``driver`` handles its batches.
    """

    name: str
    unit: str
    large: int
    published: Callable[[Path, str, int, int], _Config]
    run: Callable[[SparkSession, Any, Event], None]
    module: Any
    driver: type


def _published_events(root: Path, servers: str, events: int, batches: int) -> JobConfig:
    job = kafka_job(root, servers, events)
    publish_batches(job, Events(), batches, events)
    return job.config(shape_groups=16)


def _published_rows(root: Path, servers: str, rows: int, batches: int) -> WriteConfig:
    return kafka_config(root, servers, Rows(shapes=100, each=1, items=9, rows=rows), batches)


_PROGRAMS: Final = (
    _Program("track", "events", 300_000, _published_events, track_query.track_flushes, track_query, AckDriver),
    _Program("write", "rows", 200_000, _published_rows, write_query.write_shapes, write_query, WriteDriver),
)


def tables(*, quick: bool = False) -> Iterator[Table]:
    """Throughput and requests; ``quick`` is not for benches with Spark."""
    assert not quick
    spark = start_session("bench", SHUFFLE_PARTITIONS, paths=["s3://bucket"])
    with (
        tempfile.TemporaryDirectory() as name,
        LocalBroker(Path(name) / "broker", heap_mb=1024) as broker,
        running_s3() as s3,
    ):
        folder, servers = Path(name), broker.bootstrap_servers
        assert broker._process is not None
        yield _throughput(spark, folder, servers, s3.port, (s3.pid, broker._process.pid))
        with faulty_proxy(s3.port) as proxy, store_session(spark, proxy.port):
            yield _requests(spark, folder, servers, proxy)
    spark.stop()


def _throughput(spark: SparkSession, folder: Path, servers: str, port: int, others: Sequence[int]) -> Table:
    lines = []
    for program in _PROGRAMS:
        say(f"{program.name}: {_WARM_UP + _MEASURED} batches of {program.large:,} {program.unit} are published")
        config = program.published(folder / program.name, servers, program.large, _WARM_UP + _MEASURED)
        say(f"{program.name} on the disk")
        disk = _batches(spark, program, config, others)
        say(f"{program.name} on the store")
        with store_session(spark, port):
            store = _batches(spark, program, config_on_store(config, port, f"{program.name}_large"), others)
        rates = [f"{program.large / seconds:,.0f}" for seconds, _ in (disk, store)]
        cpu = [f"{seconds / program.large * 1e6:.1f} s" for _, seconds in (disk, store)]
        lines.append([f"{program.name}, {program.large:,} {program.unit}", *rates, f"{disk[0] / store[0]:.0%}", *cpu])
    header = ["a batch", "disk, each second", "store", "of it", "disk, CPU of a million", "store"]
    return Table("Throughput", header, lines)


def _batches(spark: SparkSession, program: _Program, config: _Config, others: Sequence[int]) -> tuple[float, float]:
    """Seconds and CPU seconds of a batch after the warm-up, medians; the CPU without that of ``others``."""
    cpu: list[float] = []
    process = program.driver.process  # type: ignore[attr-defined]

    def measured(*arguments: Any) -> None:
        process(*arguments)
        cpu.append(cpu_seconds() - sum(map(cpu_seconds, others)))

    with patch.object(program.driver, "process", measured), progress_of(spark, program.module) as batches:
        program.run(spark, config, Event())
    most = max(batch["numInputRows"] for batch in batches)
    found = [
        (batch["durationMs"]["triggerExecution"] / 1000, after - before)
        for batch, (before, after) in zip(batches[1:], pairwise(cpu), strict=True)
        # The last one may have only what Spark's division of the others has left.
        if batch["numInputRows"] > 0.9 * most
    ][_WARM_UP - 1 :]
    say(f"{program.name}: {', '.join(f'{seconds:.2f}' for seconds, _ in found)} s a batch")
    seconds, cpu_s = zip(*found, strict=True)
    return median(seconds), median(cpu_s)


def _requests(spark: SparkSession, folder: Path, servers: str, proxy: FaultyProxy) -> Table:
    lines = []
    spark.conf.set("spark.sql.streaming.minBatchesToRetain", "2")
    for program in _PROGRAMS:
        name, last = f"{program.name}_small", _WARM_UP + _COUNTED
        say(f"{program.name}: requests of batches of {_SMALL:,} {program.unit}")
        config = program.published(folder / name, servers, _SMALL, last + 1)
        config = config_on_store(config, proxy.port, name)
        proxy.requests()
        program.run(spark, config, Event())
        batch = counted(_between(proxy.requests(), _WARM_UP, last), _COUNTED)
        prices = [month(batch, trigger_s) for trigger_s in _TRIGGERS_S]
        lines.append([f"{program.name}, a batch", *(f"{batch[kind]:.1f}" for kind in PRICES), *prices])
        say(f"{program.name}: requests of {_IDLE_S} s without events, after {_SETTLED_S} s")
        hour = counted(_idle(spark, program, config, proxy), _IDLE_S / 3600)
        idle = [month(hour, 3600), *[""] * (len(_TRIGGERS_S) - 1)]
        lines.append([f"{program.name}, an hour without events", *(f"{hour[kind]:,.0f}" for kind in PRICES), *idle])
    header = ["", *PRICES, *(f"a month, every {trigger_s} s" for trigger_s in _TRIGGERS_S)]
    return Table("Requests, and what they cost", header, lines)


def _idle(spark: SparkSession, program: _Program, config: _Config, proxy: FaultyProxy) -> Sequence[str]:
    """The requests of a job that has nothing to do, from after its start."""
    stop = Event()
    thread = Thread(target=program.run, args=(spark, replace(config, trigger_ms=1000), stop))
    thread.start()
    try:
        while not spark.streams.active:
            assert thread.is_alive()
            time.sleep(0.5)
        time.sleep(_SETTLED_S)
        proxy.requests()
        time.sleep(_IDLE_S)
        assert thread.is_alive()
        return proxy.requests()
    finally:
        stop.set()
        thread.join()


def _between(requests: Sequence[str], first: int, last: int) -> Sequence[str]:
    """From when the offsets of one batch are written until those of another are."""
    places = []
    for batch in (first, last):
        written = re.compile(rf"PUT .*checkpoint/offsets/\.?{batch}\b")
        places.append(next(place for place, request in enumerate(requests) if written.match(request)))
    return requests[places[0] : places[1]]
