"""Capture and brokers that accept only 128 KiB: whatever is larger is split, but for a single row."""

from subprocess import TimeoutExpired

import pytest

from flushtracker.events.stream_events import FlushNotification
from flushtracker.local.postgres import LocalPostgres
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.shape_list import is_list
from tests.support.ack_rows import AckRows
from tests.support.capture_rig import CaptureRig, RigOn, shape
from tests.support.simulated_job import SimulatedJob

LIMIT = 131_072
SHAPES = [f"{number}-{'x' * 180}" for number in range(400)]
"""Their ids alone are about as large as an event may be."""


@pytest.fixture
def rig(postgres: LocalPostgres, rig_on: RigOn) -> CaptureRig:
    """Topics that were created for small events; a table, many shapes of its key, and one of all columns."""
    rig = rig_on(postgres)
    rig.settings["kafka"]["max_event_bytes"] = LIMIT
    rig.create()
    postgres.execute("CREATE TABLE users (id int PRIMARY KEY, note text)")
    rig.define(shape("users"), *(shape(shape_id, columns=["id"]) for shape_id in SHAPES))
    return rig


def insert(first: int, last: int, size: int = 5) -> str:
    rows = f"SELECT g, repeat('x', {size}) FROM generate_series({first}, {last}) g"  # noqa: S608  the test's own
    return f"INSERT INTO users {rows}"


def test_transactions_of_many_shapes_and_rows_go_through(rig: CaptureRig) -> None:
    """Lists are split, fragments before a commit held back, a shape's rows are several events; each ack is exact.

    After a restart everything is sent again, in other fragments. A row that is too large ends the one shape with it.
    """
    capture = rig.start()
    last = rig.commit_lsn(insert(1, 3), insert(4, 123, 2_000))
    rig.wait_for_commits(last)
    capture.stop()
    rig.settings["capture"]["max_batch_size"] = 70
    capture = rig.start()
    rig.wait_for_commits(rig.commit_lsn(insert(124, 124, 200_000), insert(125, 125)))
    capture.stop()

    assert max(map(len, [*rig.values("fragments"), *rig.values("shape_changes")])) <= LIMIT
    fragments = rig.fragments()
    assert sum(is_list(event.last_log_offset.op_offset) and event.commit is None for event in fragments) >= 4
    assert all(event.commit is not None or is_list(event.last_log_offset.op_offset) for event in fragments)
    keys = [{"id": str(number)} for number in range(1, 126)]
    for shape_id in (SHAPES[0], SHAPES[-1]):
        assert [item.value for item in rig.items(shape_id)] == keys
    assert [item.value and item.value["id"] for item in rig.items("users")] == [str(n) for n in range(1, 124)]
    registry = rig.registry()
    assert [shape_id for shape_id, entry in registry.items() if entry.removed_at is not None] == ["users"]
    assert "over the limit of 126976 (max_event_bytes, 131072, less the key)" in (registry["users"].ended_because or "")

    job = SimulatedJob(AckRows(), shape_groups=16)
    commits = sorted({event.lsn for event in fragments if event.shapes})
    ends = {part.shape_id: part.items[-1].offset for part in rig.changes() if part.items}
    for event in fragments:
        job.run_batch([event])
    job.run_batch([rig.removals()["users"]])
    assert job.ack_lsn(rig.source()) < commits[0]
    flushes = [FlushNotification(rig.source(), "flushed", shape_id, ends[shape_id], "log") for shape_id in SHAPES]
    job.run_batch(flushes[1:])
    assert job.ack_lsn(rig.source()) < commits[0]
    job.run_batch([FlushNotification(rig.source(), "flushed", SHAPES[0], LogOffset.last_of(commits[-2]), "log")])
    assert commits[-2] <= job.ack_lsn(rig.source()) < commits[-1]
    job.run_batch(flushes[:1])
    assert job.ack_lsn(rig.source()) == max(event.lsn for event in fragments)
    assert job.is_caught_up(rig.source())


def test_a_limit_above_that_of_the_topics_is_refused(rig: CaptureRig) -> None:
    """At the start, and not when the first large event is rejected; the message says what to change."""
    rig.settings["kafka"]["max_event_bytes"] = LIMIT + 1
    process = rig.start_process()
    try:
        assert process.wait(60) != 0
    except TimeoutExpired:
        pytest.fail(rig.log())
    for role in ("fragments", "shapes", "shape_changes"):
        topic = rig.topics[role]
        assert (
            f"topic {topic}: max.message.bytes is 131072, but must be at least max_event_bytes, 131073: " in rig.log()
        )
    assert "Raise it, or lower max_event_bytes to it" in rig.log()
