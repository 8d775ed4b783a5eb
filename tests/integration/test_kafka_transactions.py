"""What Kafka's transactions hide, and what they do not: from both jobs, from capture, and from a recovery."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Final, Protocol

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from flushtracker.errors import SinkError
from flushtracker.events.records import record_of
from flushtracker.events.stream_events import FlushNotification, FragmentEvent
from flushtracker.spark import transaction_watch
from flushtracker.spark.kafka_admin import KafkaAdmin
from flushtracker.spark.transaction_watch import HangingTransactions
from flushtracker.status.ack_findings import job_finding
from flushtracker.tracking.acks.ack_table import AckTable
from flushtracker.tracking.job import query
from flushtracker.tracking.job.live_job_status import LiveJobStatus
from flushtracker.tracking.job.query import Recovery
from flushtracker.wal.log_offset import LogOffset
from tests.support.brokers import Broker
from tests.support.kafka_job import SILENT, KafkaJob
from tests.support.kill_points import arm
from tests.support.sample_source import SampleSource
from tests.support.seeds import seeds
from tests.support.status_pages import job_status
from tests.support.waiting import wait_until

_ROUNDS: Final = 6


class Begin(Protocol):
    """Begins a transaction of a new instance."""

    def __call__(self, timeout_ms: int = ...) -> Producer: ...


@pytest.fixture
def job(broker: Broker, tmp_path: Path) -> KafkaJob:
    """A tracking job with topics of its own, of one partition."""
    return KafkaJob(tmp_path, broker.bootstrap_servers)


@pytest.fixture
def transactions(job: KafkaJob) -> Iterator[Begin]:
    """Producers of one transactional id, as the instances of one writer: a later one aborts what an earlier left."""
    with transactional(job) as producers:
        yield producers


@contextmanager
def transactional(job: KafkaJob) -> Iterator[Begin]:
    opened = []

    def begin(timeout_ms: int = 60_000) -> Producer:
        settings = {
            "bootstrap.servers": job.bootstrap_servers,
            "transactional.id": f"writer-{job.name}",
            "transaction.timeout.ms": timeout_ms,
        }
        producer = Producer(settings, logger=SILENT)
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
    spark: SparkSession, job: KafkaJob, transactions: Begin
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
    spark: SparkSession, job: KafkaJob, transactions: Begin, caplog: pytest.LogCaptureFixture
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
        watch = HangingTransactions(admin, ids, lambda: now_ms)
        assert watch.check() == ()
        now_ms = transaction_watch.NORMAL_MS
        status.note_open_transactions(watch.check())
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
        problem = job_finding(job_status(open_transactions=(seen,)), None)
        assert problem is not None
        assert f"writer-{job.name}" in problem.text
        producer.commit_transaction(60)
        assert watch.check() == ()
    job.run(spark)
    assert ack(job, source) == 2000


def test_broker_aborts_the_transaction_of_a_writer_that_never_returns(
    spark: SparkSession, job: KafkaJob, transactions: Begin
) -> None:
    """Its notification never counts. What others notify behind it does, once ``transaction.timeout.ms`` has passed."""
    source = SampleSource()
    job.write([source.transaction(1000, "users"), source.transaction(2000, "orders")])
    left = transactions(timeout_ms=1_000)
    publish(job, left, source.flushed("orders", 2000))
    job.write([source.flushed("users", 1000)])
    flushes = job.topic("flushes")
    with KafkaAdmin(spark, job.transport(1)) as admin:  # type: ignore[arg-type]  # it is Kafka's
        topic_id = admin.topics([flushes])[flushes].topic_id
        # A record of each, and the mark of the abort.
        wait_until(lambda: admin.stable_ends(flushes, topic_id) == {0: 3}, "the broker has aborted it", 120)
    job.run(spark)
    assert ack(job, source) == 1998


def test_recovery_ends_where_the_stream_ends(spark: SparkSession, job: KafkaJob, transactions: Begin) -> None:
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


@pytest.mark.parametrize("seed", seeds(1, further=10))
def test_two_writers_on_one_slot_one_in_transactions_that_abort(
    spark: SparkSession,
    job: KafkaJob,
    transactions: Begin,
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Random rounds: the log's writer stops, the other one's instances are killed, abort or commit; each notifies both.

    The job fails in some batches. The ack is what the shapes' own writers have committed, and the job names the writer
    of what holds it.
    """
    rng, source = Random(seed), SampleSource()  # noqa: S311  reproducible
    writers = {"log-1": "log", "log-2": "log", "own-1": "own", "own-2": "own"}
    sent: dict[str, list[int]] = {shape_id: [] for shape_id in writers}
    durable = dict.fromkeys(writers, 0)
    lsn, failures = 1000, 0
    status = LiveJobStatus(60_000)
    monkeypatch.setattr(query, "LiveJobStatus", lambda _: status)
    for _ in range(_ROUNDS):
        events: list[FragmentEvent | FlushNotification] = []
        for _ in range(rng.randint(1, 4)):
            lsn += 1000
            shape_ids = rng.sample([*writers], rng.randint(0, 3))
            for shape_id in shape_ids:
                sent[shape_id].append(lsn)
            event = source.transaction(lsn, *shape_ids)
            shapes = tuple(replace(each, writer=writers[each.shape_id]) for each in event.shapes)
            events.append(replace(event, shapes=shapes))
        job.write(events)
        if is_running := rng.random() < 0.5:
            # It has everything of its own; and by mistake it notifies the others' shapes, in its name.
            job.write([notified(source, shape_id, lsn, "log") for shape_id in writers])
        producer = transactions()
        publish(job, producer, *(notified(source, shape_id, lsn, "own") for shape_id in writers))
        end = rng.choice(["commit", "abort", "killed"])
        if end == "commit":
            producer.commit_transaction(60)
        elif end == "abort":
            producer.abort_transaction(60)
        else:
            transactions().abort_transaction(60)  # The next instance aborts what the killed one left.
        for shape_id, writer in writers.items():
            if is_running if writer == "log" else end == "commit":
                durable[shape_id] = lsn
        failures += run_failing(spark, job, rng)
        job.run(spark)
        pending = [next((each for each in sent[shape_id] if each > durable[shape_id]), None) for shape_id in writers]
        assert ack(job, source) == min((each - 2 for each in pending if each is not None), default=lsn)
        (seen,) = status.read().sources
        holders = {holder.shape_id: holder.writer for holder in seen.holders}
        assert holders == {
            shape_id: writer
            for (shape_id, writer), since in zip(writers.items(), pending, strict=True)
            if since is not None
        }
    assert failures > 0


def run_failing(spark: SparkSession, job: KafkaJob, rng: Random) -> bool:
    """Run the job, which fails before or after it appends an ack; whether it has come to that."""

    def fail() -> None:
        raise SinkError("the test ends the job here")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AckTable, "append", AckTable.append)
        arm({"": (AckTable, "append", rng.random() < 0.5)}, "", 0, fail)
        try:
            job.run(spark)
        except SinkError as error:
            assert "the test ends the job here" in str(error)  # noqa: PT017  a batch may have no ack to append
            return True
    return False


def notified(source: SampleSource, shape_id: str, lsn: int, writer: str) -> FlushNotification:
    return FlushNotification(source.name, "flushed", shape_id, LogOffset(lsn, 0), writer)
