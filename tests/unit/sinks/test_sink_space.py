"""What ``flushtracker sink`` keeps of shapes that have come and gone: nothing, but for what is listed with a reason."""

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import pytest

from flushtracker.events.registry_events import ShapeEntry, TableEntry
from flushtracker.events.snapshot_events import SnapshotEnd, SnapshotEvent, SnapshotRow
from flushtracker.events.stream_events import FlushNotification, ShapeChangesEvent
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.table_binding import ColumnBinding, TableBinding
from flushtracker.sinks.job import feeder
from flushtracker.sinks.job.feed_config import SinkTopic
from flushtracker.sinks.job.feeder import SinkFeeder
from flushtracker.sinks.job.shape_feed import ShapeFeed
from flushtracker.wal.changes import Commit, LogItem
from flushtracker.wal.contained_transactions import ContainedTransactions
from flushtracker.wal.log_offset import LogOffset
from tests.support.key_bindings import ID_KEY
from tests.support.large_containers import containers
from tests.support.sink_world import GROUP, SOURCE, TOPICS, SinkWorld

SHAPES: Final = 18_000
AT_ONCE: Final = 2_000
MANY: Final = AT_ONCE * 2

KEPT: Final = {
    # As in capture: an id stands for its next incarnation alone, so the registry has each for ever, in little more
    # than its id.
    "SinkRegistry._shapes",
    # As in capture: there is no entry that says that a table was dropped.
    "SinkRegistry._tables",
    # An ended shape must not begin again in the topic that has its rows. These are of topics that the configuration
    # names, and no others.
    "StoredFeeds._feeds",
}


class Sink:
    """Shapes on a table each; every other one has no topic."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world = SinkWorld(monkeypatch)
        self.flushed = 0

    def send(self, topic: str | None, *values: str) -> None:
        assert topic is not None
        self.world.kept[topic] += [value.encode() for value in values]

    def play(self, numbers: range) -> None:
        """Each shape's whole life: it gets its snapshot and a change, is flushed, and ends."""
        for entry in (entry for number in numbers for entry in self.entries(number)):
            self.send(TOPICS.shapes, entry.to_json())
        self.world.run()
        for number in numbers:
            self.snapshots(number)
            self.send(TOPICS.shape_changes, change(number, 100, 0).to_json(), change(number, 200, 100).to_json())
        self.world.run(4)
        self.flushed += len(self.world.flushed)
        ended = [replace(self.entries(number)[1], removed_at=LogOffset(300, 0)) for number in numbers]
        self.send(TOPICS.shapes, *(entry.to_json() for entry in ended))
        self.world.run()
        self.send(TOPICS.shapes, *(entry.condensed().to_json() for entry in ended))
        # A program that had hung, and resends.
        self.send(TOPICS.shape_changes, *(change(number, 200, 100).to_json() for number in numbers))
        self.world.run()
        self.world.forget_records()

    def snapshots(self, number: int, incarnation: int = 1) -> None:
        """Publish the shape's snapshot, of one row."""
        row = SnapshotRow('"public"."t"/"1"', {"id": "1"})
        end = SnapshotEnd(1, ContainedTransactions(90, ()))
        event = SnapshotEvent(SOURCE, name(number), 1, 0, (row,), end, incarnation=incarnation)
        self.send(TOPICS.snapshots, event.to_json())

    def entries(self, number: int) -> tuple[TableEntry, ShapeEntry]:
        oid = 20_000 + number
        binding = TableBinding(oid, ("public", "t"), ID_KEY, (ColumnBinding(1, "id", 23, -1, 1),))
        definition = ShapeDefinition(name(number), binding.table, replica="full", snapshot=True, writer="kafka")
        return TableEntry(SOURCE, binding), ShapeEntry(SOURCE, definition, oid, LogOffset(9, 0), starts_visible=True)


def name(number: int) -> str:
    return f"{'s' if number % 2 else 'none'}{number}"


def change(number: int, tx: int, follows: int) -> ShapeChangesEvent:
    """A row with a column that was dropped since."""
    item = LogItem(LogOffset(tx, 0), "insert", '"public"."t"/"1"', {"id": "1", "gone": "x"})
    return ShapeChangesEvent(
        *(SOURCE, name(number), 7, LogOffset(follows, 0), item.offset),
        start=follows == 0,
        has_begin=True,
        commit=Commit("2026-01-01T00:00:00.000000Z", tx + 8),
        items=(item,),
        schema="5c",
        writer="kafka",
    )


def test_a_topic_that_was_created_again_while_the_program_was_down_sets_its_shape_aside(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It has more records than the old one, so only its id tells them apart. The other shape goes on."""
    sink = Sink(monkeypatch)
    for entry in (*sink.entries(1), *sink.entries(3)):
        sink.send(TOPICS.shapes, entry.to_json())
    sink.snapshots(1)
    sink.world.run(4)
    sink.world.ends[f"topic {name(1)}"] += 100
    sink.world.start("second")
    sink.snapshots(3)
    sink.world.run(4)
    (aside,) = [record.getMessage() for record in caplog.records if "set aside" in record.getMessage()]
    assert aside.startswith(f"shape is set aside shape_id={name(1)} topic=topic {name(1)}")
    assert "another one was created" in aside


def test_a_shape_that_gets_its_topic_later_gets_the_changes_from_before(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The stored positions were past its first event, so the next process found a gap, and that shape held the slot."""
    sink = Sink(monkeypatch)
    both = {name(number): SinkTopic(f"topic {name(number)}", (GROUP,), 1) for number in (1, 3)}
    for topics in ({name(1): both[name(1)]}, both):
        sink.world.config = replace(sink.world.config, topics=topics)
        sink.world.start()
        for number in (3, 1):
            table, entry = sink.entries(number)
            sink.send(TOPICS.shapes, table.to_json())
            definition = replace(entry.definition, snapshot=False)
            sink.send(TOPICS.shapes, replace(entry, definition=definition).to_json())
            tx = 100 * len(topics)
            sink.send(TOPICS.shape_changes, change(number, tx, tx - 100).to_json())
        sink.world.run(6)
    assert "gap in the changes" not in caplog.text
    flushed = [FlushNotification.from_json(value) for value in sink.world.flushed.values()]
    assert {each.shape_id: each.offset for each in flushed} == dict.fromkeys(both, LogOffset.last_of(200))


def test_a_shape_that_begins_again_in_the_batch_of_its_records_does_not_get_their_topic(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The records were committed, but not that the topic has them."""
    caplog.set_level(logging.INFO)
    sink = Sink(monkeypatch)
    table, entry = sink.entries(1)
    first = replace(entry, definition=replace(entry.definition, snapshot=False))
    sink.send(TOPICS.shapes, table.to_json(), first.to_json())
    sink.world.run()

    def batch() -> Iterator[tuple[int, int, bytes]]:
        yield 0, 0, change(1, 100, 0).to_json().encode()
        sink.send(TOPICS.shapes, replace(first, definition=replace(first.definition, incarnation=2)).to_json())
        yield 0, 1, replace(change(1, 200, 0), incarnation=2).to_json().encode()

    sink.world.feeder._feed_batch(batch())
    assert caplog.text.count(f"feeding shape shape_id={name(1)}") == 1
    assert caplog.text.count("its topic has rows of an earlier incarnation") == 1
    sink.world.start()
    sink.world.run()
    assert caplog.text.count("its topic has rows of an earlier incarnation") == 2


def test_a_shape_that_begins_again_because_it_could_not_be_written_is_not_read_from_before(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """All shapes waited while the partition was read again, perhaps from days ago."""
    caplog.set_level(logging.INFO)
    sink = Sink(monkeypatch)
    table, entry = sink.entries(1)
    first = replace(entry, definition=replace(entry.definition, snapshot=False, replica="default"))
    sink.send(TOPICS.shapes, table.to_json(), first.to_json())
    sink.send(TOPICS.shape_changes, change(1, 100, 0).to_json())
    sink.world.run()
    assert "has replica: default" in caplog.text
    read_again = list[int]()
    monkeypatch.setattr(sink.world.feeder._changes, "rewind", lambda _, offset: read_again.append(offset))
    second = replace(first.definition, replica="full", incarnation=2)
    sink.send(TOPICS.shapes, replace(first, definition=second).to_json())
    sink.send(TOPICS.shape_changes, replace(change(1, 200, 0), incarnation=2).to_json())
    sink.world.run(6)
    assert read_again == []
    (flushed,) = (FlushNotification.from_json(value) for value in sink.world.flushed.values())
    assert flushed.offset == LogOffset.last_of(200)


def test_a_topic_without_a_leader_counts_nothing_and_its_shape_is_not_set_aside(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its brokers know it, so it is not deleted, however long that takes; it is one line of the log."""
    sink = Sink(monkeypatch)
    table, entry = sink.entries(1)
    first = replace(entry, definition=replace(entry.definition, snapshot=False))
    sink.send(TOPICS.shapes, table.to_json(), first.to_json())
    sink.send(TOPICS.shape_changes, change(1, 100, 0).to_json())
    topic = f"topic {name(1)}"
    sink.world.gone.add(topic)
    sink.world.unanswered["topic", topic] = "no leader"
    sink.world.run(6)
    assert ("set aside" in caplog.text, len(sink.world.flushed)) == (False, 0)
    assert caplog.messages == ["shapes wait for an answer reason=no leader"]
    sink.world.gone.clear()
    sink.world.unanswered.clear()
    sink.world.run()
    assert len(sink.world.flushed) == 1


def test_a_topic_that_is_unknown_now_and_then_is_not_set_aside(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """By a broker that has just started; then it has no leader for long: it was not unknown all the time."""
    sink = Sink(monkeypatch)
    table, entry = sink.entries(1)
    sink.send(
        TOPICS.shapes, table.to_json(), replace(entry, definition=replace(entry.definition, snapshot=False)).to_json()
    )
    sink.send(TOPICS.shape_changes, change(1, 100, 0).to_json())
    topic = f"topic {name(1)}"
    sink.world.gone.add(topic)
    sink.world.run(2)
    sink.world.unanswered["topic", topic] = "no leader"
    sink.world.run(1)
    sink.world.unanswered.clear()
    sink.world.run(1)
    assert "set aside" not in caplog.text


def test_a_snapshot_that_takes_too_long_sets_its_shape_aside(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The brokers ended its transaction, and with that the program, for all shapes and at each start."""
    monkeypatch.setattr(feeder, "_SNAPSHOT_S", 0)
    sink = Sink(monkeypatch)
    for number in (1, 3):
        table, entry = sink.entries(number)
        definition = replace(entry.definition, snapshot=number == 1)
        sink.send(TOPICS.shapes, table.to_json(), replace(entry, definition=definition).to_json())
        sink.send(TOPICS.shape_changes, change(number, 100, 0).to_json())
    sink.snapshots(1)
    sink.world.run(6)
    (aside,) = [message for message in caplog.messages if "set aside" in message]
    assert aside.endswith(
        f"topic=topic {name(1)} reason=its snapshot takes more than 0 minutes; narrow the shape by where or columns, "
        "or define it with snapshot: false"
    )
    assert sink.world.ends[f"topic {name(1)}"] == 0
    assert sink.world.open_readers == 0
    flushed = [FlushNotification.from_json(value) for value in sink.world.flushed.values()]
    assert [each.shape_id for each in flushed] == [name(3)]


def test_the_snapshot_of_a_shape_that_begins_again_is_kept_until_its_entry_is_read(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its earlier incarnation had ended, and the snapshot was forgotten with that: the shape held the slot."""
    caplog.set_level(logging.INFO)
    sink = Sink(monkeypatch)
    table, entry = sink.entries(1)
    again = replace(entry, definition=replace(entry.definition, incarnation=2))
    for each in (table, replace(entry, removed_at=LogOffset(300, 0)), *sink.entries(3)):
        sink.send(TOPICS.shapes, each.to_json())
    sink.snapshots(1, incarnation=2)
    sink.world.run(4)
    sink.send(TOPICS.shapes, again.to_json())
    sink.world.run(4)
    assert f"snapshot published shape_id={name(1)} rows=1" in caplog.text


def test_nothing_is_kept_of_shapes_that_have_come_and_gone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    sink = Sink(monkeypatch)
    for first in range(0, SHAPES, AT_ONCE):
        sink.play(range(first, first + AT_ONCE))
    assert sink.flushed == SHAPES / 2
    found = dict(containers([sink.world.feeder, sink.world.live], MANY))
    assert {name: size for name, size in found.items() if name not in KEPT} == {}
    assert found.keys() == KEPT


def test_entries_of_the_registry_cost_nothing_until_there_is_a_new_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """All were looked at in each second, although most are of other writers, or have ended."""
    caplog.set_level(logging.INFO)
    sink, looked = Sink(monkeypatch), list[str]()
    feed = SinkFeeder._feed

    def counted(loop: SinkFeeder, entry: ShapeEntry) -> ShapeFeed | None:
        looked.append(entry.definition.id)
        return feed(loop, entry)

    monkeypatch.setattr(SinkFeeder, "_feed", counted)
    for number in range(SHAPES // 100):
        table, entry = sink.entries(number)
        other = replace(entry, definition=replace(entry.definition, writer="other"))
        sink.send(TOPICS.shapes, table.to_json(), other.to_json())
    sink.world.run()
    assert set(looked) == {name(number) for number in range(SHAPES // 100)}
    looked.clear()
    sink.world.run(10)
    assert looked == []
    sink.send(TOPICS.shapes, *(entry.to_json() for entry in sink.entries(SHAPES + 1)))
    sink.world.run()
    assert f"feeding shape shape_id={name(SHAPES + 1)}" in caplog.text


def test_a_shape_begins_at_once_where_one_of_another_source_has_ended(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Although its entry comes first in the registry, and nothing more comes."""
    caplog.set_level(logging.INFO)
    sink = Sink(monkeypatch)
    entries = sink.entries(1)
    sink.send(TOPICS.shapes, *(each.to_json() for each in entries))
    sink.world.run()
    later = [replace(each, source="8/1/s") for each in entries]
    sink.send(TOPICS.shapes, *(each.to_json() for each in later))
    sink.world.run()
    assert "has the same shape: set sink.source" in caplog.text
    monkeypatch.setattr(sink.world.feeder._registry, "_shapes", dict(reversed(_shapes(sink).items())))
    caplog.clear()
    sink.send(TOPICS.shapes, replace(entries[1], removed_at=LogOffset(300, 0)).to_json())
    sink.world.run()
    assert f"feeding shape shape_id={name(1)}" in caplog.text


def _shapes(sink: Sink) -> dict[tuple[str, str], ShapeEntry]:
    return sink.world.feeder._registry._shapes
