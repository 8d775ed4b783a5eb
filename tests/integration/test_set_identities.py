"""Capture with ``replica_identity: full``: shapes begin that were refused for an identity, and nothing else stops."""

from contextlib import closing
from typing import Final

import pytest

from flushtracker.local.postgres import LocalPostgres
from flushtracker.postgres import full_identity
from flushtracker.postgres.connection import rows
from tests.support.capture_rig import INSERT_USER, USERS, CaptureRig, RigOn, shape
from tests.support.local_loop import LocalLoop
from tests.support.processes import end_in_order
from tests.support.serve_client import Client, run, serving

TABLE: Final = "CREATE TABLE t (id int PRIMARY KEY, v text, w text)"
LEGACY: Final = "CREATE TABLE legacy (id int NOT NULL UNIQUE, v text)"
FILTERED: Final = shape("t", "public.t", where="v = 'x'")
IDENTITY: Final = "SELECT relreplident::text FROM pg_class WHERE relname = 't'"


@pytest.fixture
def rig(postgres: LocalPostgres, rig_on: RigOn, monkeypatch: pytest.MonkeyPatch) -> CaptureRig:
    """A shape on ``users``, and two other tables; no topics, publication or slot."""
    monkeypatch.setattr(full_identity, "_RETRY_S", 0.5)
    rig = rig_on(postgres)
    postgres.execute(USERS, TABLE, LEGACY)
    rig.settings["capture"]["replica_identity"] = "full"
    rig.define(shape("users"))
    return rig


def identity(rig: CaptureRig) -> str:
    ((found,),) = rig.server.execute(IDENTITY)
    return str(found)


def test_a_shape_by_another_column_begins_at_once_and_stays_right(rig: CaptureRig) -> None:
    """An update that takes a row out of it is a delete. A restart alters nothing again; without the key, nor back."""
    process = rig.start_created()
    rig.define(shape("users"), FILTERED, shape("whole", "public.t"), shape("legacy", "public.legacy"))
    rig.wait(lambda: {"t", "whole", "legacy"} <= rig.registry().keys(), "the shapes")
    rig.execute_and_wait(
        *("INSERT INTO t VALUES (1, 'x', 'a')", "UPDATE t SET v = 'y'", "DELETE FROM t"),
        *("INSERT INTO legacy VALUES (1)", "UPDATE legacy SET v = 'z'"),
    )
    end_in_order(process)
    end_in_order(rig.start_created())
    del rig.settings["capture"]["replica_identity"]
    end_in_order(rig.start_created())
    assert rig.operations("t") == ["insert", "delete"]
    assert rig.operations("whole") == ["insert", "update", "delete"]
    assert rig.operations("legacy") == ["insert", "update"]
    for name in ("t", "legacy"):
        assert rig.log().count(f"replica identity set to FULL table=public.{name};") == 1
    assert identity(rig) == "f"
    assert "ended" not in rig.log()


def test_the_first_start_sets_it_before_there_is_a_slot(rig: CaptureRig) -> None:
    """Without the key, that start refuses the shape, and prints the statement."""
    rig.define(shape("users"), FILTERED, shape("legacy", "public.legacy"))
    del rig.settings["capture"]["replica_identity"]
    process = rig.start_process("flushtracker", "capture", "--create")
    assert process.wait(60) == 2
    assert 'ALTER TABLE "public"."t" REPLICA IDENTITY FULL' in rig.log()
    assert identity(rig) == "d"
    rig.settings["capture"]["replica_identity"] = "full"
    process = rig.start_created()
    rig.execute_and_wait("INSERT INTO t VALUES (1, 'x', 'a')", "INSERT INTO legacy VALUES (1)")
    end_in_order(process)
    created = rig.log().index("created slot shapes")
    assert rig.log().index("replica identity set to FULL table=public.t") < created
    assert (rig.operations("t"), rig.operations("legacy")) == (["insert"], ["insert"])


def test_the_first_start_refuses_no_shape_for_a_locked_table(rig: CaptureRig) -> None:
    """A new slot waits for the transaction anyway, and capture sets the identity after that."""
    rig.define(shape("users"), FILTERED)
    with closing(rig.server.connect()) as holder:
        rows(holder, "BEGIN")
        rows(holder, "INSERT INTO public.t VALUES (1, 'x', 'a')")
        process = rig.start_process("flushtracker", "capture", "--create")
        rig.wait(lambda: "created topics" in rig.log(), "the topics")
        assert "replica identity not set table=public.t" in rig.log()
        rows(holder, "COMMIT")
    rig.wait(lambda: "t" in rig.registry(), "the shape", 60)
    end_in_order(process)
    assert identity(rig) == "f"


def test_a_locked_table_stops_nothing_but_its_own_shape(rig: CaptureRig) -> None:
    """The shape that needs the identity begins by itself once the transaction has ended."""
    end_in_order(rig.start_created())
    rig.define(shape("users"), FILTERED)
    with closing(rig.server.connect()) as holder:
        rows(holder, "BEGIN")
        rows(holder, "INSERT INTO public.t VALUES (1, 'x', 'a')")
        capture = rig.start()
        rig.execute_and_wait(INSERT_USER, "INSERT INTO t VALUES (2, 'x', 'b')", INSERT_USER)
        assert rig.operations("users") == ["insert", "insert"]
        (refused,) = capture.loop.status().refused
        assert 'ALTER TABLE "public"."t" REPLICA IDENTITY FULL' in refused.reason
        assert identity(rig) == "d"
        rows(holder, "COMMIT")
    rig.wait(lambda: "t" in rig.registry(), "the shape")
    rig.execute_and_wait("UPDATE t SET v = 'y' WHERE id = 2")
    capture.stop()
    assert rig.operations("t") == ["delete"]
    assert not capture.loop.status().refused


def test_a_table_of_another_role_keeps_its_shape_refused_with_the_statement(rig: CaptureRig) -> None:
    """Capture says why it did not alter the table, and goes on with the others."""
    rig.server.execute("CREATE ROLE plain LOGIN REPLICATION", "CREATE ROLE app")
    rig.server.execute("GRANT CREATE ON DATABASE postgres TO plain", "ALTER TABLE users OWNER TO plain")
    rig.server.execute("ALTER TABLE t OWNER TO app", "GRANT ALL ON SCHEMA public TO plain")
    rig.settings["postgres"]["user"] = "plain"
    process = rig.start_created()
    rig.define(shape("users"), FILTERED)
    rig.wait(lambda: "shape refused shape_id=t" in rig.log(), "the refusal")
    rig.execute_and_wait(INSERT_USER)
    assert "replica identity not set table=public.t reason=capture's role is not the owner of the table" in rig.log()
    assert 'ALTER TABLE "public"."t" REPLICA IDENTITY FULL' in rig.log()
    rig.server.execute("GRANT app TO plain")
    rig.wait(lambda: "t" in rig.registry(), "the shape", 60)
    end_in_order(process)
    assert identity(rig) == "f"


def test_any_definition_is_answered_over_http_with_nothing_else_done(
    rig: CaptureRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A definition on demand, and a shape that it is contained in, by columns that are in no key."""
    rig.define(shape("users"), FILTERED)
    rig.create_topics()
    rig.server.execute("INSERT INTO t VALUES (1, 'x', 'a'), (2, 'y', 'a'), (3, 'x', 'b')")
    end_in_order(rig.start_created())
    with closing(LocalLoop(rig, monkeypatch)) as loop:
        loop.start()
        rig.wait(lambda: "t" in rig.registry() and rig.registry()["t"].starts_visible, "the shape")

        async def follow() -> None:
            tables = frozenset({("public", "t")})
            async with serving(str(loop.log), str(loop._shapes), on_demand=tables) as server:
                client = Client({"table": "t", "where": "v = 'x' AND w = 'a'"})
                while (await server.get(client.query(live=False))).status != 200:
                    loop.step()
                await client.sync(server)
                assert [row["id"] for row in client.rows.values()] == ["1"]
                rig.execute_and_wait("UPDATE t SET w = 'a' WHERE id = 3", "UPDATE t SET v = 'y' WHERE id = 1")
                loop.step()
                while [row["id"] for row in client.rows.values()] != ["3"]:
                    await client.step(server, live=True)

        run(follow)
        loop.stop()
