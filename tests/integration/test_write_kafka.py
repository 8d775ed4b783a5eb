"""The writers' job on a real broker: expired records, a broker that is away, and what it says on its start."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from pyspark.sql import SparkSession

from flushtracker.config.secret_options import SecretOptions
from flushtracker.config.transport import KafkaTransport
from flushtracker.config.write_config import ROLES, FlushesConfig, WriteConfig
from flushtracker.errors import BrokerError, CutMissingError, StateError
from flushtracker.events.records import record_of
from flushtracker.events.registry_events import ShapeEntry
from flushtracker.events.stream_events import FlushNotification, ShapeChangesEvent
from flushtracker.kafka.kafka_config import KafkaConfig
from flushtracker.kafka.publisher import KafkaPublisher
from flushtracker.shape_log.table.reader import ShapesRead, read_shapes
from flushtracker.shape_log.write import consumed_changes, cuts
from flushtracker.shape_log.write.query import _committed_writers, write_shapes
from flushtracker.shape_log.writer_group import Durable
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.spark.hadoop_files import checkpoint_path
from flushtracker.tracking.acks.ack_table import AckRow, AckTable
from flushtracker.wal.log_offset import LogOffset
from tests.support.brokers import Broker
from tests.support.deleted_records import delete_compacted, delete_records
from tests.support.kafka_job import IMPATIENT
from tests.support.kafka_streams import created_streams, records
from tests.support.shape_transactions import SOURCE, Transactions
from tests.support.waiting import wait_until
from tests.support.write_folder import WriteFolder


class KafkaWriter:
    """A writers' job with topics of its own, each with one partition."""

    def __init__(self, streams: KafkaConfig, folder: Path) -> None:
        self.streams = streams
        self.folder = WriteFolder(folder)

    def config(self, servers: str | None = None, options: Mapping[str, str] | None = None) -> WriteConfig:
        topics = self.streams.topics.by_role()
        transport = KafkaTransport(
            servers or self.streams.bootstrap_servers,
            {role: topics[role] for role in ROLES},
            SecretOptions({"kafka.metadata.max.age.ms": "1000", **(options or {})}),
            retry_timeout_ms=1000,
        )
        return self.folder.config(transport=transport, flushes=FlushesConfig(topics["flushes"]))

    def write(self, events: Iterable[ShapeChangesEvent | ShapeEntry]) -> None:
        publisher, topics = KafkaPublisher(self.streams), self.streams.topics.by_role()
        for event in events:
            stream, key, value = record_of(event)
            publisher.publish(topics[stream], key, value)
        publisher.flush(60)
        publisher.close()

    def expire(self) -> None:
        """Delete all changes that are in the topic now, as retention does."""
        delete_records(self.streams.bootstrap_servers, self.streams.topics.shape_changes)

    def lose_entries(self) -> None:
        """Delete all entries that are in the topic now."""
        delete_compacted(self.streams.bootstrap_servers, self.streams.topics.shapes)

    def run(self, spark: SparkSession, **changes: Any) -> None:
        """Write what is available, with these changes of the configuration."""
        self.folder.run(spark, **{"transport": self.config().transport, "flushes": self.config().flushes, **changes})

    @contextmanager
    def running(self, spark: SparkSession, **changes: Any) -> Iterator[None]:
        """Write until the block ends, with these changes of the configuration."""
        config, stop = replace(self.config(), trigger_ms=200, **changes), Event()
        with ThreadPoolExecutor(1) as pool:
            ended = pool.submit(write_shapes, spark, config, stop)
            try:
                yield
            finally:
                stop.set()
                ended.result(60)

    @contextmanager
    def noting_cuts(self, spark: SparkSession, checkpoint: str = "checkpoint") -> Iterator[None]:
        """Write until the block ends, with cuts by the acks of :meth:`ack`."""
        state = replace(self.config().state, checkpoint=str(self.folder.root / checkpoint))
        with self.running(spark, acks=self._acks, state=state):
            yield

    @property
    def _acks(self) -> str:
        return str(self.folder.root / "acks")

    def ack(self, lsn: int) -> None:
        acks = AckTable(self._acks)
        acks.fence_others()
        acks.append(AckRow(SOURCE, 1, lsn, lsn, 0, None, None, datetime.now(timezone.utc)))

    def read(self, *shape_ids: str) -> ShapesRead | None:
        """The shapes as of the last cut; ``None`` as long as there is none."""
        try:
            sink = self.config().sink
            return read_shapes(sink.log, shape_ids, shapes=sink.shapes)
        except CutMissingError:
            return None

    def notified(self) -> list[tuple[str, LogOffset]]:
        found = records(self.streams.bootstrap_servers, self.streams.topics.flushes)
        events = [FlushNotification.from_json(value) for pairs in found.values() for _, value in pairs]
        return [(event.shape_id, event.offset) for event in events]


@pytest.fixture
def job(
    broker: Broker, topic_name: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> KafkaWriter:
    """A job that has written nothing, and looks often whether it can note a cut."""
    monkeypatch.setattr(cuts, "_PERIOD_S", 0.2)
    monkeypatch.setattr(cuts, "_LONGEST_PERIOD_S", 1.0)
    return KafkaWriter(created_streams(broker.bootstrap_servers, topic_name), tmp_path / "job")


def test_expired_records_are_a_gap_for_their_shape_and_the_others_go_on(
    spark: SparkSession, job: KafkaWriter, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing past the gap is said; capture's restart sends it again, and then it is written."""
    lost, other = Transactions("lost"), Transactions("other")
    lost.grow(3)
    other.grow(1)
    first, second, third = ([*lost.events([lsn])] for lsn in list(lost.items))
    job.write(first)
    job.run(spark)
    job.write(second)
    job.expire()
    job.write([*third, *other.events(list(other.items))])
    job.run(spark)
    assert job.folder.log_rows("other") == other.expected_rows()
    before = [row for row in lost.expected_rows() if row[0] == min(lost.items)]
    assert job.folder.log_rows("lost") == before
    assert max(offset for shape_id, offset in job.notified() if shape_id == "lost") == before[-1][:2]
    assert "gap in shape_changes source=1/1/shapes shape=lost" in caplog.text
    lost.restart()
    job.write(lost.events(list(lost.items)))
    job.run(spark)
    assert job.folder.log_rows("lost") == lost.expected_rows()
    assert job.notified()[-1] == ("lost", LogOffset.last_of(max(lost.items)))


def test_cut_never_passes_a_removal_that_was_deleted_before_it_was_read(
    spark: SparkSession, job: KafkaWriter, caplog: pytest.LogCaptureFixture
) -> None:
    """The table still has the shape, and Spark's offsets pass what is gone. A new checkpoint knows no more.

    Changes are written, and readers keep the cut that they have.
    """
    going_on, removed = Transactions("goes on"), Transactions("removed")
    entries = {
        shape_id: ShapeEntry(SOURCE, ShapeDefinition(shape_id, ("public", "t"), snapshot=False), 1, LogOffset(900, 0))
        for shape_id in (going_on.shape_id, removed.shape_id)
    }
    for each in (going_on, removed):
        each.grow(2)
        job.write([entries[each.shape_id], *each.events(list(each.items))])
    first = max([*going_on.items, *removed.items])
    job.run(spark)
    job.ack(first)
    with job.noting_cuts(spark):
        read = wait_until(lambda: job.read(*entries), "a cut", 60)
    assert read.lsn == first

    job.write([replace(entries[removed.shape_id], removed_at=LogOffset(first + 1, 0))])
    job.lose_entries()
    going_on.grow(1)
    last = max(going_on.items)
    job.write(going_on.events([last]))
    job.ack(last + 100)
    for checkpoint in ("checkpoint", "another"):
        caplog.clear()
        with job.noting_cuts(spark, checkpoint):
            wait_until(lambda: "no cuts of the log, retrying: the topic of shapes begins at" in caplog.text, "log", 60)
            wait_until(lambda: job.folder.log_rows(going_on.shape_id) == going_on.expected_rows(), "changes", 60)
        kept = job.read(*entries)
        assert kept is not None
        assert kept.lsn == first


def test_start_says_again_how_far_each_shape_is_durable(spark: SparkSession, job: KafkaWriter) -> None:
    """Also where there is nothing to read."""
    shape = Transactions("a")
    shape.grow(2)
    job.write(shape.events(list(shape.items)))
    job.run(spark)
    said = job.notified()
    job.run(spark)
    assert job.notified() == [*said, said[-1]]
    assert said[-1] == ("a", LogOffset.last_of(max(shape.items)))


def test_unreachable_broker_ends_the_job_after_its_retry_timeout(spark: SparkSession, job: KafkaWriter) -> None:
    """The message has the servers and the timeout."""
    transport = job.config("127.0.0.1:9", IMPATIENT).transport
    with pytest.raises(BrokerError, match=r"127.0.0.1:9 does not answer.*gave up after"):
        job.run(spark, transport=transport)


def test_checkpoint_of_other_topics_or_of_another_way_to_flush_is_refused(
    spark: SparkSession, job: KafkaWriter, topic_name: Callable[[str], str]
) -> None:
    """Its Kafka offsets mean nothing there, and Spark could not read its timers."""
    shape = Transactions("a")
    shape.grow(1)
    job.write(shape.events(list(shape.items)))
    job.run(spark)
    with pytest.raises(StateError, match=r"was made for flush batch, but flush is now hold; change it back, or set"):
        job.folder.run(
            spark, transport=job.config().transport, flushes=job.config().flushes, flush="hold", trigger_ms=9
        )
    job.streams = created_streams(job.streams.bootstrap_servers, topic_name)
    with pytest.raises(StateError, match=r"was made for shape_changes streams-"):
        job.run(spark)


def test_nothing_is_left_of_removed_shapes_once_all_before_their_end_is_taken(
    spark: SparkSession, job: KafkaWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only then, and not when it is read that they were removed. What is late of them changes nothing."""
    monkeypatch.setattr(consumed_changes, "PERIOD_S", 0.2)
    going_on, count = Transactions("goes on"), 200
    going_on.grow(1)
    gone = [Transactions(f"gone {number}") for number in range(count)]
    entries = [
        ShapeEntry(SOURCE, ShapeDefinition(each.shape_id, ("public", "t"), snapshot=False), 1, LogOffset(900, 0))
        for each in (going_on, *gone)
    ]
    for each in gone:
        each.grow(1)
    end = LogOffset(max(lsn for each in gone for lsn in each.items) + 10, 0)
    removed = [replace(entry, removed_at=end) for entry in entries[1:]]
    changes = [event for each in (going_on, *gone) for event in each.events(list(each.items))]
    job.write([*entries, *changes])
    job.run(spark)
    with job.running(spark):
        job.write(removed)
        going_on.grow(1)
        job.write(going_on.events([max(going_on.items)]))
        wait_until(lambda: job.folder.log_rows("goes on") == going_on.expected_rows(), "the next transaction", 60)
    assert len(_known(spark, job)) == 1 + count
    rows = sum(len(job.folder.log_rows(each.shape_id)) for each in gone[:3])
    with job.running(spark):
        job.write(entry.condensed() for entry in removed)

        def is_forgotten() -> bool:
            # A group forgets with its next event, and each of these shapes' groups gets one.
            job.write([*removed, *changes])
            return len(_known(spark, job)) == 1

        wait_until(is_forgotten, "the state has forgotten them", 120, pause_s=1.0)
    assert list(_known(spark, job)) == [(SOURCE, "goes on")]
    assert sum(len(job.folder.log_rows(each.shape_id)) for each in gone[:3]) == rows
    assert job.folder.log_rows("goes on") == going_on.expected_rows()


def _known(spark: SparkSession, job: KafkaWriter) -> Mapping[tuple[str, str], Durable]:
    """The shapes in the state of the last committed batch."""
    config = job.config()
    return _committed_writers(spark, checkpoint_path(config.state.checkpoint), config).durable
