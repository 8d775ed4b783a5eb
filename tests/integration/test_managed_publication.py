"""Capture with a publication of its own: it publishes its shapes' tables alone, and nothing is missed or broken."""

import signal
from contextlib import closing
from typing import Final

import pytest

from flushtracker.errors import PostgresError
from flushtracker.local.postgres import LocalPostgres
from flushtracker.postgres.connection import rows
from flushtracker.wal.mvcc_snapshot import MvccSnapshot
from tests.support.capture_rig import INSERT_USER, USERS, CaptureRig, RigOn, shape
from tests.support.processes import end_in_order

PUBLISHED: Final = "SELECT prrelid::regclass::text FROM pg_publication_rel ORDER BY 1"
TABLE: Final = "CREATE TABLE t (id int PRIMARY KEY, v text)"
LEGACY: Final = "CREATE TABLE legacy (id int NOT NULL UNIQUE, v text)"


@pytest.fixture
def rig(postgres: LocalPostgres, rig_on: RigOn) -> CaptureRig:
    """A shape on one of three tables; no topics, publication or slot."""
    rig = rig_on(postgres)
    postgres.execute(USERS, TABLE, LEGACY, "INSERT INTO legacy VALUES (1)")
    rig.define(shape("users"))
    return rig


def published(rig: CaptureRig) -> list[str]:
    return [name for (name,) in rig.server.execute(PUBLISHED)]


def test_capture_breaks_no_update_of_an_application(rig: CaptureRig) -> None:
    """PostgreSQL refuses UPDATE and DELETE on a published table without a replica identity.

    A shape on such a table waits, with the statement that gives it one, and begins by itself once that was run.
    """
    process = rig.start_created()
    rig.server.execute("UPDATE legacy SET v = 'x'")
    rig.define(shape("users"), shape("legacy", "public.legacy"))
    rig.wait(lambda: "shapes not added yet shape_ids=legacy" in rig.log(), "the statement")
    rig.server.execute("UPDATE legacy SET v = 'y'", INSERT_USER)
    assert published(rig) == ["users"]
    statement = rig.log().partition(" statement=")[2].splitlines()[0]
    assert statement == 'ALTER TABLE "public"."legacy" REPLICA IDENTITY USING INDEX "legacy_id_key"'
    rig.server.execute(statement)
    rig.wait(lambda: "legacy" in rig.registry(), "the shape")
    rig.execute_and_wait("UPDATE legacy SET v = 'z'")
    assert published(rig) == ["legacy", "users"]
    assert (rig.operations("users"), rig.operations("legacy")) == (["insert"], ["update"])
    end_in_order(process)


def test_a_new_source_has_what_is_written_after_its_slot_was_created(rig: CaptureRig) -> None:
    """The tables are in the publication before."""
    rig.define(shape("users", snapshot=False), shape("t", "public.t", snapshot=False))
    end_in_order(rig.start_created())
    assert {entry.starts_after for entry in rig.registry().values()} == {rig.registry()["t"].starts_after}
    created = rig.log().index("created slot shapes")
    assert all(rig.log().index(f"added to the publication table=public.{name}") < created for name in ("users", "t"))


def test_a_shape_on_a_new_table_misses_nothing_of_an_open_transaction(rig: CaptureRig) -> None:
    """What it wrote before the table was published is not sent, so the snapshot must have it."""
    process = rig.start_created()
    with closing(rig.server.connect()) as writer:
        rows(writer, "BEGIN")
        rows(writer, "INSERT INTO t VALUES (1)")
        rig.define(shape("users"), shape("t", "public.t"), shape("log", "public.t", snapshot=False))
        rig.wait(lambda: "t" in published(rig), "the table")
        rows(writer, "INSERT INTO t VALUES (2)")
        rig.execute_and_wait("INSERT INTO t VALUES (10)")
        assert not {"t", "log"} & rig.registry().keys()
        rows(writer, "COMMIT")
    rig.wait(lambda: "t" in rig.registry() and rig.registry()["t"].starts_visible, "the shape's start")
    ((text,),) = rig.server.execute("SELECT txid_current_snapshot()::text")
    first = {id_ for (id_,) in rig.server.execute("SELECT id FROM t")}
    rig.execute_and_wait("INSERT INTO t VALUES (11)")
    end_in_order(process)
    contained = MvccSnapshot.parse(text)
    later = [
        int(item.value["id"] or "")
        for part in rig.changes()
        if part.shape_id == "t" and not contained.sees(part.xid)
        for item in part.items
        if item.value
    ]
    assert sorted([*first, *later]) == [1, 2, 10, 11]
    assert [item.value["id"] for item in rig.items("log") if item.value] == ["11"]


def test_the_table_of_the_last_shape_leaves_the_publication(rig: CaptureRig) -> None:
    """Not before; and after that an application may drop its key. A shape that ends counts as removed."""
    rig.define(shape("users"), shape("one", "public.t"), shape("two", "public.t"))
    process = rig.start_created()
    rig.define(shape("users"), shape("two", "public.t"))
    rig.wait(lambda: rig.registry()["one"].removed_at is not None, "the removal")
    rig.execute_and_wait("INSERT INTO t VALUES (1)")
    assert published(rig) == ["t", "users"]
    rig.server.execute("ALTER TABLE t DROP CONSTRAINT t_pkey")
    rig.wait(lambda: published(rig) == ["users"], "the publication without the table")
    assert "the key of table public.t" in (rig.registry()["two"].ended_because or "")
    rig.execute_and_wait("UPDATE t SET v = 'x'")
    assert (rig.operations("one"), rig.operations("two")) == ([], ["insert"])
    end_in_order(process)


def test_a_shape_that_replaces_another_one_keeps_its_table_published(rig: CaptureRig) -> None:
    """Its snapshot and its changes have all; the table is not taken out and added again."""
    rig.define(shape("users"), shape("one", "public.t"))
    process = rig.start_created()
    rig.define(shape("users"), shape("two", "public.t", snapshot=False), allow_removing=1)
    rig.wait(lambda: "two" in rig.registry(), "the other shape")
    rig.execute_and_wait("INSERT INTO t VALUES (1)")
    end_in_order(process)
    assert rig.log().count("added to the publication table=public.t") == 1
    assert "taken out" not in rig.log()
    assert rig.operations("two") == ["insert"]


@pytest.mark.parametrize("point", ["before the publication is altered", "between the publication and the registry"])
def test_capture_that_is_killed_between_publication_and_registry_does_the_rest(rig: CaptureRig, point: str) -> None:
    """Adding: the shape begins with the next process. Taking out: the table leaves with it, or is gone already."""
    process = rig.start_created()
    end_in_order(process)
    rig.define(shape("users"), shape("t", "public.t"))
    killed = rig.start_process("tests.support.killed_capture", point, "0")
    assert killed.wait(30) == -signal.SIGKILL
    assert "t" not in rig.registry()
    assert published(rig) == (["t", "users"] if point.startswith("between") else ["users"])
    end_in_order(rig.start_created())
    assert published(rig) == ["t", "users"]
    assert rig.registry()["t"].removed_at is None
    rig.define(shape("users"))
    killed = rig.start_process("tests.support.killed_capture", point, "0")
    assert killed.wait(30) == -signal.SIGKILL
    assert rig.registry()["t"].removed_at is not None
    assert published(rig) == (["users"] if point.startswith("between") else ["t", "users"])
    process = rig.start_created()
    rig.wait(lambda: published(rig) == ["users"], "the publication without the table")
    rig.execute_and_wait(INSERT_USER)
    end_in_order(process)
    assert rig.operations("users") == ["insert"]
    assert rig.registry()["users"].removed_at is None


def test_a_role_that_does_not_own_a_table_is_told_the_statement(rig: CaptureRig) -> None:
    """Capture goes on with the others, also over a restart, and takes the shape once somebody has run it."""
    rig.server.execute(
        "CREATE ROLE capture LOGIN REPLICATION",
        "GRANT CREATE ON DATABASE postgres TO capture",
        "ALTER TABLE users OWNER TO capture",
    )
    rig.settings["postgres"]["user"] = "capture"
    rig.define(shape("users"), shape("t", "public.t"), shape("t-too", "public.t"))
    end_in_order(rig.start_created())
    process = rig.start_created()
    rig.execute_and_wait(INSERT_USER)
    line = next(line for line in rig.log().splitlines() if "shapes not added yet" in line)
    head, _, statement = line.partition(" statement=")
    assert "shape_ids=t, t-too table=public.t reason=capture's role is not the owner of table public.t" in head
    rig.server.execute(statement)
    rig.wait(lambda: {"t", "t-too"} <= rig.registry().keys(), "the shapes")
    rig.execute_and_wait("INSERT INTO t VALUES (1)")
    end_in_order(process)
    assert (rig.operations("users"), rig.operations("t")) == (["insert"], ["insert"])


def test_a_publication_of_all_tables_is_left_alone_and_warned_about(
    rig: CaptureRig, caplog: pytest.LogCaptureFixture
) -> None:
    """With the tables on which it makes PostgreSQL refuse updates."""
    rig.server.execute("CREATE PUBLICATION shapes FOR ALL TABLES")
    rig.create_topics()
    rig.server.execute("SELECT pg_create_logical_replication_slot('shapes', 'pgoutput')")
    with pytest.raises(PostgresError, match="does not have a replica identity"):
        rig.server.execute("UPDATE legacy SET v = 'x'")
    rig.capture_once()
    assert "publication=shapes tables=1 names=public.legacy" in caplog.text
    assert rig.server.execute("SELECT puballtables FROM pg_publication") == [(True,)]
    assert rig.operations("users") == ["insert"]


def test_stored_generated_columns_are_in_shapes_and_virtual_ones_are_named(rig: CaptureRig) -> None:
    """PostgreSQL 18 sends stored ones if the publication says so, and never virtual ones; nothing else would say it."""
    generated = "s int GENERATED ALWAYS AS (id * 2) STORED, v int GENERATED ALWAYS AS (id * 3) VIRTUAL"
    rig.server.execute(f"CREATE TABLE g (id int PRIMARY KEY, {generated})")
    rig.define(shape("all", "public.g"), shape("listed", "public.g", columns=["id"]))
    process = rig.start_created()
    rig.wait(lambda: len(rig.registry()) == 2, "the shapes")
    rig.execute_and_wait("INSERT INTO g VALUES (7)")
    assert [item.value for item in rig.items("all")] == [{"id": "7", "s": "14"}]
    assert "shapes on public.g lack its generated columns v: PostgreSQL does not send them" in rig.log()
    end_in_order(process)
