"""How many rows per second the writers' job appends, from Kafka or files to the notifications, and its CPU time.

All events are published before the job starts, on two partitions of a topic or in two files a batch, and read in
batches of one size. The first batches warm the JVM up; the time of a batch is Spark's ``triggerExecution``: from
planning it until it is committed. The CPU time is that of the job, its JVM and its workers, without the broker's.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from statistics import median
from threading import Event
from typing import Any
from unittest.mock import patch

from pyspark.sql import SparkSession

from flushtracker.config.secret_options import SecretOptions
from flushtracker.config.transport import FilesTransport, KafkaTransport
from flushtracker.config.write_config import ROLES, FlushesConfig, WriteConfig
from flushtracker.event_files import StreamWriter
from flushtracker.events.records import record_of
from flushtracker.events.stream_events import ShapeChangesEvent
from flushtracker.kafka.publisher import KafkaPublisher
from flushtracker.local.broker import LocalBroker
from flushtracker.shape_log.write import query
from flushtracker.shape_log.write.driver import WriteDriver
from flushtracker.spark.session import start_session
from flushtracker.wal.changes import Commit, LogItem
from flushtracker.wal.log_offset import LogOffset
from tests.bench.cpu import cpu_seconds
from tests.bench.measure import Table
from tests.bench.tracking import SHUFFLE_PARTITIONS, progress_of
from tests.support.kafka_streams import created_streams
from tests.support.write_folder import WriteFolder

_SOURCE = "7301234567890123456/1/shapes"
_ROW = {"bid": "17", "abalance": "-3921", "filler": " " * 84}
_WARM_UP = 3
_MEASURED = 4


@dataclass(frozen=True, slots=True)
class Load:
    """Transaction n has an event for each of ``each`` shapes, with so many items; a batch has about ``rows`` rows."""

    shapes: int
    each: int
    items: int
    rows: int

    @property
    def events(self) -> int:
        """The events of a batch."""
        return self.rows // (self.items + 1)

    def batch(self, number: int) -> Iterator[ShapeChangesEvent]:
        """The events of a batch; the number of the first is 0."""
        for index in range(number * self.events, (number + 1) * self.events):
            lsn, before = self._lsn(index), index - self.shapes
            items = tuple(
                LogItem(LogOffset(lsn, 2 * n), "update", f'"public"."t"/"{lsn + n}"', {"aid": f"{lsn + n}", **_ROW})
                for n in range(self.items)
            )
            yield ShapeChangesEvent(
                source=_SOURCE,
                shape_id=f"shape-{index % self.shapes}",
                xid=index,
                follows=LogOffset(self._lsn(before), 2 * self.items - 2) if before >= 0 else LogOffset(900, 0),
                last_log_offset=items[-1].offset,
                start=before < 0,
                has_begin=True,
                commit=Commit("2026-11-21T01:02:03.456789Z", lsn + 400),
                items=items,
            )

    def _lsn(self, index: int) -> int:
        return 1_000_000 + 500 * (index // self.each)


WORKLOADS: list[tuple[str, Load, str]] = [
    ("Kafka, 99 items to an event", Load(shapes=100, each=1, items=99, rows=200_000), "kafka"),
    ("files, 99 items to an event", Load(shapes=100, each=1, items=99, rows=200_000), "files"),
    ("Kafka, 1 item to an event", Load(shapes=4, each=4, items=1, rows=40_000), "kafka"),
    ("files, 1 item to an event", Load(shapes=4, each=4, items=1, rows=40_000), "files"),
]
"""What it is, the events, and how they come."""


def tables(*, quick: bool = False) -> Iterator[Table]:
    """One table; ``quick`` is not for benches with Spark."""
    assert not quick
    spark = start_session("bench", shuffle_partitions=SHUFFLE_PARTITIONS)
    rows = []
    for label, load, transport in WORKLOADS:
        seconds, cpu = (median(found) for found in measure(spark, load, transport))
        cells = [f"{load.rows:,}", f"{seconds:.2f} s", f"{load.rows / seconds:,.0f}", f"{cpu / load.rows * 1e6:.1f} s"]
        rows.append([label, *cells])
    spark.stop()
    yield Table("The writers' job", ["", "rows a batch", "a batch", "rows/s", "CPU of a million rows"], rows)


def measure(spark: SparkSession, load: Load, transport: str) -> tuple[list[float], list[float]]:
    """The seconds of each batch after the warm-up, and the job's CPU seconds."""
    cpu: list[float] = []
    process = WriteDriver.process
    with tempfile.TemporaryDirectory() as folder, _config(Path(folder), load, transport) as (config, broker):

        def measured(*arguments: Any) -> None:
            process(*arguments)
            cpu.append(cpu_seconds() - (cpu_seconds(broker) if broker else 0))

        with patch.object(WriteDriver, "process", measured), progress_of(spark, query) as batches:
            query.write_shapes(spark, config, Event())
    whole = [batch["durationMs"]["triggerExecution"] / 1000 for batch in batches]
    return whole[_WARM_UP:], [after - before for before, after in pairwise(cpu)][_WARM_UP - 1 :]


@contextmanager
def _config(folder: Path, load: Load, transport: str) -> Iterator[tuple[WriteConfig, int]]:
    """A job's configuration with all batches published, and the process of its broker, 0 if there is none."""
    batches, root = _WARM_UP + _MEASURED, folder / "job"
    if transport == "files":
        job = WriteFolder(root)
        writer = StreamWriter(job.root / "shape_changes")
        for number in range(batches):
            events = list(load.batch(number))
            for half in (0, 1):
                writer.publish(event.to_json() for event in events if event.xid % 2 == half)
        yield job.config(transport=FilesTransport({role: str(job.root / role) for role in ROLES}, 2)), 0
        return
    with LocalBroker(folder / "broker", heap_mb=512) as broker:
        process = broker._process
        assert process is not None
        yield kafka_config(root, broker.bootstrap_servers, load, batches), process.pid


def kafka_config(root: Path, servers: str, load: Load, batches: int) -> WriteConfig:
    """For a job with its folder at ``root`` and topics of its own, in which all batches are published."""
    streams = created_streams(servers, lambda role: f"{root.name}.{role}", partitions=2)
    publisher = KafkaPublisher(streams)
    for event in chain.from_iterable(load.batch(number) for number in range(batches)):
        publisher.publish(streams.topics.shape_changes, *record_of(event)[1:])
    publisher.flush(60)
    publisher.close()
    topics = streams.topics.by_role()
    options = SecretOptions({"maxOffsetsPerTrigger": str(load.events)})
    source = KafkaTransport(servers, {role: topics[role] for role in ROLES}, options)
    return WriteFolder(root).config(transport=source, flushes=FlushesConfig(topics["flushes"]))
