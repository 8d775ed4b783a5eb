"""Kafka sinks with all parts real: PostgreSQL, capture, the tracker's core, ``flushtracker sink``, consumer groups."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Final

import pytest

from flushtracker.errors import BrokerError
from flushtracker.local.postgres import LocalPostgres
from tests.support.brokers import Broker, RunningBroker
from tests.support.capture_loop_parts import Tracker
from tests.support.capture_rig import run_in_transaction, shape
from tests.support.published_snapshots import publishing_rig
from tests.support.secured_broker import SecuredBroker
from tests.support.seeds import every, seeds
from tests.support.sink_group import SinkGroup
from tests.support.sink_rig import PARTITIONS, USERS, SinkJudge, SinkRig

STEPS: Final = 50
STATEMENTS: Final = (
    "INSERT INTO users VALUES ({new}, 'eu', 'new')",
    "INSERT INTO users SELECT {new} + n, 'eu', 'many' FROM generate_series(1, 5) n",
    "UPDATE users SET name = name || '.', region = 'us' WHERE id = {old}",
    "UPDATE users SET region = 'eu' WHERE id = {old}",
    "UPDATE users SET id = {new} WHERE id = {old}",
    "DELETE FROM users WHERE id = {old}",
)


@pytest.fixture
def sink(
    postgres: LocalPostgres, broker: Broker, tmp_path: Path, topic_name: Callable[[str], str]
) -> Iterator[SinkRig]:
    """A capture that has started, and a program with two groups, which has not."""
    with publishing_rig(postgres, broker, tmp_path, topic_name, USERS) as publishing:
        sink = SinkRig(publishing, (topic_name("a"), topic_name("b")))
        try:
            yield sink
        finally:
            sink.close()


def change(sink: SinkRig, rng: Random, step: int) -> None:
    """A transaction of some changes, at times with a truncate among them."""
    new, old = 100 + 40 * step, rng.choice([*range(1, 11), *range(100, 140 + 40 * step, 10)])
    statements = [
        rng.choice(STATEMENTS).format(new=new + 10 * number, old=old + number) for number in range(rng.randint(1, 3))
    ]
    if step % 16 == 8:
        statements.insert(rng.randint(0, len(statements)), "TRUNCATE users")
    run_in_transaction(sink.rig.server, statements)


@every(3, 0)
@pytest.mark.parametrize("seed", seeds(1))
def test_slot_waits_for_the_stores_of_all_groups_under_kills(sink: SinkRig, seed: int) -> None:
    """The program and the sinks are killed at random. No store lacks what the slot has confirmed, and each change is
    in the topic once.
    """
    rng = Random(seed)  # noqa: S311
    sink.define(snapshot=True)
    sink.rig.server.execute("UPDATE users SET name = 'before' WHERE id = 3")
    snapshot = sink.take_snapshot()
    judge = SinkJudge(sink, snapshot)
    sink.start()
    for step in range(STEPS):
        change(sink, rng, step)
        for group in sink.groups:
            if rng.random() < 0.5:
                group.step(rng.randint(1, 20), commits=rng.random() < 0.8)
            if rng.random() < 0.1:
                group.kill()
        if rng.random() < 0.15:
            sink.kill()
            sink.start(waits=rng.random() < 0.5)
        judge.check()
    sink.rig.execute_and_wait("INSERT INTO users VALUES (99999, 'eu', 'last')")
    judge.finish()
    other = sink.new_group(f"{sink.groups[0].name}-other")
    everything = set[tuple[int, int]]().union(*judge.due().values())
    sink.rig.wait(lambda: other.step() or everything <= set(other.stored), "the whole topic", 60)
    while other.step():
        pass
    other.kill()
    assert len(other.stored) == len(set(other.stored))
    assert len(other.snapshot) == len(set(other.snapshot)) == snapshot.rows


def test_a_silent_group_holds_the_slot_and_is_named(sink: SinkRig) -> None:
    """Until it commits; after records that it had not read were deleted, for good."""
    sink.rig.server.execute("DELETE FROM users")
    sink.define(snapshot=False)
    judge = SinkJudge(sink, None)
    sink.start()
    sink.rig.execute_and_wait("INSERT INTO users VALUES (11, 'eu', 'new')")
    reads, silent = sink.groups
    sink.rig.wait(lambda: reads.step() or reads.stored, "the record", 60)
    first = max(judge.due())
    sink.rig.wait(lambda: "waits for a group" in sink.log(), "the log", 60)
    (*_, waiting) = (line for line in sink.log().splitlines() if "waits for a group" in line)
    assert f"group={silent.name} unread=" in waiting
    judge.check()
    assert sink.rig.confirmed_lsn() <= first
    judge.finish()

    # What both have read may go, also while the program is down; what one of them has not read may not.
    sink.kill()
    sink.delete_records()
    sink.start()
    sink.rig.execute_and_wait("INSERT INTO users SELECT n, 'eu', 'lost' FROM generate_series(20, 40) n")
    sink.rig.wait(lambda: reads.step() or len(reads.stored) >= 22, "the records", 60)
    last = max(judge.due())
    assert "were deleted" not in sink.log()
    sink.delete_records()
    sink.rig.wait(lambda: "were deleted before a group has read them" in sink.log(), "the error", 60)
    sink.rig.execute_and_wait("INSERT INTO users VALUES (50, 'eu', 'after')")
    sink.rig.wait(lambda: silent.step() or len(silent.stored) >= 2, "what is left", 60)
    sink.kill()
    sink.start()
    sink.rig.wait(lambda: sink.log().count("were deleted before a group") >= 4, "the error after a restart", 60)
    judge.tracker.step()
    assert sink.rig.confirmed_lsn() <= last


def configure_topics(sink: SinkRig, *shapes: str) -> None:
    names = tuple(group.name for group in sink.groups)
    eu = {"topic": sink.topic, "groups": list(names), "partitions": PARTITIONS}
    topics = {"eu": eu, "notes": {"topic": f"{sink.topic}.notes", "groups": [names[0]]}}
    sink.configure(names, topics={shape_id: topics[shape_id] for shape_id in shapes})


def begin_two_shapes(sink: SinkRig, notes: str, *, has_notes: bool = True) -> None:
    """The shape ``eu``, and ``notes`` with another topic, or with none."""
    configure_topics(sink, "eu", *(("notes",) if has_notes else ()))
    sink.rig.server.execute("DELETE FROM users", f"CREATE TABLE notes ({notes})")
    sink.rig.define(
        shape("eu", "public.users", where="region = 'eu'", writer="kafka", replica="full", snapshot=False),
        shape("notes", "public.notes", writer="kafka", replica="full", snapshot=False),
    )
    sink.rig.wait(lambda: len(sink.rig.registry()) == 2, "the shapes")
    sink.start()


def test_a_row_that_is_too_large_as_a_record_sets_only_its_shape_aside(sink: SinkRig) -> None:
    """A record may be longer than its event. The shape waits, and holds the slot; the other one goes on."""
    sink.rig.settings["kafka"]["max_event_bytes"] = 400_000
    begin_two_shapes(sink, "id int PRIMARY KEY, flags boolean[]")
    # In the event an element has 2 bytes, and in the record 5.
    sink.rig.execute_and_wait("INSERT INTO notes VALUES (1, array_fill(true, ARRAY[100000]))")
    sink.rig.wait(lambda: "shape is set aside shape_id=notes" in sink.log(), "the shape set aside", 60)
    sink.rig.execute_and_wait("INSERT INTO users VALUES (11, 'eu', 'new')")
    reads, _ = sink.groups
    sink.rig.wait(lambda: sink.is_running() and (reads.step() or '{"id":11}' in reads.rows), "the record", 60)
    assert sink.log().count("shape is set aside") == 1
    first = min(event.last_log_offset.tx_offset for event in sink.rig.changes() if event.shape_id == "notes")
    tracker = Tracker(sink.rig)
    tracker.step()
    assert sink.rig.confirmed_lsn() <= first


def test_a_shape_gets_all_its_changes_after_its_topic_is_added(sink: SinkRig) -> None:
    """Until then it holds the slot, and the other shape continues."""
    begin_two_shapes(sink, "id int PRIMARY KEY", has_notes=False)
    sink.rig.execute_and_wait("INSERT INTO notes VALUES (1)", "INSERT INTO users VALUES (11, 'eu', 'new')")
    reads, _ = sink.groups
    sink.rig.wait(lambda: sink.is_running() and (reads.step() or reads.rows), "the record", 60)
    sink.rig.wait(lambda: "reason=sink.topics has no topic for it" in sink.log(), "the reason", 60)
    unread = min(event.last_log_offset.tx_offset for event in sink.rig.changes() if event.shape_id == "notes")
    tracker = Tracker(sink.rig)
    tracker.step()
    assert sink.rig.confirmed_lsn() <= unread
    sink.kill()
    configure_topics(sink, "eu", "notes")
    sink.start()
    sink.rig.execute_and_wait("INSERT INTO notes VALUES (2)")
    notes = notes_group(sink)

    def is_confirmed() -> bool:
        for group in sink.groups:
            group.step()
        tracker.step()
        return sink.is_running() and sink.rig.confirmed_lsn() > unread and len(notes.rows) == 2

    sink.rig.wait(is_confirmed, "the slot past the changes", 60)
    assert len(notes.stored) == len(set(notes.stored)) == 2
    assert "gap in the changes" not in sink.log()


def test_a_second_program_ends_the_first_with_the_reason(sink: SinkRig) -> None:
    """Each change is in the topic once."""
    sink.rig.server.execute("DELETE FROM users")
    sink.define(snapshot=False)
    first = sink.start()
    try:
        sink.start()
        sink.rig.execute_and_wait("INSERT INTO users VALUES (11, 'eu', 'new')")
        assert first.wait(60) == BrokerError.exit_code
    finally:
        first.kill()
    assert f"{sink.rig.settings['kafka']['topic_prefix']}.sinks kafka; only one may run" in sink.log()
    sink.rig.execute_and_wait("INSERT INTO users VALUES (12, 'eu', 'new')")
    reads, _ = sink.groups
    sink.rig.wait(lambda: sink.is_running() and (reads.step() or len(reads.rows) == 2), "the records", 60)
    assert len(reads.stored) == len(set(reads.stored))


def check_only_eu_is_set_aside(sink: SinkRig, unread: int) -> None:
    """The topic is created again, or not. The other shape goes on; the slot does not pass the change at ``unread``."""
    sink.rig.execute_and_wait("INSERT INTO users VALUES (13, 'eu', 'last')", "INSERT INTO notes VALUES (1)")
    notes = SinkGroup(sink.rig.settings["kafka"]["bootstrap_servers"], sink.groups[0].name, f"{sink.topic}.notes", 1)
    sink.groups.append(notes)
    sink.rig.wait(lambda: sink.is_running() and (notes.step() or notes.rows), "the other shape", 90)
    assert sink.log().count("shape is set aside shape_id=eu") == sink.log().count("shape is set aside") == 1
    assert "give the shape another topic, and begin it again" in sink.log()
    Tracker(sink.rig).step()
    assert sink.rig.confirmed_lsn() <= unread


@pytest.mark.parametrize("is_running", [True, False])
def test_a_topic_that_is_deleted_before_all_is_read_sets_only_its_shape_aside(sink: SinkRig, is_running: bool) -> None:  # noqa: FBT001
    begin_two_shapes(sink, "id int PRIMARY KEY")
    sink.rig.execute_and_wait("INSERT INTO users VALUES (11, 'eu', 'lost')")
    sink.rig.wait(lambda: sink.groups[0].step() or sink.groups[0].stored, "the record", 60)
    if not is_running:
        sink.kill()
    sink.delete_topic()
    if not is_running:
        sink.start(waits=False)
    sink.rig.wait(lambda: sink.is_running() and "shape is set aside shape_id=eu" in sink.log(), "the reason", 60)
    check_only_eu_is_set_aside(sink, min(event.last_log_offset.tx_offset for event in sink.rig.changes()))


def test_a_topic_that_is_deleted_once_all_is_read_sets_only_its_shape_aside(sink: SinkRig) -> None:
    """The next record finds that it is gone, in the transaction of all shapes."""
    begin_two_shapes(sink, "id int PRIMARY KEY")
    sink.rig.execute_and_wait("INSERT INTO users VALUES (11, 'eu', 'read')")
    read = max(event.last_log_offset.tx_offset for event in sink.rig.changes())
    for group in sink.groups:
        sink.rig.wait(lambda group=group: group.step() or group.stored, "the record", 60)  # type: ignore[misc]
    tracker = Tracker(sink.rig)

    def is_confirmed() -> bool:
        tracker.step()
        return sink.rig.confirmed_lsn() > read

    sink.rig.wait(is_confirmed, "the slot past the record", 60)
    sink.delete_topic()
    sink.rig.execute_and_wait("INSERT INTO users VALUES (12, 'eu', 'new')")
    later = (event.last_log_offset.tx_offset for event in sink.rig.changes())
    check_only_eu_is_set_aside(sink, min(tx for tx in later if tx > read))


def notes_group(sink: SinkRig) -> SinkGroup:
    group = SinkGroup(sink.rig.settings["kafka"]["bootstrap_servers"], sink.groups[0].name, f"{sink.topic}.notes", 1)
    sink.groups.append(group)
    return group


def check_only_notes_is_set_aside(sink: SinkRig, reason: str) -> None:
    """The other shape goes on, and the slot waits for the change that is not in the topic."""
    sink.rig.wait(lambda: sink.is_running() and "shape is set aside shape_id=notes" in sink.log(), "the reason", 60)
    sink.rig.execute_and_wait("INSERT INTO users VALUES (11, 'eu', 'new')")
    reads, _ = sink.groups
    sink.rig.wait(lambda: sink.is_running() and (reads.step() or '{"id":11}' in reads.rows), "the other shape", 90)
    assert "shape is set aside shape_id=eu" not in sink.log()
    assert reason in sink.log()
    Tracker(sink.rig).step()
    unread = max(event.last_log_offset.tx_offset for event in sink.rig.changes() if event.shape_id == "notes")
    assert sink.rig.confirmed_lsn() <= unread


@pytest.mark.parametrize(
    ("name", "refusing", "usual", "statement", "reason"),
    [
        (
            *("max.message.bytes", "1000", str(1 << 26)),
            "INSERT INTO notes SELECT 1, string_agg(md5(n::text), '') FROM generate_series(1, 300) n",
            "Message size too large",
        ),
        # A truncate has no key.
        ("cleanup.policy", "compact", "delete", "TRUNCATE notes", "failed to validate record"),
    ],
)
def test_a_topic_that_refuses_a_record_sets_only_its_shape_aside(
    sink: SinkRig, name: str, refusing: str, usual: str, statement: str, reason: str
) -> None:
    """Once the topic takes it, a start of the program writes it."""
    begin_two_shapes(sink, "id int PRIMARY KEY, note text")
    sink.set(f"{sink.topic}.notes", name, refusing)
    sink.rig.execute_and_wait(statement)
    check_only_notes_is_set_aside(sink, reason)
    sink.kill()
    sink.start()
    sink.rig.execute_and_wait("INSERT INTO users VALUES (12, 'eu', 'new')")
    reads, _ = sink.groups
    sink.rig.wait(lambda: sink.is_running() and (reads.step() or '{"id":12}' in reads.rows), "the other shape", 60)
    assert f"{name} is {refusing}, but must be" in sink.log()
    sink.kill()
    sink.set(f"{sink.topic}.notes", name, usual)
    sink.start()
    notes = notes_group(sink)
    sink.rig.wait(lambda: sink.is_running() and (notes.step() or notes.operations), "the record", 60)
    assert notes.operations == ["t" if statement.startswith("TRUNCATE") else "c"]


@contextmanager
def secured_sink(
    postgres: LocalPostgres,
    secured_broker: SecuredBroker,
    folder: Path,
    topic_name: Callable[[str], str],
    *of_notes: str,
) -> Iterator[tuple[SinkRig, str]]:
    """A program with the ACLs of docs/security.md, and its user; ``of_notes`` are those on the topic of ``notes``."""
    broker = RunningBroker(secured_broker.open_servers)
    with publishing_rig(postgres, broker, folder, topic_name, USERS) as publishing:
        sink = SinkRig(publishing, (topic_name("a"), topic_name("b")))
        topics, notes_topic = publishing.rig.topics, f"{sink.topic}.notes"
        state = topics["shapes"].replace(".shapes", ".sinks")
        acls = {
            *((each, topic) for topic in (sink.topic, state) for each in ("WRITE", "DESCRIBE_CONFIGS", "CREATE")),
            *((each, notes_topic) for each in of_notes),
            *(("DESCRIBE_CONFIGS", topics[role]) for role in ("shapes", "shape_changes", "flushes")),
            *(("READ", topic) for topic in (topics["shapes"], topics["shape_changes"], topics["snapshots"], state)),
            *(("DESCRIBE", f"group {group.name}") for group in sink.groups),
            ("WRITE", topics["flushes"]),
            ("WRITE", f"transactional_id {state} kafka"),
        }
        user = secured_broker.create_user(acls)
        sink.kafka = {"bootstrap_servers": secured_broker.servers, "options": user.options(secured_broker.ca_file)}
        try:
            yield sink, user.name
        finally:
            sink.close()


@pytest.mark.parametrize("is_described", [True, False])
def test_an_acl_that_is_taken_away_sets_only_its_shape_aside(
    postgres: LocalPostgres,
    secured_broker: SecuredBroker,
    tmp_path: Path,
    topic_name: Callable[[str], str],
    is_described: bool,  # noqa: FBT001
) -> None:
    """WRITE implies DESCRIBE, which looks at the groups need."""
    acls = "WRITE", "DESCRIBE_CONFIGS", "CREATE", *(("DESCRIBE",) if is_described else ())
    with secured_sink(postgres, secured_broker, tmp_path, topic_name, *acls) as (sink, user):
        notes_topic = f"{sink.topic}.notes"
        begin_two_shapes(sink, "id int PRIMARY KEY")
        sink.rig.execute_and_wait("INSERT INTO notes VALUES (1)")
        notes = notes_group(sink)
        sink.groups.remove(notes)
        sink.rig.wait(lambda: sink.is_running() and (notes.step(commits=False) or notes.rows), "the record", 60)
        secured_broker.take(user, ("WRITE", notes_topic))
        sink.rig.execute_and_wait("INSERT INTO notes VALUES (2)")
        allow = f"allow this user {'WRITE' if is_described else 'DESCRIBE'} on topic {notes_topic}"
        check_only_notes_is_set_aside(sink, allow)
        secured_broker.allow(user, [("WRITE", notes_topic)])
        sink.kill()
        sink.start()
        sink.rig.wait(lambda: sink.is_running() and (notes.step() or len(notes.rows) == 2), "the records", 60)


def test_an_acl_that_is_missing_at_the_start_sets_only_its_shape_aside(
    postgres: LocalPostgres, secured_broker: SecuredBroker, tmp_path: Path, topic_name: Callable[[str], str]
) -> None:
    """Each start names the next one, and the shape gets everything once it has them all."""
    with secured_sink(postgres, secured_broker, tmp_path, topic_name) as (sink, user):
        notes_topic = f"{sink.topic}.notes"
        begin_two_shapes(sink, "id int PRIMARY KEY")
        sink.rig.execute_and_wait("INSERT INTO notes VALUES (1)")
        check_only_notes_is_set_aside(sink, f"allow this user READ, WRITE or DESCRIBE on topic {notes_topic}")
        for given, missing in (("DESCRIBE", "CREATE"), ("CREATE", "DESCRIBE_CONFIGS"), ("DESCRIBE_CONFIGS", "WRITE")):
            sink.kill()
            secured_broker.allow(user, [(given, notes_topic)])
            sink.start()
            allow = f"allow this user {missing} on topic {notes_topic}"
            sink.rig.wait(lambda allow=allow: sink.is_running() and allow in sink.log(), allow, 60)  # type: ignore[misc]
        sink.kill()
        secured_broker.allow(user, [("WRITE", notes_topic)])
        sink.start()
        notes = notes_group(sink)
        sink.rig.wait(lambda: sink.is_running() and (notes.step() or notes.rows), "the record", 60)
        assert "shape is set aside shape_id=eu" not in sink.log()


def test_after_a_new_epoch_the_shape_needs_another_topic_and_no_source(sink: SinkRig) -> None:
    """The old topic has rows that were deleted since, and no record that deletes them."""
    sink.rig.server.execute("DELETE FROM users")
    sink.define(snapshot=False)
    sink.start()
    sink.rig.execute_and_wait("INSERT INTO users VALUES (11, 'eu', 'old')")
    reads, _ = sink.groups
    sink.rig.wait(lambda: reads.step() or reads.stored, "the record", 60)
    sink.capture.stop()
    sink.rig.start(new_epoch=True)
    sink.rig.execute_and_wait("INSERT INTO users VALUES (12, 'eu', 'new')")
    sink.rig.wait(lambda: "reason=its topic has rows of shape" in sink.log(), "the reason", 60)
    sink.kill()
    sink.topic += ".again"
    reads = sink.new_group(f"{reads.name}-again")
    sink.groups.append(reads)
    sink.configure((reads.name,))
    sink.start()
    # The slot had not confirmed the first one, so the new epoch has it, too.
    sink.rig.wait(lambda: sink.is_running() and (reads.step() or len(reads.rows) >= 2), "the records", 60)
    assert set(reads.rows) == {'{"id":11}', '{"id":12}'}
