"""A shape's events on their way into its topic: each change once, snapshots first, truncates alone, over restarts."""

import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from flushtracker.errors import BrokerError, DecodeError, TopicLostError
from flushtracker.events.stream_events import ShapeChangesEvent
from flushtracker.events.topic_rules import TopicFacts
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.key_binding import KeyBinding
from flushtracker.shapes.table_binding import ColumnBinding, TableBinding
from flushtracker.sinks.debezium_records import DebeziumRecords, SinkRecord
from flushtracker.sinks.group_progress import Span, TopicLook
from flushtracker.sinks.job.feed_log import FeedLog
from flushtracker.sinks.job.live_sink_status import LiveSinkStatus
from flushtracker.sinks.job.shape_feed import ShapeFeed
from flushtracker.sinks.stored_feed import POSITIONS_START, StoredFeed, StoredPositions, read_feed, read_positions
from flushtracker.status.sink_status import MOST_LISTED, SinkGroup, SinkShape
from flushtracker.wal.changes import Commit, LogItem, Operation
from flushtracker.wal.contained_transactions import ContainedTransactions
from flushtracker.wal.log_offset import LogOffset
from tests.support.random_wal import RANDOMS

COLUMNS = (ColumnBinding(1, "id", 23, -1, 1),)
TABLE = TableBinding(16_400, ("public", "t"), (KeyBinding(16_401, ("id",), 1, 1, 1, is_primary=True),), COLUMNS)
DEFINITION = ShapeDefinition("t", TABLE.table, replica="full")
RECORDS = DebeziumRecords(DEFINITION, TABLE, name="app", database="")
NEW = StoredFeed(source="s", shape_id="t", incarnation=1, topic="app.t")
GROUP = "sink"


def feed(stored: StoredFeed = NEW, *, partitions: int = 1, waits_for_snapshot: bool = False) -> ShapeFeed:
    """One that has been stored and read again."""
    again = read_feed(stored.to_json())
    return ShapeFeed(again, (GROUP,), TopicFacts("app.t", partitions, {}, "1"), waits_for_snapshot=waits_for_snapshot)


def looked(
    shape: ShapeFeed, committed: Mapping[str, Mapping[int, int]], ends: Mapping[int, int], now_s: float = 0
) -> LogOffset | None:
    return shape.look(TopicLook(dict.fromkeys(ends, 0), committed, ends), now_s)


def event(
    tx: int, *operations: Operation, follows: int = -1, first: int = 0, commit: bool = True, xid: int = 7
) -> ShapeChangesEvent:
    """A fragment of transaction ``tx`` whose operations have the numbers from ``first`` on."""
    items = tuple(
        LogItem(LogOffset(tx, first + number), each, *(("k", {"id": "1"}, None) if each != "truncate" else (None,) * 3))
        for number, each in enumerate(operations)
    )
    return ShapeChangesEvent(
        *("s", "t", xid, LogOffset(max(follows, 0), 0), items[-1].offset if items else LogOffset(tx, first)),
        follows < 0,
        first == 0,
        Commit("2026-01-01T00:00:00Z", tx + 8) if commit else None,
        items,
    )


def offsets(records: list[SinkRecord]) -> list[LogOffset | None]:
    return [record.offset for record in records if record.value is not None]


def test_changes_wait_for_the_snapshot_and_those_that_it_contains_are_left_out() -> None:
    shape = feed(waits_for_snapshot=True)
    assert shape.take(event(100, "insert"), RECORDS, 0).is_held
    assert shape.cursor is None
    shape.take_snapshot(ContainedTransactions(150, ((9, 9),)))
    shape.place({0: Span(0, 2)})
    shape = feed(shape.stored(), waits_for_snapshot=True)
    assert shape.take(event(100, "insert"), RECORDS, 0).records == []
    assert shape.cursor == LogOffset.last_of(100)
    assert offsets(shape.take(event(110, "insert", follows=100, xid=9), RECORDS, 0).records) == [LogOffset(110, 0)]
    assert shape.progress.flushed is None


def test_rows_of_a_snapshot_hold_what_they_contain() -> None:
    shape = feed(waits_for_snapshot=True)
    shape.take_snapshot(ContainedTransactions(150, ()))
    shape.place({0: Span(0, 2)})
    shape.take(event(100, "insert"), RECORDS, 0)
    shape.place({})
    assert shape.is_unread
    assert looked(shape, {GROUP: {0: 1}}, {0: 2}) is None
    assert looked(shape, {GROUP: {0: 2}}, {0: 2}) == LogOffset.last_of(100)


def test_a_gap_takes_nothing_until_the_next_start() -> None:
    shape = feed()
    shape.take(event(100, "insert"), RECORDS, 0)
    taken = shape.take(event(300, "insert", follows=200), RECORDS, 0)
    assert (taken.is_gap, taken.records, shape.cursor) == (True, [], LogOffset.last_of(100))
    assert len(shape.take(event(200, "insert"), RECORDS, 0).records) == 1


def test_a_gap_is_one_line_of_the_log_however_many_events_follow_it(caplog: pytest.LogCaptureFixture) -> None:
    log, shape, after = FeedLog(), feed(), event(300, "insert", follows=200)
    for is_gap in (True, False, True):
        for _ in range(500):
            log.taken(shape, after, is_gap=is_gap)
    assert [record.message.partition(" shape_id")[0] for record in caplog.records] == [
        "gap in the changes of a shape"
    ] * 2


def test_what_thousands_of_shapes_wait_for_is_a_few_lines_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """The longest waits are named, and a group that reads is no wait: each shape was a line, twice a minute."""
    caplog.set_level(logging.INFO)
    at_ms = 1_000_000
    shapes = tuple(
        SinkShape(f"s{n}", f"t{n}", waits_for_snapshot=True, groups=(SinkGroup("g", 7, at_ms - n), SinkGroup("h")))
        for n in range(20_000)
    )
    FeedLog().waiting(shapes, at_ms)
    assert (
        caplog.messages[0]
        == "shapes wait for their snapshots shape_ids=" + ", ".join(f"s{n}" for n in range(10)) + " and 19990 more"
    )
    assert caplog.messages[1] == "shape waits for a group shape_id=s19999 topic=t19999 group=g unread=7"
    assert caplog.messages[-1] == "more shapes wait for groups count=9990"
    assert len(caplog.messages) == 12
    caplog.clear()
    FeedLog().waiting([SinkShape("s", "t", groups=(SinkGroup("g", 7, at_ms - 9_999),))], at_ms)
    assert caplog.messages == []


def test_the_status_lists_those_shapes_first_that_somebody_must_see() -> None:
    """Its size, and the time to make it, are the same for thousands of shapes, whatever their errors say."""
    feeds = [feed(structs.replace(NEW, shape_id=f"s{n:02}"), waits_for_snapshot=n > 30) for n in range(40)]
    feeds[35].problem, live = DecodeError("x" * 1_000_000), LiveSinkStatus()
    live.looked(feeds)
    found = live.read()
    expected = ["s35", *(f"s{n}" for n in range(31, 40) if n != 35), *(f"s{n:02}" for n in range(MOST_LISTED - 9))]
    assert [each.shape_id for each in found.shapes] == expected
    assert found.shape_count == len(live.shapes) == 40
    assert len(json.dumps(found.to_json())) < 10_000


def test_nothing_is_taken_of_an_event_with_a_record_that_is_too_large() -> None:
    """What comes before it in the event is published with it, or not at all; the next process tries again."""
    small = len(next(RECORDS.of_changes(event(100, "insert"), event(100, "insert").items[0], 0)).value or b"")
    limited = DebeziumRecords(DEFINITION, TABLE, name="app", database="", most_bytes=small + 4_200)
    items = (*event(200, "insert").items, LogItem(LogOffset(200, 1), "insert", "k", {"id": "1" * 150}))
    large = replace(event(200, "insert", follows=100), items=items, last_log_offset=items[-1].offset)
    shape = feed()
    shape.take(event(100, "insert"), limited, 0)
    shape.place({0: Span(0, 1)})
    before = shape.stored()
    with pytest.raises(DecodeError, match=r"the record of the row at .* has \d+ bytes, over the limit of"):
        shape.take(large, limited, 0)
    assert (shape.stored(), shape.cursor) == (before, LogOffset.last_of(100))
    assert len(shape.take(large, RECORDS, 0).records) == 2


def test_a_truncate_is_alone_among_the_records_of_several_partitions() -> None:
    """What is before it is read before it is published, and it is read before what is after it, over restarts."""
    shape = feed(partitions=3)
    whole = event(100, "insert", "truncate", "insert")
    taken = shape.take(whole, RECORDS, 0)
    assert (taken.is_held, offsets(taken.records)) == (True, [LogOffset(100, 0)])
    shape.place({2: Span(0, 1)})
    shape = feed(shape.stored(), partitions=3)
    assert shape.take(whole, RECORDS, 0).records == []
    looked(shape, {GROUP: {2: 1}}, {2: 1})
    taken = shape.take(whole, RECORDS, 0)
    assert (taken.is_held, offsets(taken.records)) == (True, [LogOffset(100, 1)])
    shape.place({0: Span(0, 1)})
    shape = feed(shape.stored(), partitions=3)
    assert shape.take(whole, RECORDS, 0).is_held
    assert looked(shape, {GROUP: {0: 1, 2: 1}}, {0: 1, 2: 1}) == LogOffset(100, 1)
    taken = shape.take(whole, RECORDS, 0)
    assert (taken.is_held, offsets(taken.records)) == (False, [LogOffset(100, 2)])
    assert shape.cursor == LogOffset.last_of(100)


def test_a_truncate_in_the_only_partition_waits_for_nobody() -> None:
    taken = feed().take(event(100, "insert", "truncate", "insert"), RECORDS, 0)
    assert (taken.is_held, offsets(taken.records)) == (False, [LogOffset(100, number) for number in range(3)])


@given(RANDOMS, st.integers(1, 2))
def test_each_change_is_published_once_in_order_however_it_is_sent(rng: Random, partitions: int) -> None:
    """Resends that are cut otherwise, crashes before a commit, holds; a truncate has nothing unread beside it."""
    operations: list[Operation] = ["insert", "update", "delete", "truncate"]
    changes = [(tx, [rng.choice(operations) for _ in range(rng.randint(1, 4))]) for tx in range(100, 800, 100)]
    expected = [LogOffset(tx, number) for tx, ops in changes for number in range(len(ops))]
    shape, published, end, place = feed(partitions=partitions), list[LogOffset | None](), 0, 0
    while shape.cursor != LogOffset.last_of(700):
        follows = 0 if place == 0 else changes[place - 1][0]
        tx, ops = changes[place]
        cut = rng.randint(1, len(ops))
        parts = [event(tx, *ops[:cut], follows=follows or -1, commit=cut == len(ops))]
        if cut < len(ops):
            parts.append(event(tx, *ops[cut:], follows=tx, first=cut))
        before, is_held = shape.stored(), False
        records: list[SinkRecord] = []
        for part in parts:
            taken = shape.take(part, RECORDS, 0)
            assert not taken.is_gap
            records += taken.records
            is_held = is_held or taken.is_held
            if is_held:
                break
        if rng.random() < 0.2:
            shape = feed(before, partitions=partitions)
            continue
        for record in records:
            if partitions > 1 and record.value is not None and json.loads(record.value)["op"] == "t":
                assert (len(offsets(records)), before.marks) == (1, [])
        shape.place({0: Span(end, end + len(records))} if records else {})
        published, end = published + offsets(records), end + len(records)
        if is_held:
            looked(shape, {GROUP: {0: end}}, {0: end})
        else:
            place = rng.randint(max(0, place - 1), min(place + 1, len(changes) - 1))
        if rng.random() < 0.3:
            shape = feed(shape.stored(), partitions=partitions)
        place = min(
            place, next((n for n, each in enumerate(changes) if (shape.cursor or LogOffset(0, 0)) < (each[0], 9)), 0)
        )
    assert published == expected
    assert looked(shape, {GROUP: {0: end}}, {0: end}) in (LogOffset.last_of(700), None)
    assert shape.progress.flushed == LogOffset.last_of(700)


def test_a_topic_that_was_replaced_is_named_with_what_to_do() -> None:
    shape = feed()
    shape.take(event(100, "insert"), RECORDS, 0)
    shape.place({0: Span(0, 1)})
    found = (
        r"^topic app.t of shape 't': partition 0 was written up to Kafka offset 1, but now ends at 0: .*another topic"
    )
    with pytest.raises(BrokerError, match=found):
        looked(shape, {}, {0: 0})
    with pytest.raises(BrokerError, match=found):
        shape.place({0: Span(0, 1)})


@pytest.mark.parametrize("text", [b"", b"{}", b'{"v":1,"source":"s"}', b'{"v":1', b"[]"])
def test_a_state_that_cannot_be_read_is_an_error(text: bytes) -> None:
    with pytest.raises(DecodeError, match=r"^state of a Kafka sink"):
        read_feed(text)


def test_a_state_of_a_later_release_is_refused() -> None:
    text = json.dumps(json.loads(NEW.to_json()) | {"v": 2}).encode()
    with pytest.raises(
        DecodeError, match=r"^state of a Kafka sink has v 2, this program reads v 1; upgrade this program"
    ):
        read_feed(text)


def test_positions_are_read_as_they_were_written() -> None:
    positions = StoredPositions({0: 7, 3: 0}, "kafka")
    assert read_positions(positions.to_json()) == positions
    assert StoredPositions({}, "").to_json().startswith(POSITIONS_START)


def test_a_topic_that_its_brokers_do_not_know_for_a_moment_is_not_gone() -> None:
    """One that has just started may answer so. Nothing is counted meanwhile, because records may have been deleted."""
    shape = feed()
    shape.take(event(100, "insert"), RECORDS, 0)
    shape.place({0: Span(0, 1)})
    assert looked(shape, {GROUP: {0: 1}}, {}, now_s=5) is None
    assert shape.look(TopicLook({}, {GROUP: {0: 1}}, {0: 1}), 14.9) is None
    assert looked(shape, {GROUP: {0: 1}}, {0: 1}, now_s=15) == LogOffset.last_of(100)
    shape.take(event(200, "insert", follows=100), RECORDS, 0)
    shape.place({0: Span(1, 2)})
    assert looked(shape, {}, {}, now_s=20) is None
    with pytest.raises(TopicLostError, match=r"the brokers have not known it for 10 s; .*another topic"):
        looked(shape, {}, {}, now_s=30)


def test_a_topic_of_the_same_name_is_another_one_also_if_it_has_more_records() -> None:
    """Its groups' positions are past those of the old one, whose records they may not have read."""
    shape = feed()
    shape.take(event(100, "insert"), RECORDS, 0)
    shape.place({0: Span(0, 1)})
    again = feed(shape.stored())
    assert again.replaced_topic(TopicFacts("app.t", 1, {}, "1")) is None
    assert "another one was created" in str(again.replaced_topic(TopicFacts("app.t", 1, {}, "2")))
