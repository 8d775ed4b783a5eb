"""What ``track`` and ``write`` cost on an object store, beside a disk: throughput, latency of acks, requests and money.

Everything but the streams is on versitygw, which runs on the same machine, as the proxy does that counts requests and
delays them. Streams are files here, and Kafka in production: what Spark notes of them in ``checkpoint/sources`` is not
counted.

- Throughput: all events are there before the job starts. A batch's time is Spark's ``triggerExecution``, from planning
  it until it is committed; its CPU time is that of the job, its JVM and its workers, without the server's.
- Latency: from when 1,000 events are published until the ack that they allow is durable. They are published once the
  ones before are acknowledged, so Spark still has to commit that batch.
- Requests: of batches of 1,000 events, and of a job that has nothing to do.
"""

import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from queue import Queue
from statistics import median, quantiles
from threading import Event, Thread
from typing import Any, Final
from unittest.mock import patch

from pyspark.sql import SparkSession

from flushtracker.config.job_config import load_config
from flushtracker.config.write_config import load_write_config
from flushtracker.delta.acks.table import AckRow, AckTable
from flushtracker.jobs.track import query as track_query
from flushtracker.jobs.track.driver import AckDriver
from flushtracker.jobs.write import query as write_query
from flushtracker.jobs.write.driver import WriteDriver
from flushtracker.spark.session import start_session
from tests.bench.cpu import cpu_seconds
from tests.bench.load import Load as Events
from tests.bench.measure import Table
from tests.bench.tracking import SHUFFLE_PARTITIONS, progress_of
from tests.bench.writing import Load as Rows
from tests.support.faulty_proxy import FaultyProxy, faulty_proxy
from tests.support.job_folder import JobFolder
from tests.support.s3_server import S3Server, running_s3
from tests.support.s3_session import on_store, store_session
from tests.support.write_folder import WriteFolder

_WARM_UP: Final = 3
_LARGE: Final = 100_000
_SMALL: Final = 1_000
_SAMPLES: Final = 100
_DELAY_S: Final = 0.02
_IDLE_S: Final = 30
_PRICES: Final = {"PUT": 5.0, "LIST": 5.0, "GET": 0.4, "DELETE": 0.0}
"""US dollars for a million requests: S3 Standard in us-east-1. Of storage and traffic there is little."""
_TRIGGERS_S: Final = (1, 10, 60)


@dataclass(frozen=True, slots=True)
class _Program:
    """A job: how so many batches of so many events are written, which configuration it has, and how it is run."""

    name: str
    write: Callable[[Path, int, int], Path]
    run: Callable[[SparkSession, Path, Event], None]
    module: Any
    driver: type


def _write_track(root: Path, batches: int, events: int) -> Path:
    job, load = JobFolder(root), Events()
    for batch in range(batches):
        _publish(job, load, batch, events)
    return job.config_file(shape_groups=16)


def _publish(job: JobFolder, load: Events, batch: int, events: int) -> int:
    """Write a batch for the tracking job; returns the ack that it allows."""
    count = int(events / load.events_per_transaction)
    transactions = list(load.transactions(count * batch, count))
    job.write([fragment for fragment, _ in transactions], [text for _, all_ in transactions for _, text in all_])
    return load.lsn(count * (batch + 1) - 1)


def _write_write(root: Path, batches: int, events: int) -> Path:
    job, load = WriteFolder(root), Rows(shapes=100, each=1, items=1, rows=2 * events)
    for batch in range(batches):
        job.write(load.batch(batch))
    return job.config_file()


_PROGRAMS: Final = (
    _Program(
        "track",
        _write_track,
        lambda spark, file, stop: track_query.track_flushes(spark, load_config(file), stop),
        track_query,
        AckDriver,
    ),
    _Program(
        "write",
        _write_write,
        lambda spark, file, stop: write_query.write_shapes(spark, load_write_config(file), stop),
        write_query,
        WriteDriver,
    ),
)


def tables(*, quick: bool = False) -> Iterator[Table]:
    """Throughput and requests; ``quick`` is not for benches with Spark."""
    assert not quick
    spark = start_session("bench", SHUFFLE_PARTITIONS, paths=["s3://bucket"])
    with tempfile.TemporaryDirectory() as name, running_s3() as s3:
        folder = Path(name)
        yield _throughput(spark, folder, s3)
        with faulty_proxy(s3.port) as proxy, store_session(spark, proxy.port):
            yield _requests(spark, folder, proxy)
    spark.stop()


def latencies(*, quick: bool = False) -> Iterator[Table]:
    """Of acks; ``quick`` is not for benches with Spark."""
    assert not quick
    spark = start_session("bench", SHUFFLE_PARTITIONS, paths=["s3://bucket"])
    with tempfile.TemporaryDirectory() as name, running_s3() as s3:
        folder = Path(name)
        lines = [_line("disk", _until_acked(spark, folder / "disk", lambda file: file))]
        for label, delay_s in (("store", 0.0), (f"store, {1000 * _DELAY_S:.0f} ms for each request", _DELAY_S)):
            with faulty_proxy(s3.port, delay_s) as proxy, store_session(spark, proxy.port):
                place = f"latency{len(lines)}"
                found = _until_acked(spark, folder / place, lambda file: on_store(file, proxy.port, place))  # noqa: B023
                lines.append(_line(label, found))
    spark.stop()
    yield Table(f"Events published to ack durable, {_SAMPLES} batches each, ms", ["", "p50", "p99"], lines)


def _line(label: str, seconds: Sequence[float]) -> list[str]:
    cuts = quantiles(seconds, n=100)
    return [label, f"{1000 * cuts[49]:,.0f}", f"{1000 * cuts[98]:,.0f}"]


def _throughput(spark: SparkSession, folder: Path, s3: S3Server) -> Table:
    lines = []
    for program in _PROGRAMS:
        disk = _batches(spark, program, program.write(folder / f"{program.name}_disk", 2 * _WARM_UP, _LARGE), s3)
        with store_session(spark, s3.port):
            file = program.write(folder / f"{program.name}_store", 2 * _WARM_UP, _LARGE)
            store = _batches(spark, program, on_store(file, s3.port, f"{program.name}_large"), s3)
        times = [f"{_LARGE / seconds:,.0f}" for seconds, _ in (disk, store)]
        cpus = [f"{cpu / _LARGE * 1e6:.1f} s" for _, cpu in (disk, store)]
        lines.append([program.name, *times, f"{disk[0] / store[0]:.0%}", *cpus])
    header = ["", "disk, events/s", "store, events/s", "of it", "disk, CPU of a million", "store, CPU of a million"]
    return Table(f"Throughput, batches of {_LARGE:,} events", header, lines)


def _batches(spark: SparkSession, program: _Program, file: Path, s3: S3Server) -> tuple[float, float]:
    """Seconds and CPU seconds of a batch after the warm-up, medians."""
    cpu: list[float] = []
    process = program.driver.process  # type: ignore[attr-defined]

    def measured(*arguments: Any) -> None:
        process(*arguments)
        cpu.append(cpu_seconds() - cpu_seconds(s3.pid))

    with patch.object(program.driver, "process", measured), progress_of(spark, program.module) as batches:
        program.run(spark, file, Event())
    seconds = [batch["durationMs"]["triggerExecution"] / 1000 for batch in batches]
    return median(seconds[_WARM_UP:]), median([after - before for before, after in pairwise(cpu)][_WARM_UP - 1 :])


def _until_acked(spark: SparkSession, root: Path, place: Callable[[Path], Path]) -> list[float]:
    """The seconds from publishing a batch until its ack is durable, after the warm-up."""
    job, load, stop, found = JobFolder(root), Events(), Event(), list[float]()
    config = load_config(place(job.config_file(shape_groups=16, trigger_ms=50)))
    acked, append = Queue[tuple[float, int]](), AckTable.append

    def appended(table: AckTable, *rows: AckRow) -> int:
        count = append(table, *rows)
        acked.put((time.monotonic(), max(row.ack_lsn for row in rows)))
        return count

    thread = Thread(target=track_query.track_flushes, args=(spark, config, stop))
    with patch.object(AckTable, "append", appended):
        thread.start()
        try:
            for batch in range(2 * _WARM_UP + _SAMPLES):
                allowed, started = _publish(job, load, batch, _SMALL), time.monotonic()
                while (ack := acked.get(timeout=600))[1] < allowed:
                    pass
                found.append(ack[0] - started)
        finally:
            stop.set()
            thread.join()
    return found[2 * _WARM_UP :]


def _requests(spark: SparkSession, folder: Path, proxy: FaultyProxy) -> Table:
    lines, measured = [], 10
    for program in _PROGRAMS:
        file = program.write(folder / f"{program.name}_small", _WARM_UP + measured + 1, _SMALL)
        file = on_store(file, proxy.port, f"{program.name}_small")
        proxy.requests()
        program.run(spark, file, Event())
        counted = _kinds(_between(proxy.requests(), _WARM_UP, _WARM_UP + measured))
        each = {kind: counted[kind] / measured for kind in _PRICES}
        month = [f"${_dollars(each) * 3600 * 730 / trigger_s:,.2f}" for trigger_s in _TRIGGERS_S]
        lines.append([f"{program.name}, a batch", *(f"{each[kind]:.1f}" for kind in _PRICES), *month])
        counted = _idle(spark, program, file, proxy)
        each = {kind: counted[kind] * 3600 / _IDLE_S for kind in _PRICES}
        month = [f"${_dollars(each) * 730:,.2f}", "", ""]
        lines.append([f"{program.name}, an hour without events", *(f"{each[kind]:,.0f}" for kind in _PRICES), *month])
    header = ["", *_PRICES, *(f"a month, every {trigger_s} s" for trigger_s in _TRIGGERS_S)]
    return Table("Requests, and what they cost", header, lines)


def _dollars(requests: dict[str, float]) -> float:
    return sum(count * _PRICES[kind] for kind, count in requests.items()) / 1e6


def _idle(spark: SparkSession, program: _Program, file: Path, proxy: FaultyProxy) -> Counter[str]:
    """The requests of a job that has nothing to do, from after its start."""
    file.write_text(file.read_text().replace("trigger: available_now", "trigger: 1 s"))
    stop = Event()
    thread = Thread(target=program.run, args=(spark, file, stop))
    thread.start()
    try:
        while not spark.streams.active:
            time.sleep(0.5)
        # Until it has claimed its tables and read its state.
        time.sleep(10)
        proxy.requests()
        time.sleep(_IDLE_S)
        return _kinds(proxy.requests())
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


def _kinds(requests: Sequence[str]) -> Counter[str]:
    """How many of each price, without what Spark notes of files that it has read."""
    return Counter(_kind(request) for request in requests if "checkpoint/sources" not in request)


def _kind(request: str) -> str:
    method = request.partition(" ")[0]
    if "list-type" in request:
        return "LIST"
    if "?delete" in request:
        return "DELETE"
    return {"POST": "PUT", "HEAD": "GET"}.get(method, method)
