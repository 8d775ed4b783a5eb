"""What the job tells of itself after each batch, at any time, and what the stall log says of it."""

import logging
from collections.abc import Mapping
from typing import Any, cast
from unittest.mock import MagicMock

import pytest
from msgspec.structs import replace
from py4j.protocol import Py4JNetworkError
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from flushtracker.errors import SinkError
from flushtracker.status.job_status import Holder, SourceStatus
from flushtracker.tracking.group_report import GroupReport, PendingShape
from flushtracker.tracking.job.live_job_status import LiveJobStatus
from flushtracker.tracking.job.stall_detector import StallDetector
from flushtracker.tracking.source_tracker import ChainReport, SourceTracker
from flushtracker.wal.log_offset import LogOffset
from tests.support.ack_rows import AckRows, acks_of
from tests.support.sample_source import SampleSource
from tests.support.sample_status import read_back
from tests.support.simulated_job import SimulatedJob, Unreadable

GRACE_MS = 60_000
SOURCE = "7301/1/shapes"
NEXT_SOURCE = "7301/2/shapes"


class Clock:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.now_ms = 0

    def __call__(self) -> int:
        return self.now_ms


def shape(lsn: int, shape_id: str, since_ms: int = 0) -> PendingShape:
    return PendingShape(LogOffset(lsn - 1, 0), shape_id, since_ms, transactions=1)


class Story:
    """A watch with one source, of one group, whose shapes are as each step says."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.watch = LiveJobStatus(GRACE_MS, self.clock)
        self.stalls = StallDetector(self.watch, self.clock)
        self.tracker = SourceTracker()

    def batch(self, now_ms: int, *shapes: PendingShape, last_seen: int = 1_000, removed: tuple[str, ...] = ()) -> None:
        self.clock.now_ms = now_ms
        report = GroupReport(len(shapes), LogOffset(2**40, 0), tuple(sorted(shapes)[:10]), removed)
        self.tracker.apply({"0": report}, ChainReport(LogOffset(last_seen, 0)))
        self.watch.note_sources({SOURCE: self.tracker})

    def source(self, now_ms: int) -> SourceStatus:
        self.clock.now_ms = now_ms
        (source,) = self.watch.read().sources
        return source

    def tick(self, now_ms: int) -> None:
        self.clock.now_ms = now_ms
        self.stalls.tick()


@pytest.fixture
def story() -> Story:
    return Story()


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "flushtracker.tracking.job.stall_detector")
    return caplog


def job() -> SimulatedJob:
    return SimulatedJob(AckRows())


def test_the_holder_is_named_though_the_ack_does_not_move() -> None:
    """The stale answer: two of three shapes of one transaction flush, and the ack table's row still names the first."""
    source, running = SampleSource(), job()
    running.run_batch([source.transaction(2000, "a", "b", "c")], now_ms=5)
    running.run_batch([source.flushed("a", 2000)])
    running.run_batch([source.flushed("b", 2000)])
    (status,) = running.watch.read().sources
    assert acks_of(running.table, SOURCE) == [1998]
    assert (status.ack_lsn, status.last_seen_lsn, status.pending_shapes) == (1998, 2000, 1)
    assert status.holders == (Holder("c", 5, 1, held_bytes=2, ack_if_removed=2000, ack_if_all_removed=2000),)
    assert status.unacknowledged_bytes == 2


def test_removing_a_shape_before_the_first_ack_allows_none(story: Story) -> None:
    """At the least LSN that there is: ``ack_if_removed`` is an LSN all the same."""
    story.batch(0, shape(1, "a"), shape(1, "b"), last_seen=1)
    status = story.source(0)
    assert status.ack_lsn is None
    assert [holder.ack_if_removed for holder in status.holders] == [0, 0]
    assert read_back(story.watch.read()).sources == (status,)


def test_sums_and_batches_are_counted() -> None:
    """Fragments, flushes and dead letters; an idle job stays as it is."""
    source, running = SampleSource(), job()
    assert running.watch.read().batch_id is None
    running.run_batch([source.transaction(2000, "a"), source.transaction(2100)])
    running.run_batch([source.flushed("a", 2000), Unreadable("x", is_fragment=False)])
    status = running.watch.read()
    assert (status.batch_id, status.batches, status.events, status.dead_letters) == (1, 2, 3, 1)
    assert [each.events for each in status.sources] == [3]
    assert status.batch_at_ms is not None
    assert read_back(status) == status


def test_a_batch_that_hangs_is_told_while_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """From its begin to its end, also one that fails; all else in the document is of the batch before."""
    running = job()
    told: list[int | None] = []

    def hang(*_: object) -> None:
        told.append(running.watch.read().batch_running_since_ms)
        raise SinkError("disk full")

    monkeypatch.setattr(running.driver, "process", hang)
    before_ms = running.watch.read().at_ms
    with pytest.raises(SinkError):
        running.driver.handle_batch(cast("DataFrame", MagicMock()), 0)
    (since_ms,) = told
    assert since_ms is not None
    assert before_ms <= since_ms <= running.watch.read().at_ms
    assert running.watch.read().batch_running_since_ms is None


def test_a_restored_driver_tells_what_holds_the_ack_before_its_first_batch() -> None:
    """The committed state has the groups' last reports."""
    source, table = SampleSource(), AckRows()
    first = SimulatedJob(table)
    first.run_batch([source.transaction(2000, "a", "b")], now_ms=5)
    second = SimulatedJob(table, first.checkpoint)
    (before,), (after,) = first.watch.read().sources, second.watch.read().sources
    assert (after, after.events) == (replace(before, events=0), 0)
    assert [holder.shape_id for holder in second.watch.read().sources[0].holders] == ["a", "b"]


def test_a_removal_is_told_once_and_only_of_a_shape_that_was_listed() -> None:
    """The state has no removals, so a restored driver hears of none."""
    source, table = SampleSource(), AckRows()
    running = SimulatedJob(table)
    running.run_batch([source.transaction(2000, "a", "b")])
    running.run_batch([source.removed("a", 2000), source.removed("never seen", 2000), source.flushed("b", 2000)])
    assert running.watch.sources[SOURCE].removed == ("a",)
    running.run_batch([source.transaction(2100)])
    assert running.watch.sources[SOURCE].removed == ("a",)
    assert all('"removed"' not in report for _, report in running.checkpoint.groups())


def test_stalled_shapes_are_counted_at_the_time_of_reading(story: Story) -> None:
    """No batch runs meanwhile, and time passes."""
    story.batch(0, shape(100, "a", since_ms=0), shape(200, "b", since_ms=5_000))
    assert [story.source(now_ms).stalled_shapes for now_ms in (59_999, 60_000, 65_000)] == [0, 1, 2]


def test_waiting_is_since_the_ack_has_moved_last(story: Story) -> None:
    """Not since the shape that holds it now is pending; and nothing is waited for when nothing is pending."""
    story.batch(1_000, last_seen=50)
    assert story.source(1_000).waiting_since_ms is None
    story.batch(2_000, shape(100, "a", since_ms=1_900), shape(200, "b", since_ms=1_900), last_seen=200)
    assert story.source(2_000).waiting_since_ms == 1_900
    story.batch(3_000, shape(100, "a", since_ms=1_900), shape(300, "c", since_ms=3_000), last_seen=300)
    assert story.source(3_000).waiting_since_ms == 1_900
    story.batch(4_000, shape(300, "c", since_ms=3_000), last_seen=300)
    assert story.source(9_000).waiting_since_ms == 4_000
    story.batch(9_000, last_seen=300)
    assert story.source(9_000).waiting_since_ms is None


def fail_over(story: Story, now_ms: int) -> None:
    """The standby is promoted, and capture publishes the slot there, as another source."""
    promoted = SourceTracker()
    promoted.apply({}, ChainReport(LogOffset(2_000, 0)))
    story.clock.now_ms = now_ms
    story.watch.note_sources({SOURCE: story.tracker, NEXT_SOURCE: promoted})


def test_a_source_that_a_failover_has_replaced_is_retired(story: Story) -> None:
    """The old server failed inside a transaction, whose end nobody will send: its shape stays pending for good."""
    story.batch(0, shape(100, "a"))
    assert (story.source(60_000).stalled_shapes, story.source(60_000).waiting_since_ms) == (1, 0)
    fail_over(story, 61_000)
    story.clock.now_ms = 600_000
    old, new = story.watch.read().sources
    assert (old.retired_by, new.retired_by) == (NEXT_SOURCE, None)
    assert (old.pending_shapes, old.stalled_shapes, old.waiting_since_ms) == (1, 0, None)
    story.tracker.apply({"0": GroupReport()}, None)
    assert story.tracker.ack_lsn == 1_000  # The ack stays right, whoever may still ask for it.


def test_the_stalls_of_a_retired_source_are_not_logged_again(story: Story, log: pytest.LogCaptureFixture) -> None:
    """Only that it is retired is, once."""
    story.batch(0, shape(100, "a"))
    story.tick(60_000)
    fail_over(story, 61_000)
    for now_ms in (62_000, 120_000, 240_000, 480_000):
        story.tick(now_ms)
    assert log.messages[1:] == [
        f"source retired source={SOURCE} by={NEXT_SOURCE} pending_shapes=1; nothing waits for them"
    ]


def test_a_stall_is_logged_after_each_doubling_with_its_bytes(story: Story, log: pytest.LogCaptureFixture) -> None:
    """At the grace period, twice and four times; ticks in between are silent."""
    story.batch(0, shape(100, "a"))
    for now_ms in (59_999, 60_000, 60_001, 119_999, 120_000, 180_000, 239_999, 240_000):
        story.tick(now_ms)
    assert log.messages == [
        f"shape stalled source={SOURCE} shape_id=a last_flushed=0/63+0 waited_ms={waited_ms} held_bytes=902"
        for waited_ms in (60_000, 120_000, 240_000)
    ]


def test_a_stall_behind_another_is_logged_at_its_own_time(story: Story, log: pytest.LogCaptureFixture) -> None:
    """The first shape of the group does not hide it."""
    story.batch(0, shape(100, "a", since_ms=0), shape(200, "b", since_ms=1_000))
    story.tick(60_999)
    story.tick(61_000)
    assert ["shape_id=a" in log.messages[0], "shape_id=b" in log.messages[1], len(log.messages)] == [True, True, 2]
    assert "held_bytes=802" in log.messages[1]


def test_the_end_of_a_stall_says_whether_the_shape_was_removed(story: Story, log: pytest.LogCaptureFixture) -> None:
    """Its writer flushes again, or its owner has taken it out."""
    story.batch(0, shape(100, "a"), shape(100, "b"), shape(100, "c"))
    story.tick(60_000)
    log.clear()
    story.batch(60_000, shape(200, "a", since_ms=60_000), shape(100, "c"), removed=("b",))
    story.tick(60_100)
    assert log.messages == [
        f"shape no longer stalled source={SOURCE} shape_id=a was_at=0/63+0 cause=flushed",
        f"shape no longer stalled source={SOURCE} shape_id=b was_at=0/63+0 cause=removed",
    ]


def test_a_stall_that_others_push_out_of_the_list_has_not_ended(story: Story, log: pytest.LogCaptureFixture) -> None:
    """Ten other shapes join a transaction of which it has flushed a part. Where the list reaches it, all is told."""
    late = PendingShape(LogOffset(100, 3), "late", 0, 1)
    story.batch(0, late)
    story.tick(60_000)
    log.clear()
    others = [shape(100, f"s{number}", since_ms=60_000) for number in range(10)]
    story.batch(60_000, late, *others)
    story.tick(60_100)
    assert log.messages == []
    story.batch(60_200, *others[:2])
    story.tick(60_300)
    assert log.messages == [f"shape no longer stalled source={SOURCE} shape_id=late was_at=0/64+3 cause=flushed"]


class Query:
    """What the watch asks of Spark's query."""

    def __init__(self, progress: Mapping[str, Any] | None = None, *, is_idle: bool = False) -> None:
        self.isActive = True
        self.lastProgress = progress
        message = "Waiting for data to arrive" if is_idle else "Processing new data"
        self.status = {"message": message, "isTriggerActive": not is_idle}


class LostQuery:
    """A query whose JVM is gone."""

    @property
    def lastProgress(self) -> None:  # noqa: N802  Spark's name
        raise Py4JNetworkError


def test_the_job_is_ready_while_its_query_runs() -> None:
    """After a batch, or where there was nothing to read; not before, between two queries, or without a JVM."""
    watch = LiveJobStatus(GRACE_MS)
    progress = {"sources": [], "stateOperators": [{"memoryUsedBytes": 7, "customMetrics": {}}]}
    assert not watch.read().is_ready
    for query, is_ready in (
        (Query(), False),
        (Query(is_idle=True), True),
        (Query(progress), True),
        (LostQuery(), False),
    ):
        with watch.running(cast("StreamingQuery", query)):
            assert watch.read().is_ready == is_ready
        assert not watch.read().is_ready
    with watch.running(cast("StreamingQuery", Query(progress))):
        assert (watch.read().state_bytes, watch.read().records_behind) == (7, None)


def test_a_job_that_was_idle_is_ready_during_its_first_batch() -> None:
    """It does not become unready because data arrives."""
    watch, query = LiveJobStatus(GRACE_MS), Query(is_idle=True)
    with watch.running(cast("StreamingQuery", query)):
        assert watch.read().is_ready
        query.status = Query().status
        assert watch.read().is_ready
        query.isActive = False
        assert not watch.read().is_ready
