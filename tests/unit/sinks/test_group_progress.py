"""What consumer groups have committed as what is flushed: compared with simulated readers, and with a plain oracle."""

from collections.abc import Mapping
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flushtracker.errors import BrokerError
from flushtracker.sinks.group_progress import (
    GroupLag,
    GroupProgress,
    RecordLoss,
    Span,
    TopicLook,
)
from flushtracker.wal.log_offset import LogOffset
from tests.support.random_wal import RANDOMS
from tests.support.sink_topic import SinkTopic


def at(tx_offset: int) -> LogOffset:
    return LogOffset.last_of(tx_offset)


def look(
    committed: Mapping[str, Mapping[int, int]], ends: Mapping[int, int], begins: Mapping[int, int] | None = None
) -> TopicLook:
    return TopicLook(dict.fromkeys(ends, 0) | dict(begins or {}), committed, ends)


def again(progress: GroupProgress, groups: tuple[str, ...] = ("a",)) -> GroupProgress:
    """The progress after a restart, from what is stored."""
    return GroupProgress(groups, progress.marks, progress.counted, progress.ends)


def test_without_records_everything_is_flushed_at_once() -> None:
    assert GroupProgress(["a"]).produce(at(100), {}) == at(100)


def test_without_a_group_nothing_says_what_is_durable() -> None:
    with pytest.raises(ValueError, match="no consumer group is named"):
        GroupProgress([])


def test_offset_without_records_waits_for_the_records_before_it() -> None:
    progress = GroupProgress(["a"])
    assert progress.produce(at(100), {0: Span(0, 2)}) is None
    assert progress.produce(at(200), {}) is None
    assert progress.look(look({"a": {0: 1}}, {0: 2})) is None
    assert progress.look(look({"a": {0: 2}}, {0: 2})) == at(200)
    assert progress.marks == ()


def test_the_slowest_group_and_partition_decide() -> None:
    progress = GroupProgress(["a", "b"])
    progress.produce(at(100), {0: Span(0, 1), 1: Span(0, 1)})
    progress.produce(at(200), {1: Span(2, 3)})
    ends = {0: 2, 1: 4}
    assert progress.look(look({"a": {0: 2, 1: 4}, "b": {0: 1}}, ends)) is None
    assert (progress.holders(), [*progress.lags()]) == ({"b"}, [GroupLag("b", 1, 0, 3)])
    assert progress.look(look({"a": {0: 2, 1: 4}, "b": {0: 1, 1: 2}}, ends)) == at(100)
    assert progress.look(look({"a": {0: 2, 1: 4}, "b": {0: 1, 1: 3}}, ends)) == at(200)


def test_a_group_that_never_committed_holds_the_first_mark_and_is_named() -> None:
    progress = GroupProgress(["a", "silent"])
    progress.produce(at(100), {0: Span(7, 9)})
    assert progress.look(look({"a": {0: 9}}, {0: 9})) is None
    assert (progress.holders(), [*progress.lags()]) == ({"silent"}, [GroupLag("silent", 0, 7, 9)])


def test_a_rebalance_that_commits_back_takes_nothing_back() -> None:
    progress = GroupProgress(["a"])
    progress.produce(at(100), {0: Span(0, 5)})
    progress.produce(at(200), {0: Span(5, 9)})
    assert progress.look(look({"a": {0: 5}}, {0: 9})) == at(100)
    assert progress.look(look({"a": {0: 2}}, {0: 9})) is None
    assert progress.flushed == at(100)
    assert progress.look(look({"a": {0: 9}}, {0: 9})) == at(200)


def test_a_deleted_group_stays_where_it_was_counted() -> None:
    progress = GroupProgress(["a"])
    progress.produce(at(100), {0: Span(0, 5)})
    progress.produce(at(200), {0: Span(5, 9)})
    progress.look(look({"a": {0: 6}}, {0: 9}))
    assert progress.look(look({}, {0: 9})) is None
    assert again(progress).look(look({}, {0: 9})) is None
    assert progress.flushed == at(100)
    assert (progress.holders(), [*progress.lags()]) == ({"a"}, [GroupLag("a", 0, 6, 9)])


def test_records_that_were_deleted_unread_are_no_progress_though_the_group_continues_after_them() -> None:
    """Its reader resets itself to the beginning, and commits there; also after a restart that is an error."""
    progress = GroupProgress(["a", "b"])
    progress.produce(at(100), {0: Span(0, 5), 1: Span(0, 5)})
    progress.look(look({"a": {0: 2, 1: 5}, "b": {0: 5, 1: 5}}, {0: 5, 1: 5}))
    gone = look({"a": {0: 5, 1: 5}, "b": {0: 5, 1: 5}}, {0: 5, 1: 5}, begins={0: 4, 1: 5})
    for each in (progress, again(progress, ("a", "b"))):
        assert each.look(gone) is None
        assert each.losses == (RecordLoss("a", 0, 2, 4),)
        assert each.look(gone) is None


@pytest.mark.parametrize("absent", ["beginning", "end"])
def test_a_look_that_lacks_a_partition_counts_nothing(absent: str) -> None:
    """Records of it may have been deleted unread: the group's commits would count as progress for ever."""
    progress = GroupProgress(["a"])
    progress.produce(at(100), {0: Span(0, 5)})
    committed = {"a": {0: 5}}
    partly = TopicLook({}, committed, {0: 5}) if absent == "beginning" else TopicLook({0: 4}, committed, {})
    assert progress.look(partly) is None
    assert progress.look(look(committed, {0: 5}, begins={0: 4})) is None
    assert progress.losses == (RecordLoss("a", 0, 0, 4),)


def test_records_deleted_after_all_groups_have_read_them_are_no_loss() -> None:
    progress = GroupProgress(["a"])
    progress.produce(at(100), {0: Span(0, 5)})
    assert progress.look(look({"a": {0: 5}}, {0: 6})) == at(100)
    progress.produce(at(200), {0: Span(6, 8)})
    assert progress.look(look({"a": {0: 5}}, {0: 9}, begins={0: 6})) is None
    assert progress.losses == ()
    assert progress.look(look({"a": {0: 8}}, {0: 9}, begins={0: 6})) == at(200)


def test_a_group_is_not_asked_for_records_from_before_it_was_named() -> None:
    progress = GroupProgress(["a"])
    progress.produce(at(100), {0: Span(0, 5)})
    progress.look(look({"a": {0: 5}}, {0: 5}))
    progress.produce(at(200), {0: Span(5, 6)})
    later = again(progress, ("a", "new"))
    assert later.look(look({"a": {0: 6}}, {0: 6}, begins={0: 5})) is None
    assert later.losses == ()
    assert later.look(look({"a": {0: 6}, "new": {0: 6}}, {0: 6}, begins={0: 5})) == at(200)


def test_a_topic_that_was_replaced_is_an_error_also_while_nothing_is_pending() -> None:
    """The groups' positions are those of the old topic: each new record would count as read at once."""
    progress = GroupProgress(["a"])
    progress.produce(at(100), {0: Span(0, 5)})
    progress.look(look({"a": {0: 5}}, {0: 5}))
    for each in (progress, again(progress)):
        with pytest.raises(BrokerError, match="was written up to Kafka offset 5, but now ends at 0"):
            each.produce(at(200), {0: Span(0, 1)})
        with pytest.raises(BrokerError, match="was written up to Kafka offset 5, but now ends at 3"):
            each.look(look({"a": {0: 5}}, {0: 3}))
    assert progress.marks == ()


def test_a_commit_past_the_end_counts_for_nothing() -> None:
    """Such as one that an operator has made ahead: otherwise all later records would count as read."""
    progress = GroupProgress(["a"])
    progress.produce(at(100), {0: Span(0, 5)})
    assert progress.look(look({"a": {0: 1_000}}, {0: 5})) is None
    assert (progress.holders(), [*progress.lags()]) == ({"a"}, [GroupLag("a", 0, 0, 5)])


def test_marks_are_bounded_and_all_is_flushed_in_the_end() -> None:
    progress = GroupProgress(["a"], most_marks=8)
    for number in range(1_000):
        progress.produce(at(number), {number % 3: Span(number, number + 1)})
        progress.check_invariants()
    assert len(progress.marks) <= 8
    first = progress.marks[0]
    assert first.spans[0].first == 0
    ends = {0: 1_000, 1: 1_000, 2: 1_000}
    assert progress.look(look({"a": {partition: span.end for partition, span in first.spans.items()}}, ends)) == (
        first.offset
    )
    assert progress.look(look({"a": ends}, ends)) == at(999)
    assert progress.marks == ()


@given(RANDOMS)
def test_flushed_is_exactly_what_all_groups_have_read(rng: Random) -> None:
    SinkTopic(rng, most_marks=10_000).play()


@given(RANDOMS, st.integers(2, 5))
def test_merged_marks_never_say_more_than_the_groups_have_read(rng: Random, most_marks: int) -> None:
    SinkTopic(rng, most_marks=most_marks).play()


@given(RANDOMS)
def test_whatever_is_deleted_nothing_unread_is_flushed(rng: Random) -> None:
    SinkTopic(rng, most_marks=10_000, deletes=True).play()
