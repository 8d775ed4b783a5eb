"""Up to which LSN the writers' job has taken all changes: what its state may forget, and never too early."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from flushtracker.errors import BrokerError
from flushtracker.events.registry_events import ShapeEntry
from flushtracker.shape_log.shape_writer import LogEnd
from flushtracker.shape_log.write.consumed_changes import ConsumedChanges, ConsumedThread, TopicOffsets
from flushtracker.shape_log.write.log_ends import CommittedWriters, known_ends, unknown_ends
from flushtracker.shape_log.writer_group import WriterGroup, WriterSettings
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.spark.batch_lsns import batch_lsn
from flushtracker.wal.log_offset import LogOffset
from tests.support.shape_transactions import SOURCE


def _removed(lsn: int, source: str = SOURCE) -> ShapeEntry:
    return ShapeEntry(source, ShapeDefinition("a", ("public", "t")), 1, LogOffset(900, 0), LogOffset(lsn, 0))


class Topics:
    """Where two topics end, and up to where batches have read them."""

    def __init__(self) -> None:
        self.ends = {"shape_changes": {0: 7, 1: 0}, "shapes": {0: 3}}
        self.read: dict[str, dict[int, int]] | None = None

    def looks(self) -> TopicOffsets:
        return TopicOffsets(lambda: {role: dict(ends) for role, ends in self.ends.items()}, lambda: self.read)


def test_changes_are_taken_once_both_topics_are_read_up_to_where_they_ended() -> None:
    """And what is published after the look need not be."""
    taken, topics = ConsumedChanges(), Topics()
    taken.note([_removed(1000).condensed()])
    for read in (None, {}, {"shape_changes": {0: 6}, "shapes": {0: 3}}, {"shape_changes": {0: 9}, "shapes": {0: 2}}):
        topics.read = read
        taken.advance(topics.looks())
        assert (taken.lsns, taken.is_pending) == ({}, True)
        topics.ends["shape_changes"][0] += 10
    topics.read = {"shape_changes": {0: 7}, "shapes": {0: 3}}
    taken.advance(topics.looks())
    assert (taken.lsns, taken.is_pending) == ({SOURCE: 1000}, False)


def test_shape_that_was_only_removed_proves_nothing() -> None:
    """Its changes may still be on their way to the topic, and may be sent again."""
    taken = ConsumedChanges()
    taken.note([_removed(1000), replace(_removed(1000), removed_at=None)])
    assert not taken.is_pending


def test_entries_that_are_read_after_the_look_wait_for_the_next() -> None:
    """What they say of the topic was not so when its end was asked for."""
    taken, topics = ConsumedChanges(), Topics()
    taken.note([_removed(1000).condensed(), _removed(500, "other").condensed()])
    taken.advance(topics.looks())
    taken.note([_removed(2000).condensed(), _removed(900).condensed()])
    topics.ends["shape_changes"][0], topics.read = 20, {"shape_changes": {0: 7}, "shapes": {0: 3}}
    taken.advance(topics.looks())
    assert (taken.lsns, taken.is_pending) == ({SOURCE: 1000, "other": 500}, True)
    taken.advance(topics.looks())
    assert taken.lsns[SOURCE] == 1000
    topics.read = {"shape_changes": {0: 20}, "shapes": {0: 3}}
    taken.advance(topics.looks())
    assert (taken.lsns[SOURCE], taken.is_pending) == (2000, False)


def test_failed_look_is_logged_once_and_repeated(caplog: pytest.LogCaptureFixture) -> None:
    """The job goes on, and keeps removed shapes until then; without any it asks nothing."""
    taken, topics, opened = ConsumedChanges(), Topics(), list[int]()

    @contextmanager
    def looks() -> Iterator[TopicOffsets]:
        opened.append(len(opened))
        if len(opened) < 3:
            raise BrokerError("no broker answers")
        yield topics.looks()

    thread = ConsumedThread(taken, looks)
    thread.run_once()
    assert opened == []
    taken.note([_removed(1000).condensed()])
    topics.read = topics.ends
    for _ in range(4):
        thread.run_once()
    assert (taken.lsns, len(opened)) == ({SOURCE: 1000}, 3)
    assert caplog.text.count("removed shapes are kept in the state, retrying: no broker answers") == 1


def test_nothing_is_known_outside_of_a_task() -> None:
    assert batch_lsn(SOURCE) == -1


def test_log_of_a_forgotten_shape_is_no_end_that_the_state_lacks() -> None:
    """It would be kept in the checkpoint, sent to each task, and notified at each start."""
    group = WriterGroup(SOURCE, WriterSettings())
    group.handle_batch([], [], 0, taken_lsn=1000)
    committed = CommittedWriters(7, lambda shape_id: shape_id[:1])
    committed.add("a", group)
    before = LogOffset.before_all()
    ends = {
        (SOURCE, name): LogEnd(LogOffset(lsn, 0), before, 0) for name, lsn in (("a1", 1000), ("a2", 1001), ("b", 9))
    }
    unknown = unknown_ends(ends, committed)
    assert {shape_id for _, shape_id in unknown} == {"a2", "b"}
    assert {shape_id for _, shape_id in known_ends(unknown, committed.durable)} == {"a2", "b"}
