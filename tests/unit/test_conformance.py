"""The judge of a writer, rule by rule, and the changes that are played to it. The whole trial is tested elsewhere."""

import json
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from flushtracker.config.secret_options import SecretOptions
from flushtracker.conformance import simulated_capture
from flushtracker.conformance.judge import Judge
from flushtracker.conformance.program import write_config
from flushtracker.conformance.simulated_capture import SimulatedCapture
from flushtracker.conformance.simulated_source import WRITER, SimulatedConnection, SimulatedSource
from flushtracker.conformance.subject import Commands, Subject
from flushtracker.errors import ConfigError
from flushtracker.events.registry_events import ShapeEntry, parse_registry_entry
from flushtracker.events.snapshot_events import SnapshotEvent
from flushtracker.events.stream_events import FlushNotification, ShapeChangesEvent
from flushtracker.kafka.kafka_config import KafkaConfig, Topics, load_kafka_config
from flushtracker.kafka.records import record_of
from flushtracker.kafka.topic_reader import ReadRecord
from flushtracker.power_failure.unsynced_disk import UnsyncedDisk
from flushtracker.shape_log.shape_chain import chain_position, cursor_after, new_items
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


def test_what_is_notified_must_be_in_the_dump() -> None:
    """Also inside a transaction; what is stored beyond it may be anything that was sent."""
    judge = sent(100, 200)
    notify(judge, LogOffset(200, 0))
    judge.dumped(dump(*TWO), "after kill 1")
    judge.dumped(dump(*TWO[:3]), "after kill 2")
    assert judge.violations == {}
    judge.dumped(dump(*TWO[:2]), "after kill 3")
    fact = "shape 'users' of s is notified at 0/C8+0, but the item at 0/C8+0 is not in the dump"
    assert judge.violations == {"durable": f"after kill 3, {fact}"}


def test_what_a_power_failure_takes_breaks_a_rule_of_its_own() -> None:
    """A kill alone would not have taken it."""
    judge = sent(100)
    notify(judge, LogOffset(100, 2))
    judge.dumped(dump(TWO[0]), "after kill 1, which left only what was synced", "power")
    fact = "shape 'users' of s is notified at 0/64+2, but the item at 0/64+2 is not in the dump"
    assert judge.violations == {"power": f"after kill 1, which left only what was synced, {fact}"}


def test_nothing_may_be_notified_that_was_not_sent() -> None:
    """It cannot be durable."""
    judge = Judge()
    notify(judge, LogOffset(100, 0))
    assert judge.violations["durable"] == "shape 'users' of s is notified at 0/64+0, before anything was sent"
    judge = sent(100)
    notify(judge, LogOffset.last_of(100))
    assert judge.violations == {}
    notify(judge, LogOffset(101, 0))
    assert judge.violations["durable"].endswith("at 0/65+0, past 0/64+inf, the end of what was sent")


@pytest.mark.parametrize(
    ("lines", "fact"),
    [
        (dump(TWO[0], TWO[0]), "has the item at 0/64+0 after that at 0/64+0"),
        (dump(TWO[1], TWO[0]), "has the item at 0/64+0 after that at 0/64+2"),
        (dump(LogOffset(100, 1)), "the item of shape 'users' of s at 0/64+1 is not as any that was sent"),
        (dump(TWO[0], key="other"), "is not as any that was sent"),
        (dump(TWO[0], value={"id": None}), "is not as any that was sent"),
        (dump(TWO[0], operation="update"), "is not as any that was sent"),
        (dump(TWO[0], shape_id="orders"), "is not as any that was sent"),
    ],
)
def test_each_item_is_stored_once_in_order_as_it_was_sent(lines: Iterable[str], fact: str) -> None:
    """Duplicates, another order, and other contents are each a violation."""
    judge = sent(100, 200)
    judge.dumped(lines, "after kill 1")
    assert list(judge.violations) == ["once"]
    assert fact in judge.violations["once"]


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


def test_readers_do_not_see_a_transaction_without_its_commit() -> None:
    """Even if all items that were sent are stored: more may follow."""
    judge = sent(100)
    judge.sent(replace(transaction(200), commit=None))
    assert seen(judge, *TWO[:2]) is None
    assert "shows a transaction at 0/C8 whose commit it was not sent" in str(seen(judge, *TWO))


def test_readers_see_what_was_sent() -> None:
    """Not something else at the same offset."""
    judge = sent(100)
    judge.seen(dump(*TWO[:2], key="other"), "while it runs")
    assert "is not as any that was sent" in judge.violations["whole"]


def test_a_gap_and_a_removal_excuse_readers_from_what_follows() -> None:
    """What comes after the gap is not stored; of a removed shape nothing has to be."""
    judge = sent(100)
    judge.lost(SHAPE)
    judge.sent(transaction(200))
    notify(judge, LogOffset.last_of(200))
    assert seen(judge, *TWO[:2]) is None
    judge.removed.add(SHAPE)
    assert seen(judge) is None


def test_each_shape_is_said_again_after_a_start() -> None:
    """At its greatest offset or past it; a removed shape need not be."""
    judge = sent(100, 200)
    notify(judge, LogOffset.last_of(200))
    judge.restarted()
    notify(judge, LogOffset.last_of(100))
    assert judge.not_said_again() == ["shape 'users' of s was notified up to 0/C8+inf before"]
    notify(judge, LogOffset.last_of(200))
    assert judge.not_said_again() == []
    judge.restarted()
    judge.removed.add(SHAPE)
    assert judge.not_said_again() == []


def test_what_is_sent_and_not_notified_is_behind() -> None:
    """Up to the last item: a commit that has nothing for the shape needs no notification."""
    judge = sent(100)
    assert judge.behind() == ["shape 'users' of s was sent items up to 0/64+2, notified nothing"]
    judge.sent(replace(transaction(200), items=()))
    notify(judge, LogOffset(100, 2))
    assert judge.behind() == []


@pytest.mark.parametrize(
    ("record", "fact"),
    [
        (ReadRecord(0, b"k", b"{}"), "a record of partition 0 is no flush notification: v is missing"),
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


def test_commands_get_the_paths_as_words_and_in_the_environment(tmp_path: Path) -> None:
    """A path with a space stays one word."""
    script = "import os, sys; print(sys.argv[1:], os.environ['FLUSHTRACKER_CONFIG'], os.environ['SECRET'])"
    found = subject(tmp_path, "writer", f'{sys.executable} -c "{script}" {{config}} --at={{data}}').dump()
    assert found == [f"{[f'{tmp_path}/a b.yaml', f'--at={tmp_path}/data']} {tmp_path}/a b.yaml x"]


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


def test_commands_that_cannot_be_used_are_the_users_errors(tmp_path: Path) -> None:
    """They are named, with the reason."""
    fails = subject(tmp_path, "writer", f"{sys.executable} -c \"import sys; sys.exit('no database')\"")
    with pytest.raises(ConfigError, match=r"^the command .* cannot be used: it exits with 1: no database$"):
        fails.dump()
    with pytest.raises(ConfigError, match=r"^the command no-such-writer cannot be used: .*No such file"):
        subject(tmp_path, "no-such-writer", "dump").start()
    with pytest.raises(ConfigError, match=r"^the command 'a \"b' cannot be split into words: No closing quotation$"):
        subject(tmp_path, 'a "b', "dump")


def test_a_writer_that_exits_is_noticed_and_one_that_is_killed_is_not(tmp_path: Path) -> None:
    """Only the trial may end it."""
    ends = subject(tmp_path, f'{sys.executable} -c "print(5 / 0)"', "dump")
    ends.start()
    while (failure := ends.failure()) is None:
        pass
    assert str(failure).startswith("the writer exited with 1: ZeroDivisionError: division by zero; its log is ")
    ends.kill()
    runs = subject(tmp_path, "sleep 1000", "dump")
    runs.start()
    assert runs.failure() is None
    runs.kill()
    assert runs.failure() is None


def test_the_writers_configuration_has_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Options are in its environment, where the file refers to them."""
    topics = Topics(fragments="a", flushes="b", shapes="c", shape_changes="d")
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
