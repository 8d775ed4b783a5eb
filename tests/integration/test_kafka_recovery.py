"""Recovery on Kafka: the errors that end the job, their messages, and exact acks after ``--recover``."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from flushtracker.errors import ConfigError, DecodeError, FlushtrackerError, GapError, StateError
from flushtracker.tracking.job.query import Recovery
from tests.support.brokers import Broker
from tests.support.job_folder import JobFolder
from tests.support.kafka_job import KafkaJob
from tests.support.sample_source import SampleSource

_RECOVER = "restart capture, which resends everything unconfirmed, then start this job once with --recover"


@pytest.fixture
def new_job(broker: Broker, tmp_path: Path) -> Callable[..., KafkaJob]:
    """Creates a job with its own topics; the argument is their number of partitions."""
    return lambda partitions=1: KafkaJob(tmp_path, broker.bootstrap_servers, partitions)


@pytest.fixture
def job(new_job: Callable[..., KafkaJob]) -> KafkaJob:
    return new_job()


def _stop_message(
    job: KafkaJob, spark: SparkSession, kind: type[FlushtrackerError], recovery: Recovery | None = None
) -> str:
    with pytest.raises(kind) as caught:
        job.run(spark, recovery=recovery)
    return str(caught.value)


def _last_ack(job: KafkaJob, source: SampleSource) -> int:
    """Check that the table has no duplicate ack, and return the last one."""
    acks = sorted(ack_lsn for _, _, ack_lsn in job.acks(source.name))
    assert len(acks) == len(set(acks))
    return acks[-1]


def _delete_records(job: KafkaJob, before: int, partition: int = 0) -> None:
    """Delete records immediately, as retention does later."""
    admin = AdminClient({"bootstrap.servers": job.bootstrap_servers})
    partition_offset = TopicPartition(job.topic("fragments"), partition, before)
    for future in admin.delete_records([partition_offset]).values():
        future.result(30)


def test_gap_ends_the_job_and_a_resend_recovers_it(spark: SparkSession, job: KafkaJob) -> None:
    """The message names the topic, the partition and the Kafka offset; flushes from before the gap still count."""
    source = SampleSource()
    job.write([source.transaction(2000)])
    job.run(spark)
    source.transaction(3000, "users")  # lost
    job.write([source.transaction(4000), source.flushed("users", 3000)])
    message = _stop_message(job, spark, GapError)
    assert message.startswith(f"{job.topic('fragments')} partition 0 Kafka offset 1: fragment 0/FA0+0 of source ")
    assert _RECOVER in message
    assert _last_ack(job, source) == 2000
    source.restart(2001)
    job.write([source.transaction(3000, "users"), source.transaction(4000, "orders")])
    job.run(spark, recovery=Recovery())
    assert _last_ack(job, source) == 3998
    job.write([source.flushed("orders", 4000)])
    job.run(spark)
    assert _last_ack(job, source) == 4000


def test_a_gap_of_one_source_leaves_the_acks_of_the_others(
    spark: SparkSession, job: KafkaJob, caplog: pytest.LogCaptureFixture
) -> None:
    """A run that ends by itself has the exit code; a restart goes on with the others; --recover heals it."""
    broken, other = SampleSource("7301/1/shapes"), SampleSource("8302/1/shapes")
    job.write([broken.transaction(2000), other.transaction(2000)])
    job.run(spark)
    broken.transaction(3000, "users")  # lost
    job.write([broken.transaction(4000), other.transaction(4000)])
    for lsn in (5000, 6000):
        message = _stop_message(job, spark, GapError)
        assert f"fragment 0/FA0+0 of source {broken.name} follows 0/BB8+0" in message
        assert _RECOVER in message
        assert caplog.text.count(f"source set aside source={broken.name}: {message}") == 1
        caplog.clear()
        assert (_last_ack(job, broken), _last_ack(job, other)) == (2000, lsn - 1000)
        job.write([broken.transaction(lsn), broken.flushed("users", 3000), other.transaction(lsn)])
    broken.restart(2001)
    job.write([broken.transaction(3000, "users"), broken.transaction(7000, "orders")])
    job.run(spark, recovery=Recovery())
    assert (_last_ack(job, broken), _last_ack(job, other)) == (6998, 6000)


def test_poison_record_ends_the_job_and_recovery_skips_it(
    spark: SparkSession, job: KafkaJob, caplog: pytest.LogCaptureFixture
) -> None:
    """The log counts the skipped records; a restart of the recovered job needs no flag."""
    source = SampleSource()
    job.write([source.transaction(2000), "{no JSON"])
    message = _stop_message(job, spark, DecodeError)
    assert message.startswith(f"{job.topic('fragments')} partition 0 Kafka offset 1: fragment cannot be read: ")
    assert _RECOVER in message
    assert job.acks() == []
    source.restart(1000)
    job.write([source.transaction(2000, "users"), source.flushed("users", 2000), source.transaction(3000)])
    with caplog.at_level("INFO"):
        job.run(spark, recovery=Recovery())
    assert f"source={source.name} partition=0 begins at Kafka offset 2" in caplog.text
    assert f"source={source.name} skips 1 fragments" in caplog.text
    assert "skips 1 records that cannot be read" in caplog.text
    assert _last_ack(job, source) == 3000
    job.write([source.transaction(4000)])
    job.run(spark)
    assert _last_ack(job, source) == 4000


@pytest.mark.parametrize(
    ("damaged", "reason"),
    [
        (b"us\xe9r", "Invalid UTF-8 encoded string"),
        (b"us\\ud800r", "unexpected end of escaped utf-16 surrogate pair (byte 283)"),
    ],
)
def test_invalid_text_and_empty_values_are_poison_too(
    spark: SparkSession, job: KafkaJob, damaged: bytes, reason: str
) -> None:
    """A damaged name must not become another name; a tombstone among flushes is no event."""
    source = SampleSource()
    job.write([source.transaction(2000, "user").to_json().encode().replace(b"user", damaged)])
    message = _stop_message(job, spark, DecodeError)
    assert f"partition 0 Kafka offset 0: fragment cannot be read: fragment is not JSON: {reason}; " in message
    source.restart(1000)
    job.write([source.transaction(2000)], [None])
    job.run(spark, recovery=Recovery())
    assert _last_ack(job, source) == 2000
    assert not (job.root / "dead_letters").exists()


def test_records_that_expired_while_the_job_was_down_are_a_gap(spark: SparkSession, job: KafkaJob) -> None:
    """Kafka deletes them by age; the message states which are missing."""
    source = SampleSource()
    job.write([source.transaction(2000)])
    job.run(spark)
    job.write([source.transaction(3000, "users"), source.transaction(4000)])
    job.alter("fragments", **{"retention.ms": "1"})
    job.await_first_offset(3)
    job.alter("fragments", **{"retention.ms": "-1"})
    source.restart(2001)
    job.write([source.transaction(3000, "users")])
    message = _stop_message(job, spark, GapError)
    assert message.startswith("Kafka no longer has records that this job has yet to read: ")
    assert f"{job.topic('fragments')}-0" in message
    assert _RECOVER in message
    job.run(spark, recovery=Recovery())
    assert _last_ack(job, source) == 2998
    job.write([source.flushed("users", 3000)])
    job.run(spark)
    assert _last_ack(job, source) == 3000


def test_start_that_does_not_connect_to_the_last_ack_is_refused(spark: SparkSession, job: KafkaJob) -> None:
    """Capture must be restarted first; the checkpoint stays as it is."""
    source = SampleSource()
    job.write([source.transaction(2000)])
    job.run(spark)
    before = sorted(path.name for path in job.root.iterdir())
    source.restart(5000)  # the slot was advanced past the last ack
    job.write([source.transaction(6000)])
    _delete_records(job, 1)
    message = _stop_message(job, spark, GapError, recovery=Recovery())
    assert (
        f"source {source.name} cannot be recovered yet: its last start, in {job.topic('fragments')} partition 0 "
        in message
    )
    assert "follows 0/1387, but its last ack is 0/7D0" in message
    assert "restart its capture" in message
    assert sorted(path.name for path in job.root.iterdir()) == before
    assert _last_ack(job, source) == 2000


def test_deleted_rows_weaken_neither_recovery_nor_start(spark: SparkSession, job: KafkaJob) -> None:
    """The last ack is in the table's log: what must connect to it is checked, with and without the checkpoint."""
    source = SampleSource()
    job.write([source.transaction(2000)])
    job.run(spark)
    DeltaTable(str(job.root / "acks")).delete()
    source.restart(5000)  # the slot was advanced past the last ack
    job.write([source.transaction(6000)])
    _delete_records(job, 1)
    message = _stop_message(job, spark, GapError, recovery=Recovery())
    assert "follows 0/1387, but its last ack is 0/7D0" in message
    shutil.rmtree(job.root / "checkpoint")
    _stop_message(job, spark, GapError)
    source.restart(2001)
    job.write([source.transaction(3000)])
    job.run(spark, recovery=Recovery())
    assert job.acks(source.name) == [(source.name, 0, 3000)]


def test_source_that_will_never_be_captured_again_can_be_abandoned(spark: SparkSession, job: KafkaJob) -> None:
    """A dropped slot has left a gap; the other sources of the topic continue without it."""
    gone, alive = SampleSource("gone/1/s"), SampleSource("alive/1/s")
    job.write([gone.transaction(2000), alive.transaction(2000)])
    job.run(spark)
    gone.transaction(3000)
    job.write([gone.transaction(4000), alive.transaction(3000, "users")])
    _delete_records(job, 2)
    alive.restart(2001)
    job.write([alive.transaction(3000, "users")])
    message = _stop_message(job, spark, GapError, recovery=Recovery())
    assert "source gone/1/s cannot be recovered yet" in message
    assert "none is marked as a start" in message
    assert "start with --recover --abandon gone/1/s" in message
    assert "--abandon nobody: topic" in _stop_message(job, spark, ConfigError, recovery=Recovery(("nobody",)))
    job.run(spark, recovery=Recovery(("gone/1/s",)))
    job.write([alive.flushed("users", 3000)])
    job.run(spark)
    assert (_last_ack(job, alive), _last_ack(job, gone)) == (3000, 2000)


def test_lost_checkpoint_continues_if_the_topic_connects_to_the_last_ack(spark: SparkSession, job: KafkaJob) -> None:
    """The expired fragments were acknowledged, so nothing is missing and no flag is needed."""
    source = SampleSource()
    job.write([source.transaction(2000, "users"), source.flushed("users", 2000), source.transaction(3000, "users")])
    job.run(spark)
    assert _last_ack(job, source) == 2998
    shutil.rmtree(job.root / "checkpoint")
    _delete_records(job, 1)
    job.write([source.flushed("users", 3000)])
    job.run(spark)
    assert _last_ack(job, source) == 3000


def test_old_checkpoint_continues_or_reports_missing_records(spark: SparkSession, job: KafkaJob) -> None:
    """After a restore from a backup, records that the topic still has are read again; missing ones are a gap."""
    source = SampleSource()
    job.write([source.transaction(2000)])
    job.run(spark)
    backup = job.root / "backup"
    shutil.copytree(job.root / "checkpoint", backup)
    job.write([source.transaction(3000, "users"), source.flushed("users", 3000)])
    job.run(spark)
    _restore(job, backup)
    job.write([source.transaction(4000, "users")])
    job.run(spark)
    assert _last_ack(job, source) == 3998
    _restore(job, backup)
    _delete_records(job, 2)
    assert _RECOVER in _stop_message(job, spark, GapError)
    source.restart(3999)
    job.write([source.transaction(4000, "users"), source.flushed("users", 4000)])
    job.run(spark, recovery=Recovery())
    assert _last_ack(job, source) == 4000


def test_recovery_reads_each_source_from_its_own_last_start(
    spark: SparkSession, new_job: Callable[..., KafkaJob]
) -> None:
    """Two sources share a partition, and a third has moved to another partition."""
    job = new_job(2)
    one, two, moved = SampleSource("one/1/s"), SampleSource("two/1/s"), SampleSource("moved/1/s")
    job.write(
        [one.transaction(2000), two.transaction(2000), one.transaction(3000), moved.transaction(2000)], partition=0
    )
    job.run(spark)
    two.transaction(3000)
    job.write([two.transaction(4000), one.transaction(4000), "poison"], partition=0)
    one.restart(3001)
    job.write([one.transaction(4000), two.transaction(5000), moved.transaction(3000)], partition=0)
    two.restart(2001)
    job.write([two.transaction(3000), two.transaction(4000), one.transaction(5000)], partition=0)
    time.sleep(0.01)  # a later start has a later timestamp, in milliseconds
    moved.restart(2001)
    job.write([moved.transaction(3000), moved.transaction(4000)], partition=1)
    job.run(spark, recovery=Recovery())
    assert [_last_ack(job, source) for source in (one, two, moved)] == [5000, 4000, 4000]


def test_recovery_of_a_topic_without_records_begins_with_the_next_one(spark: SparkSession, job: KafkaJob) -> None:
    """Everything has expired; capture's next start connects to the last ack."""
    source = SampleSource()
    job.write([source.transaction(2000)])
    job.run(spark)
    _delete_records(job, 1)
    job.run(spark, recovery=Recovery())
    source.restart(2001)
    job.write([source.transaction(3000)])
    job.run(spark)
    assert _last_ack(job, source) == 3000


def test_recovery_from_files_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Files have no Kafka offset to start from."""
    with pytest.raises(ConfigError, match=r"--recover needs kafka, but the streams are files"):
        JobFolder(tmp_path).run(spark, recovery=Recovery())


def test_other_topics_on_a_checkpoint_are_refused(spark: SparkSession, job: KafkaJob) -> None:
    """Topics are compared by name, and by id: in a recreated topic the same Kafka offsets are other records."""
    source = SampleSource()
    job.write([source.transaction(2000)])
    job.run(spark)
    other = KafkaJob(job.root, job.bootstrap_servers)
    message = _stop_message(other, spark, StateError)
    assert f"was made for flushes {job.topic('flushes')} (" in message
    assert f", but flushes is now {other.topic('flushes')} (" in message
    assert "start once with --recover" in message
    job.delete_topics()
    job.create_topics()
    assert f"was made for flushes {job.topic('flushes')} (" in _stop_message(job, spark, StateError)
    source.restart(2001)
    job.write([source.transaction(3000)])
    job.run(spark, recovery=Recovery())
    assert _last_ack(job, source) == 3000


def test_checkpoint_of_another_job_is_refused(spark: SparkSession, job: KafkaJob) -> None:
    """The checkpoint is left untouched."""
    other = spark.readStream.format("rate").load().writeStream.format("noop")
    query = other.option("checkpointLocation", str(job.root / "checkpoint")).trigger(availableNow=True).start()
    assert query.awaitTermination(60)
    before = sorted(path.name for path in (job.root / "checkpoint").iterdir())
    assert "so it was made by another job or is incomplete" in _stop_message(job, spark, StateError)
    assert sorted(path.name for path in (job.root / "checkpoint").iterdir()) == before


def test_topic_that_could_lose_records_is_refused_at_the_start(spark: SparkSession, job: KafkaJob) -> None:
    """The message lists all faults, with the topic, the setting and both values."""
    job.alter("fragments", **{"retention.ms": "3600000", "retention.bytes": "1000000"})
    message = _stop_message(job, spark, ConfigError)
    assert message.startswith(f"a topic could lose records: {job.topic('fragments')}: ")
    assert "retention.ms" in message
    assert "retention.bytes" in message


def test_missing_topic_is_refused_at_the_start(spark: SparkSession, job: KafkaJob) -> None:
    """The message names the command that creates it."""
    job.delete_topics()
    assert "create them with `flushtracker topics --create`" in _stop_message(job, spark, ConfigError)


def _restore(job: KafkaJob, backup: Path) -> None:
    shutil.rmtree(job.root / "checkpoint")
    shutil.copytree(backup, job.root / "checkpoint")
