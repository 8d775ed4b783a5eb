"""The job on a real broker: the acks of the recording, partitions, compaction, and a broker that is restarted."""

import logging
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread, Timer
from typing import Final

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from flushtracker.cli import main
from flushtracker.config.job_config import load_config
from flushtracker.config.write_config import load_write_config
from flushtracker.errors import BrokerError, GapError
from flushtracker.events.records import flush_keys
from flushtracker.local.broker import LocalBroker
from flushtracker.shape_log.write.query import write_shapes
from flushtracker.spark import kafka_streams
from flushtracker.spark.committed_state import read_state_rows
from flushtracker.tracking.job.driver import REMEDIES
from flushtracker.tracking.job.query import track_flushes
from flushtracker.tracking.shape_group import ShapeGroup
from flushtracker.tracking.source_tracker import CHAIN
from tests.support.brokers import Broker
from tests.support.config_file import write_config
from tests.support.kafka_job import IMPATIENT, SILENT, KafkaJob
from tests.support.processes import run_to_end
from tests.support.recorded_workload import RECORDING_OPTIONS
from tests.support.sample_source import SampleSource
from tests.support.second_broker import NODE_ID, second_broker
from tests.support.seeds import every
from tests.support.waiting import wait_until

_ROOT: Final = Path(__file__).parents[2]
_DEADLINE_S: Final = 90
_PARTS: Final = 5
_AWAY: Final = "127.0.0.1:9"


def kept_shapes(spark: SparkSession, job: KafkaJob) -> list[str]:
    """The labels of all shapes of which the committed state has anything."""
    config = job.config().state
    _, rows = read_state_rows(spark, config.checkpoint, config.shape_groups, ["packed"], REMEDIES)
    groups = [ShapeGroup.unpack(bytes(row["packed"])) for row in rows if row["shape_group"] != CHAIN]
    return [label for group in groups for label in group.labels]


@contextmanager
def running(spark: SparkSession, job: KafkaJob, *, shape_groups: int = 4) -> Iterator[list[BaseException]]:
    """Run the job in a thread until the block ends; yields its errors, of which there must be none at the end."""
    stop, failures = Event(), list[BaseException]()

    def run() -> None:
        try:
            track_flushes(spark, job.config(shape_groups=shape_groups, trigger_ms=100), stop)
        except BaseException as error:  # noqa: BLE001  checked below
            failures.append(error)

    thread = Thread(target=run)
    thread.start()
    try:
        yield failures
    finally:
        stop.set()
        thread.join(60)
    assert not thread.is_alive()
    assert failures == []


def _await_ack(job: KafkaJob, source: str, ack_lsn: int) -> None:
    wait_until(
        lambda: max(job.ack_lsns(source).values(), default=-1) == ack_lsn, f"ack {ack_lsn} of {source}", _DEADLINE_S
    )


@pytest.mark.parametrize(("option", "batches"), [(None, 3), ("4", 2), ("1000", 1)])
def test_backlog_is_read_in_parts(
    spark: SparkSession,
    broker: Broker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    option: str | None,
    batches: int,
) -> None:
    """Without a limit the first batch is all of it, and too large a batch comes again after each restart."""
    assert kafka_streams._DEFAULTS["maxOffsetsPerTrigger"] == "500000"
    monkeypatch.setitem(kafka_streams._DEFAULTS, "maxOffsetsPerTrigger", "2")
    options = {} if option is None else {"maxoffsetspertrigger": option}
    job = KafkaJob(tmp_path, broker.bootstrap_servers, options=options)
    source = SampleSource()
    job.write([source.transaction(lsn) for lsn in range(2000, 8000, 1000)])
    job.run(spark)
    assert len(job.acks()) == batches
    assert max(job.ack_lsns(source.name).values()) == 7000


def test_replayed_recording_is_written_tracked_and_reported(
    spark: SparkSession,
    broker: Broker,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """``topics``, ``replay`` and ``report``, and both jobs with the file that a user writes for them."""
    job = {"trigger": "available_now", "shuffle_partitions": 2}
    settings = {
        "kafka": {
            "bootstrap_servers": broker.bootstrap_servers,
            "topic_prefix": tmp_path.name,
            "replication_factor": 1,
        },
        "storage": str(tmp_path),
        "track": {**job, "options": {"maxOffsetsPerTrigger": 2000, "minPartitions": 4}},
        "write": {**job, "snapshot": "manual"},
        "status": False,
    }
    config = write_config(tmp_path / "flushtracker.yaml", settings)
    assert main(["topics", "--config", str(config), "--create"]) == 0
    assert main(["replay", *RECORDING_OPTIONS, "--kafka", str(config)]) == 0
    caplog.set_level(logging.INFO)
    write_shapes(spark, load_write_config(config), Event())
    track_flushes(spark, load_config(config), Event())
    capsys.readouterr()
    assert main(["report", "--config", str(config), "--plot", str(tmp_path / "acks.png")]) == 0
    report = capsys.readouterr().out
    assert "source=recording/1/shapes ack_lsn=" in caplog.text
    assert "How the ack of recording/1/shapes advanced" in report
    assert re.search(
        r"^final ack \S+ of .* UTC = last commit known: everything is acknowledged$", report, re.MULTILINE
    ), report


def test_flush_with_an_absurd_time_does_not_end_the_job(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    """Spark converts the time of each record to microseconds, and fails where they exceed 64 bits."""
    job, source = KafkaJob(tmp_path, broker.bootstrap_servers), SampleSource()
    job.write([source.transaction(2000, "users"), source.flushed("users", 2000)])
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers}, logger=SILENT)
    producer.produce(job.topic("flushes"), "{}", "any", timestamp=-(2**62))
    assert producer.flush(60) == 0
    job.run(spark)
    assert [ack for _, _, ack in job.acks()] == [2000]


def test_sources_in_two_partitions_are_tracked_separately(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    """Each partition holds a complete chain, and their order does not matter."""
    job = KafkaJob(tmp_path, broker.bootstrap_servers, partitions=2)
    one, two = SampleSource("one/1/s"), SampleSource("two/1/s")
    job.write([one.transaction(2000, "users"), one.transaction(3000)], partition=0)
    job.write([two.transaction(5000), two.transaction(6000, "users")], partition=1)
    job.write([one.flushed("users", 2000)])
    job.run(spark)
    assert job.acks() == [("one/1/s", 0, 3000), ("two/1/s", 0, 5998)]


def test_fragments_of_one_source_in_two_partitions_are_reported_as_a_gap(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    """Partitions have no common order: a fragment read from one may follow an unread fragment of the other."""
    job = KafkaJob(tmp_path, broker.bootstrap_servers, partitions=2)
    source = SampleSource()
    job.write([source.transaction(2000)], partition=0)
    job.run(spark)
    late = source.transaction(3000, "users")
    job.write([source.transaction(4000)], partition=1)
    with pytest.raises(GapError) as caught:
        job.run(spark)
    topic = job.topic("fragments")
    assert f"are in two partitions, {topic} partition 0 and {topic} partition 1, so their order is undefined" in str(
        caught.value
    )
    job.write([late], partition=0)
    assert job.acks() == [(source.name, 0, 2000)]


def test_quiet_groups_forget_removed_shapes_once_their_flushes_are_deleted(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    """The tasks know the ack by a property of the batch, and a tombstone reaches the group of its shape."""
    job, source = KafkaJob(tmp_path, broker.bootstrap_servers), SampleSource()
    shapes = [f"shape-{number}" for number in range(20)]

    def acked(lsn: int) -> None:
        wait_until(lambda: max(job.ack_lsns(source.name).values(), default=0) == lsn, f"ack {lsn}", _DEADLINE_S)

    with running(spark, job):
        job.write([source.transaction(2000, *shapes), *(source.removed(shape, 2050) for shape in shapes)])
        acked(2000)
        job.write([source.transaction(3000)])
        acked(3000)
    assert sorted(kept_shapes(spark, job)) == sorted(shapes)
    with running(spark, job):
        job.write([source.transaction(4000, *shapes), *(source.removed(shape, 4050) for shape in shapes)])
        acked(4000)
        job.write([source.transaction(5000)])
        acked(5000)
        job.write([], deleted=[b"\xff", *(flush_keys(source.name, shape, "log")[1] for shape in shapes)])
        job.write([source.transaction(6000)])
        acked(6000)
    assert kept_shapes(spark, job) == []


def test_flushes_compacted_to_the_last_of_each_key_give_the_same_ack(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    """A new job reads them from the earliest offset, after compaction has removed most of them."""
    job = KafkaJob(tmp_path, broker.bootstrap_servers)
    job.alter("flushes", **{"segment.ms": "100", "min.cleanable.dirty.ratio": "0.01", "max.compaction.lag.ms": "200"})
    source = SampleSource()
    shapes = [f"shape-{number}" for number in range(20)]
    for lsn in range(2000, 4000, 20):
        job.write([source.transaction(lsn, *shapes)])
    job.write([source.flushed(shape, lsn) for lsn in range(2000, 4000, 20) for shape in shapes])
    last = source.transaction(4000, *shapes)
    job.write([last, source.removed("shape-0", 5000), *(source.flushed(shape, 4000) for shape in shapes[2:])])
    job.await_compaction(below=100)
    job.run(spark)
    assert max(job.ack_lsns(source.name).values()) == 3998
    job.write([source.flushed("shape-1", 4000)])
    job.run(spark)
    assert max(job.ack_lsns(source.name).values()) == 4000


@pytest.mark.soak
def test_broker_restarts_under_load_lose_no_ack(
    spark: SparkSession, killable_broker: LocalBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is killed while the job reads, then unavailable for longer than Spark itself waits; the job recovers."""
    broker = killable_broker
    job = KafkaJob(tmp_path, broker.bootstrap_servers)
    source = SampleSource()
    job.write([source.transaction(2000, "users")])
    with running(spark, job):
        _await_ack(job, source.name, 1998)
        for lsn in (3000, 4000):
            broker.kill()
            broker.start()
            job.write([source.flushed("users", lsn - 1000), source.transaction(lsn, "users")])
            _await_ack(job, source.name, lsn - 2)
        broker.kill()
        warning = f"Kafka at {broker.bootstrap_servers} does not answer"
        wait_until(lambda: warning in caplog.text, "the job's warning", _DEADLINE_S)
        broker.start()
        job.write([source.flushed("users", 4000)])
        _await_ack(job, source.name, 4000)
    acks = [ack_lsn for *_, ack_lsn in job.acks()]
    assert acks == sorted(set(acks))


def test_broker_that_stays_unavailable_ends_the_job(
    spark: SparkSession, broker: Broker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The job ends after ``retry_timeout``; the error names the servers, and a warning precedes it."""
    config = KafkaJob(tmp_path, broker.bootstrap_servers, retry_timeout_ms=1_000).secured_config(_AWAY, IMPATIENT)
    with caplog.at_level(logging.WARNING), pytest.raises(BrokerError) as caught:
        track_flushes(spark, config, Event())
    assert str(caught.value).startswith(f"Kafka at {_AWAY} does not answer: ")
    assert re.search(r"; gave up after \d+ s \(kafka\.retry_timeout\)$", str(caught.value))
    assert f"Kafka at {_AWAY} does not answer" in caplog.text


@every(2, 0)
def test_outage_on_a_quiet_topic_is_over_when_the_broker_answers(
    spark: SparkSession, killable_broker: LocalBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No batch runs afterwards, so the ends of the partitions are all that there is to read; a later outage is new."""
    caplog.set_level(logging.INFO)
    job = KafkaJob(tmp_path, killable_broker.bootstrap_servers, options=IMPATIENT)
    job.write([SampleSource().transaction(2000)])
    with running(spark, job):
        _await_ack(job, "7301/1/shapes", 2000)
        killable_broker.kill()
        wait_until(lambda: "retrying for up to" in caplog.text, "the job's warning", _DEADLINE_S)
        killable_broker.start()
        wait_until(lambda: "broker available again" in caplog.text, "the end of the outage", _DEADLINE_S)


@every(2, 1)
def test_partition_whose_leader_stays_away_ends_the_job(
    spark: SparkSession, killable_broker: LocalBroker, tmp_path: Path
) -> None:
    """Its batch begins at every attempt and never finishes, so ``retry_timeout`` runs out."""
    with second_broker(killable_broker, tmp_path / "second") as second:
        options = {**IMPATIENT, "kafkaConsumer.pollTimeoutMs": "1000"}
        job = KafkaJob(tmp_path, killable_broker.bootstrap_servers, options=options, retry_timeout_ms=5_000)
        job.delete_topics()
        job.create_topics(leaders={"fragments": 1, "flushes": NODE_ID})
        source = SampleSource()
        for lsn in (2000, 3000):
            job.write([source.transaction(lsn, "users"), source.flushed("users", lsn)])
            job.run(spark)
        # As if the driver had died before the last batch was committed: it is planned, and will be read again.
        (tmp_path / "checkpoint/commits/1").unlink()
        second.stop()
        stop = Event()
        deadline = Timer(4 * _DEADLINE_S, stop.set)
        deadline.start()
        with pytest.raises(BrokerError, match=r"does not answer: .*; gave up after \d+ s \(kafka\.retry_timeout\)$"):
            track_flushes(spark, job.config(), stop)
        deadline.cancel()


@every(4, 0)
@pytest.mark.parametrize(
    ("security", "expected"),
    [
        ("PLAINTEXT", ("batch done", "fragment cannot be read")),
        pytest.param("SASL_PLAINTEXT", (": IllegalSaslStateException",), marks=pytest.mark.soak),
    ],
)
def test_no_secret_among_the_options_is_ever_printed(
    broker: Broker, tmp_path: Path, security: str, expected: tuple[str, ...]
) -> None:
    """Not even in Spark's own log and tracebacks, which contain its plans and its clients' settings."""
    options = {
        "kafka.security.protocol": security,
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required "
        'username="u" password="hunter2";',
        "kafka.ssl.truststore.password": "hunter2",
        # One batch works, and the next one has the record that cannot be read.
        "maxOffsetsPerTrigger": "1",
    }
    job = KafkaJob(tmp_path, broker.bootstrap_servers, options=options)
    job.write([SampleSource().transaction(2000), "poison"])
    command = [sys.executable, "-m", "flushtracker", "track", "--config", str(job.config_file()), "--verbose"]
    done = run_to_end(command, cwd=_ROOT, start_new_session=True, timeout=600)
    output = done.stdout + done.stderr
    assert [text for text in expected if text not in output] == []
    lines = [line for line in output.splitlines() if "hunter2" in line]
    assert lines == []
