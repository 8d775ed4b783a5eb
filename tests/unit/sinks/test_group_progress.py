"""What consumer groups have committed as what is flushed: compared with simulated readers, and with a plain oracle."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flushtracker.errors import BrokerError
from flushtracker.sinks.group_progress import (
    GroupLag,
    GroupProgress,
    ProducedMark,
    RecordLoss,
    Span,
    TopicLook,
)
from flushtracker.wal.log_offset import LogOffset

SEEDS = st.integers(min_value=0, max_value=2**32)


def at(tx_offset: int) -> LogOffset:
    return LogOffset.last_of(tx_offset)


def look(
    committed: Mapping[str, Mapping[int, int]], ends: Mapping[int, int], begins: Mapping[int, int] | None = None
) -> TopicLook:
    return TopicLook(begins or {}, committed, ends)


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
    assert progress.holders() == (GroupLag("b", 1, 0, 1),)
    assert progress.look(look({"a": {0: 2, 1: 4}, "b": {0: 1, 1: 2}}, ends)) == at(100)
    assert progress.look(look({"a": {0: 2, 1: 4}, "b": {0: 1, 1: 3}}, ends)) == at(200)


def test_a_group_that_never_committed_holds_the_first_mark_and_is_named() -> None:
    progress = GroupProgress(["a", "silent"])
    progress.produce(at(100), {0: Span(7, 9)})
    assert progress.look(look({"a": {0: 9}}, {0: 9})) is None
    assert progress.holders() == (GroupLag("silent", 0, 7, 9),)


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
    assert progress.holders() == (GroupLag("a", 0, 6, 9),)


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
    assert progress.holders() == (GroupLag("a", 0, 0, 5),)


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


@dataclass
class Topic:
    """Partitions with the numbers of our records at positions; what is missing in between are marks of transactions."""

    records: dict[int, dict[int, int]]
    begins: dict[int, int]
    ends: dict[int, int]


@dataclass
class Reader:
    """A group that reads for itself: a record is read only if it is still there. It commits what it has read."""

    position: dict[int, int]
    committed: dict[int, int] = field(default_factory=dict)
    read: set[int] = field(default_factory=set)

    def turn(self, topic: Topic, rng: Random) -> None:
        partition = rng.choice(list(topic.ends))
        begin, end = topic.begins[partition], topic.ends[partition]
        here = max(begin, self.position[partition])
        until = rng.randint(here, end)
        self.read |= {number for at_, number in topic.records[partition].items() if here <= at_ < until}
        self.position[partition] = until
        match rng.randrange(6):
            case 0:  # A rebalance: another member begins at what was committed, and may commit less.
                self.position[partition] = self.committed.get(partition, begin)
            case 1 if self.committed:
                self.committed[partition] = rng.randint(0, self.committed.get(partition, 0))
            case 2:
                self.committed.pop(partition, None)
            case _:
                self.committed[partition] = until


def play(seed: int, *, deletes: bool, most_marks: int) -> None:
    rng = Random(seed)
    partitions, names = range(rng.randint(1, 3)), "abc"[: rng.randint(1, 3)]
    first = rng.randint(0, 5)
    topic = Topic(
        {each: {} for each in partitions}, dict.fromkeys(partitions, first), dict.fromkeys(partitions, first)
    )
    readers = {name: Reader(dict.fromkeys(partitions, first)) for name in names}
    progress = GroupProgress(names, most_marks=most_marks)
    last, flushed, offsets = 0, 0, list[tuple[int, int]]()
    confirmed: dict[str, set[int]] = {name: set() for name in names}

    def others() -> None:
        for reader in readers.values():
            if rng.random() < 0.5:
                reader.turn(topic, rng)
        if deletes and rng.random() < 0.2:
            each = rng.choice(list(partitions))
            topic.begins[each] = rng.randint(topic.begins[each], topic.ends[each])

    def note(moved: LogOffset | None) -> None:
        nonlocal flushed
        if moved is not None:
            assert moved.tx_offset > flushed
            flushed = moved.tx_offset
        progress.check_invariants()
        due = {number for number, tx in offsets if tx <= flushed}
        for name, reader in readers.items():
            assert due <= reader.read, f"seed {seed}: {name} has not read {due - reader.read}"
        if most_marks > 1_000 and not deletes:  # By definition: all transactions before the first unconfirmed record.
            missing = [tx for number, tx in offsets if any(number not in each for each in confirmed.values())]
            exact = max((tx for tx in range(1, last + 1) if not missing or tx < missing[0]), default=0)
            assert flushed == exact, f"seed {seed}"

    for _ in range(rng.randint(1, 60)):
        others()
        if rng.random() < 0.5:
            last, spans = last + 1, dict[int, Span]()
            for each in rng.sample(list(partitions), rng.randint(0, len(partitions))):
                begin = topic.ends[each]
                for position in range(begin, begin + rng.randint(1, 3)):
                    topic.records[each][position] = len(offsets)
                    offsets.append((len(offsets), last))
                    topic.ends[each] = position + 1
                spans[each] = Span(begin, topic.ends[each])
                topic.ends[each] += rng.randint(0, 1)
            note(progress.produce(at(last), spans))
        if rng.random() < 0.1:
            progress = GroupProgress(names, progress.marks, progress.counted, progress.ends, most_marks)
        if rng.random() < 0.5:
            begins = dict(topic.begins)
            others()
            commits = {name: dict(reader.committed) for name, reader in readers.items()}
            others()
            for name, committed in commits.items():
                confirmed[name] |= {
                    number
                    for each, position in committed.items()
                    for place, number in topic.records[each].items()
                    if place < position
                }
            note(progress.look(TopicLook(begins, commits, dict(topic.ends))))
    if not deletes:
        for reader in readers.values():
            reader.read |= {number for number, _ in offsets}
            reader.committed = dict(topic.ends)
        confirmed = {name: {number for number, _ in offsets} for name in names}
        note(progress.look(look({name: topic.ends for name in names}, topic.ends)))
        assert flushed == last
        assert progress.marks == ()


@given(SEEDS)
def test_flushed_is_exactly_what_all_groups_have_read(seed: int) -> None:
    play(seed, deletes=False, most_marks=10_000)


@given(SEEDS)
def test_merged_marks_never_say_more_than_the_groups_have_read(seed: int) -> None:
    play(seed, deletes=False, most_marks=Random(seed).randint(2, 5))


@given(SEEDS)
def test_whatever_is_deleted_nothing_unread_is_flushed(seed: int) -> None:
    play(seed, deletes=True, most_marks=10_000)


