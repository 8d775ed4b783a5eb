"""The judge of a writer, rule by rule, and the changes that are played to it. The whole trial is tested elsewhere."""

import json
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from flushtracker.config.secret_options import SecretOptions
from flushtracker.errors import ConfigError
from flushtracker.events.records import record_of
from flushtracker.events.registry_events import ShapeEntry, parse_registry_entry
from flushtracker.events.snapshot_events import SnapshotEvent
from flushtracker.events.stream_events import FlushNotification, ShapeChangesEvent
from flushtracker.events.topic_rules import ROLES, SNAPSHOT_ROLES, Topics
from flushtracker.kafka.kafka_config import KafkaConfig, load_kafka_config
from flushtracker.kafka.topic_reader import ReadRecord
from flushtracker.shape_log.shape_chain import chain_position, cursor_after, new_items
from flushtracker.trials.conformance import simulated_capture
from flushtracker.trials.conformance.judge import Judge
from flushtracker.trials.conformance.program import write_config
from flushtracker.trials.conformance.simulated_capture import SimulatedCapture
from flushtracker.trials.conformance.simulated_source import WRITER, SimulatedConnection, SimulatedSource
from flushtracker.trials.conformance.subject import Commands, Subject
from flushtracker.trials.power_failure.unsynced_disk import UnsyncedDisk
from flushtracker.wal.changes import Commit, LogItem
from flushtracker.wal.log_offset import LogOffset
from tests.support.fake_publisher import FakePublisher

SHAPE = ("s", "users")
COMMIT = Commit("2026-01-01T00:00:00.000000Z", 1)


def item(lsn: int, op: int) -> LogItem:
    return LogItem(LogOffset(lsn, op), "insert", "k", {"id": "1"}, None)


def sent(*lsns: int) -> Judge:
    """A judge of a writer that was sent a transaction of two items for each LSN."""
    judge = Judge()
    for lsn in lsns:
        judge.sent(transaction(lsn))
    return judge


def transaction(lsn: int, shape_id: str = "users", writer: str = WRITER) -> ShapeChangesEvent:
    items = item(lsn, 0), item(lsn, 2)
    follows, last = LogOffset.just_before(lsn), LogOffset(lsn, 2)
    return ShapeChangesEvent("s", shape_id, 7, follows, last, False, True, COMMIT, items, writer=writer)  # noqa: FBT003


def notify(judge: Judge, offset: LogOffset, shape_id: str = "users", writer: str = WRITER) -> None:
    record = record_of(FlushNotification("s", "flushed", shape_id, offset, writer))
    judge.read(ReadRecord(0, record.key.encode(), record.value.encode()))


def dump(*offsets: LogOffset, shape_id: str = "users", **changed: object) -> list[str]:
    row = {"source": "s", "shape_id": shape_id, "operation": "insert", "key": "k", "value": {"id": "1"}, **changed}
    return [json.dumps({**row, "offset": offset._asdict()}) for offset in offsets]


TWO = [LogOffset(lsn, op) for lsn in (100, 200) for op in (0, 2)]


@pytest.mark.parametrize("line", ["x", "[]", "{}", '{"offset": 5}', dump(TWO[0])[0].replace('"key"', '"k"')])
def test_a_dump_that_cannot_be_read_is_the_users_error(line: str) -> None:
    """It is no verdict about the writer."""
    with pytest.raises(ConfigError, match=r"^line 1 of the dump is .*, but must be an object with source"):
        sent(100).dumped([line], "after kill 1")


def test_nothing_may_be_notified_past_a_gap_until_it_is_healed() -> None:
    """The other shapes are not concerned, and the shape itself does not count as behind."""
    judge = sent(100)
    judge.lost(SHAPE)
    judge.sent(transaction(300))
    judge.sent(transaction(300, "orders"))
    notify(judge, LogOffset.last_of(100))
    notify(judge, LogOffset(300, 2), "orders")
    assert (judge.violations, judge.behind()) == ({}, [])
    judge.healed(SHAPE)
    assert len(judge.behind()) == 1
    notify(judge, LogOffset(300, 2))
    assert (judge.violations, judge.behind()) == ({}, [])
    judge.lost(SHAPE)
    judge.sent(transaction(500))
    notify(judge, LogOffset(500, 0))
    assert judge.violations == {"gap": "shape 'users' of s is notified at 0/1F4+0, past the gap after 0/12C+inf"}


def seen(judge: Judge, *offsets: LogOffset) -> str | None:
    judge.seen(dump(*offsets), "while it runs")
    return judge.violations.get("whole")


@pytest.mark.parametrize(
    ("notified", "offsets", "fact"),
    [
        (None, [], None),
        (None, TWO[:2], None),
        (None, TWO, None),
        (LogOffset.last_of(100), TWO[:2], None),
        # All that it was sent is durable, but the commit need not be.
        (LogOffset(100, 2), [], None),
        (None, TWO[:1], "shows 1 of the 2 items of the transaction at 0/64"),
        (None, TWO[:3], "shows 1 of the 2 items of the transaction at 0/C8"),
        (None, TWO[2:], "shows a transaction after the one at 0/64, but not that one"),
        (LogOffset.last_of(200), TWO[:2], "is notified at 0/C8+inf, but does not show the transaction at 0/C8"),
    ],
)
def test_readers_see_whole_transactions(notified: LogOffset | None, offsets: list[LogOffset], fact: str | None) -> None:
    """In order, and each one whose end is notified."""
    judge = sent(100, 200)
    if notified is not None:
        notify(judge, notified)
    found = seen(judge, *offsets)
    assert found == (None if fact is None else f"while it runs, shape 'users' of s {fact}")


def test_each_shape_is_said_again_after_a_start() -> None:
    """At its greatest offset or past it; a removed shape need not be."""
    judge = sent(100, 200)
    notify(judge, LogOffset.last_of(200))
    judge.restarted()
    notify(judge, LogOffset.last_of(100))
    assert judge.not_notified_again() == ["shape 'users' of s was notified up to 0/C8+inf before"]
    notify(judge, LogOffset.last_of(200))
    assert judge.not_notified_again() == []
    judge.restarted()
    judge.removed.add(SHAPE)
    assert judge.not_notified_again() == []


@pytest.mark.parametrize(
    ("record", "fact"),
    [
        (
            ReadRecord(0, b"k", b"{}"),
            "a record of partition 0 is no flush notification: flush notification: Object missing required field `v`",
        ),
        (("removed", 0, None), "has type removed, which only capture may publish"),
        (("flushed", 0, b"users"), 'has the key b\'users\', expected b\'["s","users","flushed","conformance"]\''),
        (("flushed", 3, None), "is in partition 3, one before in partition 0"),
    ],
)
def test_a_record_of_another_form_is_a_violation(record: ReadRecord | tuple[str, int, bytes | None], fact: str) -> None:
    """In the compacted topic it would replace another shape's notification, or not its own."""
    judge = sent(100)
    notify(judge, LogOffset(100, 0))
    if not isinstance(record, ReadRecord):
        kind, partition, key = record
        _, right_key, value = record_of(FlushNotification("s", kind, "users", LogOffset(100, 0), WRITER))
        record = ReadRecord(partition, key or right_key.encode(), value.encode())
    judge.read(record)
    assert list(judge.violations) == ["format"]
    assert fact in judge.violations["format"]


@pytest.mark.parametrize("seed", range(100))
def test_a_simulated_source_is_one_that_capture_could_publish(seed: int) -> None:
    """A reader that keeps the rule of the chain takes each item once and finds no gap, over any connections."""
    rng = Random(seed)  # noqa: S311  reproducible
    source = SimulatedSource("s", ["a", "b", "c"], rng)
    cursors: dict[str, LogOffset] = {}
    taken: dict[str, list[LogOffset]] = {}
    for connect in range(5):
        connection = SimulatedConnection(source, rng.randint(0, source.committed) if connect else 0, rng)
        fragments = rng.randrange(40)
        while fragments > 0 or (connect == 4 and not connection.is_at_end()):
            fragments -= 1
            for event in connection.next_events():
                cursor = cursors.get(event.shape_id)
                position = chain_position(event, cursor)
                assert position != "gap"
                if position == "next":
                    items = new_items(event, cursor)
                    taken.setdefault(event.shape_id, []).extend(each.offset for each in items)
                    cursors[event.shape_id] = cursor_after(event)
    for shape_id, offsets in taken.items():
        operations = [part for each in source.transactions for part in each.operations]
        assert offsets == [each.offset for part in operations for each in part.get(shape_id, ())]


def test_simulated_sources_have_what_breaks_writers() -> None:
    """Each kind is among a few connections; a trial without one would prove nothing about it."""
    rng = Random(1)  # noqa: S311  reproducible
    source = SimulatedSource("s", ["a", "b"], rng)
    cursors: dict[str, LogOffset] = {}
    kinds: Counter[str] = Counter()
    for _ in range(20):
        connection = SimulatedConnection(source, rng.randint(max(0, source.committed - 3), source.committed), rng)
        for _ in range(30):
            for event in connection.next_events():
                cursor = cursors.get(event.shape_id)
                position = chain_position(event, cursor)
                dropped = len(event.items) - len(new_items(event, cursor))
                kinds[position] += 1
                kinds["cursor inside the event"] += position == "next" and dropped > 0
                kinds["commit without items"] += event.commit is not None and not event.items
                kinds["part of a transaction"] += event.commit is None
                kinds["ends with a split update"] += bool(event.items) and event.items[-1].offset.op_offset % 2 == 1
                kinds["start inside a transaction"] += event.start and bool(event.items) and not event.commit
                cursors[event.shape_id] = max(cursor_after(event), cursors.get(event.shape_id, LogOffset.before_all()))
    assert min(kinds.values()) >= 3, kinds
    assert "gap" not in kinds


def subject(tmp_path: Path, writer: str, dump_command: str) -> Subject:
    return Subject(
        Commands(writer, dump_command, None), config=tmp_path / "a b.yaml", data=tmp_path / "data", env={"SECRET": "x"}
    )


def test_the_power_fails_with_two_of_three_kills(tmp_path: Path) -> None:
    """Each leaves another state; without a disk that loses anything, none does."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "old").touch()
    disk = UnsyncedDisk(tmp_path / "data", tmp_path / "synced")
    writer = Subject(Commands("writer", "dump", None), config=tmp_path, data=tmp_path / "data", env={}, disk=disk)
    left = []
    for number in range(1, 4):
        (tmp_path / "data" / "new").touch()
        left.append((writer.lose_power(number, Random(1)), (tmp_path / "data" / "new").exists()))  # noqa: S311
    synced, names = ("only what was synced", False), ("all names, but only contents that were synced", True)
    assert left == [synced, names, (None, True)]
    assert subject(tmp_path, "writer", "dump").lose_power(1, Random(1)) is None  # noqa: S311


def test_the_writers_configuration_has_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Options are in its environment, where the file refers to them."""
    topics = Topics(**{role: f"p.{role}" for role in (*ROLES, *SNAPSHOT_ROLES)})
    config = KafkaConfig("k:9092", topics, SecretOptions({"sasl.password": "s3cret", "linger.ms": "5"}))
    file, env = write_config(config, tmp_path / "kafka.yaml")
    assert "s3cret" not in file.read_text()
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    read = load_kafka_config(file)
    assert (read.topics, dict(read.options)) == (topics, {"sasl.password": "s3cret", "linger.ms": "5"})


@pytest.mark.parametrize(
    ("name", "others"), [("conformance", {"log", "another"}), ("own", {"log", "another"}), ("log", {"another"})]
)
def test_shapes_have_the_name_of_the_writer_under_test_and_one_of_each_source_has_another(
    name: str, others: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So ``flushtracker write`` can be tested, whose name is fixed. A third one's shapes have snapshots, too."""
    publisher, judge = FakePublisher(), Judge(name)
    monkeypatch.setattr(simulated_capture, "KafkaPublisher", lambda _: publisher)
    topics = Topics("fragments", "flushes", "shapes", "shape_changes", "snapshots", "snapshots_taken")
    capture = SimulatedCapture(KafkaConfig("unused:9092", topics), judge, Random(1), with_rows=True)  # noqa: S311
    capture.register(1)
    for _ in range(100):
        capture.send_fragment()
    capture.begin_a_shape_again()
    capture.remove_a_shape()
    capture.send_torn_and_whole_snapshots(0)

    def values(topic: str) -> list[str | bytes]:
        return [value for to, value in publisher.values if to == topic]

    events = [ShapeChangesEvent.from_json(value) for value in values("shape_changes")]
    entries = map(parse_registry_entry, values("shapes"))
    named = {(entry.definition.id, entry.definition.writer) for entry in entries if isinstance(entry, ShapeEntry)}
    assert named == {(event.shape_id, event.writer) for event in events}
    assert named == {*((each, name) for each in ("users", 'naïve "q"', "orders")), *(("accounts", of) for of in others)}
    taken = map(SnapshotEvent.from_json, values("snapshots"))
    source, *_ = {event.source for event in events if event.shape_id == "accounts" and event.writer == "another"} & {
        event.source for event in taken if event.shape_id == "accounts" and event.end is not None
    }
    rows = [json.dumps({"source": source, "shape_id": each, "rows": {}}) for each in ("users", "accounts")]
    assert judge.rows_of_others(rows[:1]) == []
    assert judge.rows_of_others(rows) == [f"the rows have shape 'accounts' of {source}, which is another writer's"]
    notify(judge, events[0].last_log_offset, events[0].shape_id, "nobody")
    assert [*judge.violations] == ["own"]


@pytest.mark.parametrize("what", ["notified", "notified in its own name", "stored", "shown", "by another name"])
def test_a_shape_of_another_writer_is_left_alone(what: str) -> None:
    """What is on the same topics for others is neither to be stored nor notified, nor is another name to be used."""
    judge = sent(100)
    judge.sent(transaction(100, "accounts", "log"))
    notify(judge, LogOffset(100, 2))
    judge.dumped(dump(LogOffset(100, 0), LogOffset(100, 2)), "after kill 1")
    judge.seen(dump(LogOffset(100, 0), LogOffset(100, 2)), "after kill 1")
    assert judge.violations == {}
    assert judge.behind() == []
    match what:
        case "notified":
            notify(judge, LogOffset(100, 2), "accounts")
        case "notified in its own name":
            notify(judge, LogOffset(100, 2), "accounts", "log")
        case "stored":
            judge.dumped(dump(*TWO[:2]) + dump(*TWO[:2], shape_id="accounts"), "after kill 2")
        case "shown":
            judge.seen(dump(*TWO[:2]) + dump(*TWO[:2], shape_id="accounts"), "after kill 2")
        case _:
            notify(judge, LogOffset(100, 2), writer="other")
    assert [*judge.violations] == ["own"]
