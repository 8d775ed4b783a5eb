"""Capture with a real server and a real broker: its events while tables and shapes change."""

from threading import Thread

import pytest

from flushtracker.events.records import flush_keys
from flushtracker.local.postgres import LocalPostgres
from tests.support.capture_rig import CaptureRig, RigOn, run_in_transaction, shape
from tests.support.kafka_streams import records

USERS = "CREATE TABLE users (id bigint PRIMARY KEY, region text, bio text)"


@pytest.fixture
def rig(postgres: LocalPostgres, rig_on: RigOn) -> CaptureRig:
    """Topics, publication and slot exist; nothing is captured yet."""
    rig = rig_on(postgres)
    rig.create()
    return rig


def test_rows_of_a_table_without_shapes_keep_their_offsets(rig: CaptureRig) -> None:
    """They are in no fragment, but they are counted: a shape on their table does not change the other rows' offsets."""
    rig.settings["capture"]["max_batch_size"] = 2
    rig.server.execute(USERS, "CREATE TABLE other (id int PRIMARY KEY)")
    rig.define(shape("users"))
    capture = rig.start()
    user, other = "INSERT INTO users VALUES ({0}, 'eu', '')", "INSERT INTO other VALUES ({0}), (-{0})"
    run_in_transaction(rig.server, [text.format(number) for number in (1, 2, 3) for text in (other, user)])
    rig.execute_and_wait()
    rig.define(shape("users"), shape("other", "public.other"))
    rig.wait(lambda: "other" in rig.registry(), "the shape on the other table")
    run_in_transaction(rig.server, [text.format(number) for number in (4, 5, 6) for text in (other, user)])
    rig.execute_and_wait()
    capture.stop()
    users = [item.offset.op_offset for item in rig.items("users")]
    assert users == [4, 10, 16, 4, 10, 16]
    assert [item.offset.op_offset for item in rig.items("other")] == [0, 2, 6, 8, 12, 14]
    ends = [event.last_log_offset.op_offset for event in rig.fragments() if event.shapes or event.commit is None]
    assert ends == [10, 16, 2, 6, 10, 14, 16]


def test_a_partition_is_known_before_other_sessions_can_see_it(rig: CaptureRig) -> None:
    """A commit that waits for a synchronous standby is already sent, while the catalog does not show it yet."""
    rig.server.execute("CREATE TABLE events (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    rig.define(shape("events", "public.events"))
    capture = rig.start()
    rig.execute_and_wait()
    rig.server.execute("ALTER SYSTEM SET synchronous_standby_names = 'absent'", "SELECT pg_reload_conf()")
    statements = ["CREATE TABLE part PARTITION OF events FOR VALUES FROM (0) TO (10)", "INSERT INTO events VALUES (1)"]
    commit = Thread(target=run_in_transaction, args=(rig.server, statements))
    commit.start()
    is_sent = """
    SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'SyncRep')
    AND EXISTS (SELECT FROM pg_stat_replication WHERE sent_lsn >= pg_current_wal_flush_lsn())
    """
    rig.wait(lambda: rig.server.execute(is_sent) == [(True,)], "the commit sent and waiting")
    assert rig.operations("events") == []
    rig.server.execute("ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()")
    commit.join()
    rig.execute_and_wait()
    capture.stop()
    assert rig.operations("events") == ["insert"]
    assert rig.partitions("public.events") == {"public.part"}


def test_a_table_of_a_thousand_columns(rig: CaptureRig) -> None:
    """Close to the most columns that PostgreSQL allows."""
    columns = [f"c{number}" for number in range(1000)]
    values = ", ".join(map(str, range(1000)))
    rig.server.execute(f"CREATE TABLE wide (id int PRIMARY KEY, {', '.join(f'{name} int' for name in columns)})")
    rig.define(shape("wide", "public.wide"))
    capture = rig.start()
    rig.execute_and_wait(f"INSERT INTO wide VALUES (1, {values})")  # noqa: S608  the test's own numbers
    capture.stop()
    (item,) = rig.items("wide")
    assert item.value == {"id": "1"} | {name: str(number) for number, name in enumerate(columns)}


def test_a_shape_added_while_capture_is_down_gets_nothing_that_is_resent(rig: CaptureRig) -> None:
    """Story 15: the tracker has seen those transactions without the shape, so it would not wait for its flushes."""
    rig.server.execute(USERS)
    rig.define(shape("users"))
    capture = rig.start()
    rig.execute_and_wait("INSERT INTO users VALUES (1)")
    capture.stop()
    rig.define(shape("users"), shape("late"))
    capture = rig.start()
    rig.wait(lambda: "late" in rig.registry(), "the shape's entry")
    rig.execute_and_wait("INSERT INTO users VALUES (2)")
    capture.stop()
    first, *_ = [event for event in rig.fragments() if event.xid is not None]
    again = [event for event in rig.fragments() if event.lsn == first.lsn]
    assert len(again) == 2
    assert [[part.shape_id for part in event.shapes] for event in again] == [["users"], ["users"]]
    assert [item.value and item.value["id"] for item in rig.items("late")] == ["2"]


@pytest.mark.parametrize("running", [True, False], ids=["while running", "while down"])
def test_a_shape_deleted_from_the_file_is_removed_past_everything_routed_to_it(rig: CaptureRig, running: bool) -> None:  # noqa: FBT001  a parameter of the test
    """The removal covers what an earlier process has routed; the id is never used again."""
    rig.server.execute(USERS)
    rig.define(shape("users"), shape("gone"))
    capture = rig.start()
    rig.execute_and_wait("INSERT INTO users VALUES (1)")
    if not running:
        capture.stop()
    rig.define(shape("users"))
    if not running:
        capture = rig.start()
    rig.wait(lambda: "gone" in rig.removals(), "the removal")
    rig.execute_and_wait("INSERT INTO users VALUES (2)")
    capture.stop()
    removal = rig.removals()["gone"]
    assert all(item.offset <= removal.offset for item in rig.items("gone"))
    assert len(rig.items("gone")) == 1
    assert rig.registry()["gone"].removed_at == removal.offset
    assert [len(event.shapes) for event in rig.fragments() if event.lsn > removal.offset.tx_offset and event.xid] == [1]
    rig.define(shape("users"), shape("gone"))
    assert "'gone' was removed at" in rig.refusal()


def test_a_removed_shape_is_condensed_once_the_slot_is_confirmed_past_it(rig: CaptureRig) -> None:
    """Its flushes get tombstones, and its entry is short; before that, both stay, since an ack may still need them."""
    rig.server.execute(USERS)
    rig.define(shape("users"), shape("gone"))
    capture = rig.start()
    rig.execute_and_wait("INSERT INTO users VALUES (1)")
    rig.define(shape("users"))
    rig.wait(lambda: "gone" in rig.removals(), "the removal")
    rig.execute_and_wait("INSERT INTO users VALUES (2)")
    rig.acknowledge(rig.removals()["gone"].offset.tx_offset - 1)
    rig.wait(lambda: rig.confirmed_lsn() == rig.removals()["gone"].offset.tx_offset, "what is before the removal")
    capture.stop()
    assert not rig.registry()["gone"].is_condensed
    capture = rig.start()
    rig.execute_and_wait("INSERT INTO users VALUES (3)")
    rig.acknowledge_all()
    rig.wait(lambda: rig.registry()["gone"].is_condensed, "the condensed entry")
    kafka = rig.config.kafka
    found = records(kafka.bootstrap_servers, kafka.topics.flushes).values()
    last = {key: value for partition in found for key, value in partition if '"gone"' in key}
    assert last == dict.fromkeys(flush_keys(rig.source(), "gone", "log"), "")
    capture.stop()
    rig.define(shape("users"), shape("gone"))
    assert "'gone' was removed at" in rig.refusal()


def test_a_changed_definition_under_the_same_id_is_refused(rig: CaptureRig) -> None:
    """At a start and while running: the old definition stays in effect, and the other shapes are added."""
    rig.server.execute(USERS)
    rig.define(shape("users"))
    capture = rig.start()
    rig.execute_and_wait("INSERT INTO users VALUES (1)")
    rig.define(shape("users", where="id < 2"), shape("more"))
    rig.execute_and_wait("INSERT INTO users VALUES (3)")
    capture.stop()
    assert len(rig.items("users")) == 2
    reason = "differs from its registered definition in where; a changed definition needs a new id"
    assert reason in rig.refusal()
    assert (rig.registry()["users"].definition.where, rig.registry()["more"].removed_at) == (None, None)


def test_an_idle_database_sends_keepalives_and_a_commit_exactly_at_wal_end_is_not_lost(rig: CaptureRig) -> None:
    """Story 11 on the wire: a keepalive at `wal_end` never covers a commit record that starts there."""
    rig.server.execute(USERS)
    rig.define(shape("users"))
    capture = rig.start()
    rig.execute_and_wait("INSERT INTO users VALUES (0)")
    connection = rig.server.connect()
    connection.autocommit = False
    with connection.cursor() as cursor:
        exact = 0
        for number in range(1, 60):
            cursor.execute("INSERT INTO users VALUES (%s)", (number,))
            # This flushes the row's record, so that the server can report everything before the commit as sent.
            rig.server.execute("SELECT pg_logical_emit_message(true, '', '')")
            cursor.execute("SELECT pg_current_wal_insert_lsn()::text")
            ((end,),) = cursor.fetchall()
            rig.execute_and_wait()
            connection.commit()
            cursor.execute("SELECT 1")
            wal_end = int(end.split("/")[0], 16) << 32 | int(end.split("/")[1], 16)
            rig.execute_and_wait()
            if any(event.xid is not None and event.lsn == wal_end for event in rig.fragments()):
                exact = wal_end
                break
    connection.close()
    capture.stop()
    assert exact, "no commit record started where the server's WAL had ended"
    keepalives = [event.lsn for event in rig.fragments() if event.xid is None]
    assert exact - 1 in keepalives
    assert exact not in keepalives
