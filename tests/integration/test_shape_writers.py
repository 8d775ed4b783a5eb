"""Two writers on the topics of one slot, with all parts real: a shape waits for its own writer alone."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Event
from typing import Final

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from flushtracker.config.job_config import ROLES, JobConfig, SinkConfig, StallConfig, StateConfig
from flushtracker.config.transport import KafkaTransport
from flushtracker.delta.storage import table_rows
from flushtracker.events.stream_events import FlushNotification
from flushtracker.jobs.track.query import track_flushes
from tests.support.capture_rig import INSERT_USER, CaptureRig, shape
from tests.support.faulty_writers import WRITER
from tests.support.kafka_streams import config_file
from tests.support.local_loop import LocalWriter

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
def example_writer(rig: CaptureRig, name: str, program: Path = WRITER) -> Iterator[None]:
    """The example runs on the topics of ``rig``, with a database of its own."""
    file = config_file(rig.config.kafka, rig.folder / "kafka.yaml")
    with (rig.folder / "writer.log").open("ab") as log:
        process = subprocess.Popen([sys.executable, program, file, rig.folder / "own.db", name], stdout=log, stderr=log)
    try:
        yield
        assert process.poll() is None, (rig.folder / "writer.log").read_text()
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


@pytest.mark.long
def test_another_writer_confirms_nothing_of_what_write_has_not_stored(
    rig: CaptureRig, track: Callable[[], None], tmp_path: Path
) -> None:
    """``write`` is stopped; a writer of one's own is started, which takes every shape; the slot waits for ``write``."""
    rig.define(shape("theirs", writer="own", snapshot=False), shape("users", snapshot=False))
    rig.start()
    rig.wait(lambda: rig.registry().keys() == {"theirs", "users"}, "the shapes")
    rig.execute_and_wait(INSERT_USER)
    (first,) = commits(rig)
    with example_writer(rig, "own", careless_writer(tmp_path)):
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


def commits(rig: CaptureRig) -> set[int]:
    return {event.last_log_offset.tx_offset for event in rig.changes()}
