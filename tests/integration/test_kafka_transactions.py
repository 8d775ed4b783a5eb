"""What Kafka's transactions hide, and what they do not: from both jobs, from capture, and from a recovery."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from flushtracker.events.stream_events import FlushNotification
from flushtracker.jobs.track.live_status import LiveJobStatus
from flushtracker.jobs.track.query import Recovery
from flushtracker.kafka.records import record_of
from flushtracker.spark import transaction_watch
from flushtracker.spark.kafka_admin import KafkaAdmin
from flushtracker.spark.transaction_watch import OpenTransactions
from flushtracker.status.problems import open_transactions
from tests.support.brokers import Broker
from tests.support.kafka_job import KafkaJob
from tests.support.sample_source import SampleSource
from tests.support.status_pages import job_status


@pytest.fixture
def job(broker: Broker, tmp_path: Path) -> KafkaJob:
    """A tracking job with topics of its own, of one partition."""
    return KafkaJob(tmp_path, broker.bootstrap_servers)


@pytest.fixture
def transactions(job: KafkaJob) -> Iterator[Callable[[], Producer]]:
    """Producers of one transactional id, as the instances of one writer: a later one aborts what an earlier left."""
    with transactional(job) as producers:
        yield producers


@contextmanager
def transactional(job: KafkaJob) -> Iterator[Callable[[], Producer]]:
    opened = []

    def begin() -> Producer:
        settings = {"bootstrap.servers": job.bootstrap_servers, "transactional.id": f"writer-{job.name}"}
        producer = Producer(settings)
        producer.init_transactions(60)
        producer.begin_transaction()
        opened.append(producer)
        return producer

    yield begin
    if opened:
        begin().abort_transaction(60)


def publish(job: KafkaJob, producer: Producer, *events: FlushNotification) -> None:
    for event in events:
        record = record_of(event)
        producer.produce(job.topic(record.stream), record.value, record.key)
    assert producer.flush(60) == 0


def ack(job: KafkaJob, source: SampleSource) -> int:
    return max(job.ack_lsns(source.name).values(), default=-1)


def test_flush_in_an_aborted_transaction_acknowledges_nothing(
    spark: SparkSession, job: KafkaJob, transactions: Callable[[], Producer]
) -> None:
    """The writer's rows were aborted with it. Marks are Kafka offsets without a record, and no loss."""
    source = SampleSource()
    job.write([source.transaction(1000, "users")])
    producer = transactions()
    publish(job, producer, source.flushed("users", 1000))
    producer.abort_transaction(60)
    job.run(spark)
    assert ack(job, source) == 998
    # The mark is the last of the topic; what follows it counts.
    job.write([source.transaction(2000), source.flushed("users", 1000)])
    job.run(spark)
    assert ack(job, source) == 2000


def test_flush_in_an_open_transaction_waits_for_its_end(
    spark: SparkSession, job: KafkaJob, transactions: Callable[[], Producer], caplog: pytest.LogCaptureFixture
) -> None:
    """It may still be aborted. So waits what others notify behind it; the job names it, and who has it open."""
    source = SampleSource()
    job.write([source.transaction(1000, "users"), source.transaction(2000, "orders")])
    producer = transactions()
    publish(job, producer, source.flushed("users", 1000))
    job.write([source.flushed("orders", 2000)])
    job.run(spark)
    assert ack(job, source) == 998
    status = LiveJobStatus(60_000)
    now_ms = 0
    with KafkaAdmin(spark, job.transport(1)) as admin:  # type: ignore[arg-type]  # it is Kafka's
        topics = admin.topics([job.topic("fragments"), job.topic("flushes")])
        ids = {name: topic.topic_id for name, topic in topics.items()}
        watch = OpenTransactions(admin, ids, lambda: now_ms)
        assert watch.look() == ()
        now_ms = transaction_watch.NORMAL_MS
        status.note_open_transactions(watch.look())
        (seen,) = status.read().open_transactions
        assert (seen.topic, seen.partition, seen.last_stable_offset, seen.hidden_records) == (
            job.topic("flushes"),
            0,
            0,
            2,
        )
        assert seen.producers == f"writer-{job.name} (transaction.timeout.ms 60000)"
        (logged,) = [record.getMessage() for record in caplog.records if "transaction open" in record.getMessage()]
        assert f"topic={job.topic('flushes')} partition=0 last_stable_offset=0 end=2 open_ms=30000" in logged
        problem = open_transactions(job_status(open_transactions=(seen,)))
        assert problem is not None
        assert f"writer-{job.name}" in problem.text
        producer.commit_transaction(60)
        assert watch.look() == ()
    job.run(spark)
    assert ack(job, source) == 2000


def test_recovery_ends_where_the_stream_ends(
    spark: SparkSession, job: KafkaJob, transactions: Callable[[], Producer]
) -> None:
    """Behind an open transaction among the fragments, whoever wrote it, nothing is skipped and nothing is lost."""
    source = SampleSource()
    job.write([source.transaction(1000)])
    job.run(spark)
    job.write(["{no JSON"])
    source.restart(1001)
    job.write([source.transaction(2000, "users")])
    producer = transactions()
    producer.produce(job.topic("fragments"), b"{no JSON either")
    assert producer.flush(60) == 0
    job.write([source.transaction(3000)])
    job.run(spark, recovery=Recovery())
    assert ack(job, source) == 1998
    producer.abort_transaction(60)
    job.write([source.flushed("users", 2000)])
    job.run(spark)
    assert ack(job, source) == 3000
