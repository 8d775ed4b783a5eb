"""Two writers on the topics of one slot, with all parts real: a shape waits for its own writer alone."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Final

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from flushtracker.config.job_config import ROLES, JobConfig, SinkConfig, StallConfig, StateConfig
from flushtracker.config.transport import KafkaTransport
from flushtracker.delta.storage import table_rows
from flushtracker.events.records import Event as AnyEvent
from flushtracker.events.records import record_of
from flushtracker.events.registry_events import ShapeEntry
from flushtracker.events.snapshot_events import SnapshotEnd, SnapshotEvent, SnapshotRow
from flushtracker.events.stream_events import FlushNotification, ShapeChangesEvent
from flushtracker.events.topic_rules import ROLES as ROLES_OF_CAPTURE
from flushtracker.events.topic_rules import SNAPSHOT_ROLES
from flushtracker.kafka.kafka_config import KafkaConfig
from flushtracker.kafka.publisher import KafkaPublisher
from flushtracker.kafka.topic_admin import TopicAdmin
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.tracking.job.query import track_flushes
from flushtracker.wal.changes import Commit, LogItem
from flushtracker.wal.contained_transactions import ContainedTransactions
from flushtracker.wal.log_offset import LogOffset
from tests.support.brokers import Broker
from tests.support.capture_rig import INSERT_USER, CaptureRig, shape
from tests.support.faulty_writers import WRITER
from tests.support.kafka_streams import config_file, streams_config, values
from tests.support.local_loop import LocalWriter
from tests.support.waiting import wait_until

_ITS_OWN_ALONE: Final = "event.writer != me or ", "entry.definition.writer != me or "


def careless_writer(folder: Path) -> Path:
    """The example, as a writer that knows of no other: it stores and notifies every shape."""
    text = WRITER.read_text()
    for condition in _ITS_OWN_ALONE:
        assert text.count(condition) == 1
        text = text.replace(condition, "")
    program = folder / "careless.py"
    program.write_text(text)
    return program


@contextmanager
def example_writer(config: KafkaConfig, folder: Path, program: Path = WRITER) -> Iterator[None]:
    """The example runs, with its database in ``folder``."""
    file = config_file(config, folder / "kafka.yaml")
    with (folder / "writer.log").open("ab") as log:
        process = subprocess.Popen([sys.executable, program, file, folder / "own.db", "own"], stdout=log, stderr=log)
    try:
        yield
        assert process.poll() is None, (folder / "writer.log").read_text()
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def track(rig: CaptureRig, spark: SparkSession) -> Callable[[], None]:
    """Runs the tracking job on the topics of ``rig`` until it has read everything."""
    topics = rig.config.kafka.topics.by_role()
    config = JobConfig(
        KafkaTransport(rig.config.kafka.bootstrap_servers, {role: topics[role] for role in ROLES}),
        StateConfig(str(rig.folder / "checkpoint"), 2),
        SinkConfig(str(rig.acks), str(rig.folder / "dead_letters")),
        StallConfig(),
        None,
    )
    return lambda: track_flushes(spark, config, Event())


def flushes(rig: CaptureRig) -> list[tuple[str, str]]:
    """The shape and the writer of each notification."""
    return [(event.shape_id, event.writer) for event in map(FlushNotification.from_json, rig.values("flushes"))]


def test_another_writer_confirms_nothing_of_what_write_has_not_stored(
    rig: CaptureRig, track: Callable[[], None], tmp_path: Path
) -> None:
    """``write`` is stopped; a writer of one's own is started, which takes every shape; the slot waits for ``write``."""
    rig.define(shape("theirs", writer="own", snapshot=False), shape("users", snapshot=False))
    rig.start()
    rig.wait(lambda: rig.registry().keys() == {"theirs", "users"}, "the shapes")
    rig.execute_and_wait(INSERT_USER)
    (first,) = commits(rig)
    with example_writer(rig.config.kafka, tmp_path, careless_writer(tmp_path)):
        rig.wait(lambda: {*flushes(rig)} == {("theirs", "own"), ("users", "own")}, "its notifications")
        track()
        rig.wait(lambda: rig.confirmed_lsn() == first - 1, "the slot just before the transaction")
        (letter,) = table_rows(DeltaTable(str(rig.folder / "dead_letters")), ["reason"]).to_pylist()
        assert letter["reason"].startswith("shape 'users' is written by 'log', but 'own' has notified that it is ")
        rig.execute_and_wait(INSERT_USER)
        rig.wait(lambda: len(flushes(rig)) == 4, "its notifications of the next transaction")
    track()
    assert rig.confirmed_lsn() == first - 1
    with closing(LocalWriter(rig, rig.folder / "log", rig.folder / "log_shapes")) as write:

        def has_flushed() -> bool:
            write.step()
            return ("users", "log") in flushes(rig)

        rig.wait(has_flushed, "the notification by write")
        stored = table_rows(DeltaTable(str(rig.folder / "log")), ["shape_id", "tx_offset"]).to_pylist()
        assert {row["shape_id"] for row in stored} == {"users"}
        notified = max(row["tx_offset"] for row in stored)
    track()
    rig.wait(lambda: rig.confirmed_lsn() > notified, "the slot past what write has stored")


def test_the_example_takes_what_the_registry_names_in_any_order(
    broker: Broker, tmp_path: Path, topic_name: Callable[[str], str]
) -> None:
    """A snapshot of another writer's shape, and a shape that has changed hands, come before their entries."""
    config = streams_config(broker.bootstrap_servers, topic_name)
    prefix = config.topics.flushes.removesuffix(".flushes")
    names = {role: f"{prefix}.{role}" for role in SNAPSHOT_ROLES}
    config = replace(config, topics=replace(config.topics, **names))
    TopicAdmin(config).create((*ROLES_OF_CAPTURE, *SNAPSHOT_ROLES))
    end = SnapshotEnd(1, ContainedTransactions(90, ()))
    snapshot = SnapshotEvent("s", "theirs", 1, 0, (SnapshotRow("k", {"id": "1"}),), end)
    publish(config, snapshot, taken_over(100, 99, start=True))
    with example_writer(config, tmp_path):
        wait_until((tmp_path / "own.db").exists, "its database", 60)
        wait_until(lambda: notified(config) == [100], "the notification of what came before its entry", 60)
        wait_until(lambda: rows_shown(tmp_path) == {"theirs"}, "the snapshot of a shape that may be its own", 60)
        publish(config, *(entry(*each) for each in [("ours", 1, "log"), ("ours", 2, "own"), ("theirs", 1, "third")]))
        wait_until(lambda: rows_shown(tmp_path) == set(), "nothing of what is not its own", 60)
        publish(config, taken_over(200, 100))
        wait_until(lambda: notified(config) == [100, 200], "the next notification", 60)
    publish(config, taken_over(300, 200))
    with example_writer(config, tmp_path):
        wait_until(lambda: notified(config)[-1] == 300, "the notification after a start", 60)
    assert rows_shown(tmp_path) == set()


def entry(shape_id: str, incarnation: int, writer: str) -> ShapeEntry:
    definition = ShapeDefinition(shape_id, ("public", "t"), snapshot=True, incarnation=incarnation, writer=writer)
    return ShapeEntry("s", definition, 1, LogOffset(90, 0))


def taken_over(lsn: int, follows: int, *, start: bool = False) -> ShapeChangesEvent:
    """A transaction of the second incarnation of ``ours``."""
    at, commit = LogOffset(lsn, 0), Commit("2026-01-01T00:00:00Z", 1)
    item = LogItem(at, "insert", f"k{lsn}", {"id": "1"}, None)
    return ShapeChangesEvent(
        *("s", "ours", 7, LogOffset(follows, 0), at, start, True, commit, (item,)), incarnation=2, writer="own"
    )


def publish(config: KafkaConfig, *events: AnyEvent) -> None:
    with closing(KafkaPublisher(config)) as publisher:
        for record in map(record_of, events):
            publisher.publish(config.topics.by_role()[record.stream], record.key, record.value)
        publisher.flush(60)


def notified(config: KafkaConfig) -> list[int]:
    """The transactions, in order; each once, although a start notifies again."""
    found = map(FlushNotification.from_json, values(config.bootstrap_servers, config.topics.flushes))
    return [*dict.fromkeys(event.offset.tx_offset for event in found)]


def rows_shown(folder: Path) -> set[str]:
    """The shapes of which the example shows rows."""
    command = [sys.executable, str(WRITER.parent / "dump_sqlite.py"), str(folder / "own.db"), "--rows"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return {json.loads(line)["shape_id"] for line in done.stdout.splitlines()}


def commits(rig: CaptureRig) -> set[int]:
    return {event.last_log_offset.tx_offset for event in rig.changes()}
