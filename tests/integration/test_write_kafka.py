"""The writers' job on a real broker: expired records, a broker that is away, and what it says on its start."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from flushtracker.config.secret_options import SecretOptions
from flushtracker.config.transport import KafkaTransport
from flushtracker.config.write_config import ROLES, FlushesConfig, WriteConfig
from flushtracker.errors import BrokerError, StateError
from flushtracker.events.stream_events import FlushNotification, ShapeChangesEvent
from flushtracker.kafka.kafka_config import KafkaConfig
from flushtracker.kafka.publisher import KafkaPublisher
from flushtracker.kafka.records import record_of
from flushtracker.wal.log_offset import LogOffset
from tests.support.brokers import Broker
from tests.support.kafka_streams import created_streams, records
from tests.support.shape_transactions import Transactions
from tests.support.write_folder import WriteFolder


class KafkaWriter:
    """A writers' job with topics of its own, each with one partition."""

    def __init__(self, streams: KafkaConfig, folder: Path) -> None:
        self.streams = streams
        self.folder = WriteFolder(folder)

    def config(self, servers: str | None = None) -> WriteConfig:
        topics = self.streams.topics.by_role()
        transport = KafkaTransport(
            servers or self.streams.bootstrap_servers,
            {role: topics[role] for role in ROLES},
            SecretOptions({"kafka.metadata.max.age.ms": "1000"}),
            retry_timeout_ms=1000,
        )
        return self.folder.config(transport=transport, flushes=FlushesConfig(topics["flushes"]))

    def write(self, events: Iterable[ShapeChangesEvent]) -> None:
        publisher = KafkaPublisher(self.streams)
        for event in events:
            publisher.publish(self.streams.topics.shape_changes, *record_of(event)[1:])
        publisher.flush(60)
        publisher.close()

    def expire(self) -> None:
        """Delete all changes that are in the topic now, as retention does."""
        admin = AdminClient({"bootstrap.servers": self.streams.bootstrap_servers})
        end = sum(map(len, records(self.streams.bootstrap_servers, self.streams.topics.shape_changes).values()))
        partition = TopicPartition(self.streams.topics.shape_changes, 0, end)
        admin.delete_records([partition])[partition].result(60)

    def run(self, spark: SparkSession, **changes: Any) -> None:
        """Write what is available, with these changes of the configuration."""
        self.folder.run(spark, **{"transport": self.config().transport, "flushes": self.config().flushes, **changes})

    def notified(self) -> list[tuple[str, LogOffset]]:
        found = records(self.streams.bootstrap_servers, self.streams.topics.flushes)
        events = [FlushNotification.from_json(value) for pairs in found.values() for _, value in pairs]
        return [(event.shape_id, event.offset) for event in events]


@pytest.fixture
def job(broker: Broker, topic_name: Callable[[str], str], tmp_path: Path) -> KafkaWriter:
    """A job that has written nothing."""
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
    transport = job.config("127.0.0.1:9").transport
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
    with pytest.raises(StateError, match=r"was made for source.shape_changes shape_changes-"):
        job.run(spark)
