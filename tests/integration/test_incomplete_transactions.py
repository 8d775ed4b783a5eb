"""Shapes that are added while a transaction is open of which the server does not send everything, on a real server."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Final

import pytest

from flushtracker.local.postgres import LocalPostgres
from flushtracker.postgres.connection import Connection, rows
from flushtracker.postgres.server_tables import ServerTables
from flushtracker.wal.mvcc_snapshot import MvccSnapshot
from tests.support.capture_rig import CaptureRig, run_in_transaction, shape
from tests.support.fold import fold_items
from tests.support.seeds import in_turn

TABLE: Final = "CREATE TABLE t (id int PRIMARY KEY, v text)"
INSERT: Final = "INSERT INTO t VALUES ({}, 'v')"
ADD: Final = "ALTER PUBLICATION shapes ADD TABLE t"


@contextmanager
def session(server: LocalPostgres) -> Iterator[Connection]:
    """A transaction that stays open until it is committed."""
    with closing(server.connect()) as connection:
        rows(connection, "BEGIN")
        yield connection


def publish_single_tables(rig: CaptureRig, *statements: str) -> None:
    """Have a publication that lists its tables, with ``users`` alone."""
    rig.server.execute("DROP PUBLICATION shapes", "CREATE PUBLICATION shapes FOR TABLE users", *statements)


def is_added(rig: CaptureRig, shape_id: str) -> bool:
    return shape_id in rig.registry()


def ids_in_log(rig: CaptureRig, shape_id: str, contained: MvccSnapshot | None, first: set[int]) -> list[int]:
    """The ids that a reader finds: those of the snapshot, and those of transactions that are not in it."""
    changes = [part for part in rig.changes() if part.shape_id == shape_id]
    kept = [part for part in changes if contained is None or not contained.sees(part.xid)]
    found = [int(item.value["id"] or "") for part in kept for item in part.items if item.value]
    return sorted([*first, *found])


@pytest.mark.parametrize("is_prepared", in_turn([False, True]))
def test_rows_that_were_written_before_their_table_was_published_are_not_lost(
    rig: CaptureRig, caplog: pytest.LogCaptureFixture, *, is_prepared: bool
) -> None:
    """The server sends only what the transaction wrote after ``ADD TABLE``; so the snapshot must contain it.

    Another open transaction, which did not touch the table, delays nothing; nor does this one delay other tables.
    """
    if is_prepared:
        rig.server.execute("ALTER SYSTEM SET max_prepared_transactions = 5")
        rig.server.restart()
    publish_single_tables(rig, TABLE, "CREATE TABLE other (id int)")
    capture = rig.start()
    rig.wait(lambda: is_added(rig, "users"), "the first shape")
    with session(rig.server) as other, session(rig.server) as writer:
        rows(other, "INSERT INTO other VALUES (1)")
        rows(writer, "SAVEPOINT s; INSERT INTO t VALUES (1, 'v'), (3, 'v')")
        rig.server.execute(ADD)
        if is_prepared:
            rows(writer, INSERT.format(2))
            rows(writer, "PREPARE TRANSACTION 'p'")
        rig.define(shape("users"), shape("t", "public.t"), shape("log", "public.t", snapshot=False), shape("more"))
        rig.wait(lambda: is_added(rig, "more"), "a shape on another table")
        rig.wait(lambda: "shapes not added yet shape_ids=log, t" in caplog.text, "the warning")
        assert not is_added(rig, "t")
        assert not is_added(rig, "log")
        rig.execute_and_wait(INSERT.format(10))
        if is_prepared:
            rig.server.execute("COMMIT PREPARED 'p'")
        else:
            rows(writer, INSERT.format(2))
            rows(writer, "COMMIT")
        rig.wait(lambda: is_added(rig, "t") and rig.registry()["t"].starts_visible, "the shape's start")
        ((text,),) = rig.server.execute("SELECT txid_current_snapshot()::text")
        contained, first = MvccSnapshot.parse(text), {id_ for (id_,) in rig.server.execute("SELECT id FROM t")}
        rig.execute_and_wait(INSERT.format(11))
    capture.stop()
    assert first == {1, 2, 3, 10}
    assert ids_in_log(rig, "t", contained, first) == [1, 2, 3, 10, 11]
    assert ids_in_log(rig, "log", None, set()) == [11]


def test_a_table_that_was_published_before_the_transaction_began_is_not_waited_for(rig: CaptureRig) -> None:
    """For all tables, or by itself; also after a transaction was waited for, and by a partition's root."""
    rig.server.execute("CREATE TABLE root (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    rig.server.execute("CREATE TABLE leaf PARTITION OF root DEFAULT", TABLE)
    publish_single_tables(rig, ADD, "ALTER PUBLICATION shapes ADD TABLE root")
    capture = rig.start()
    rig.wait(lambda: is_added(rig, "users"), "the first shape")
    rig.execute_and_wait(INSERT.format(1))
    with session(rig.server) as writer:
        rows(writer, INSERT.format(2))
        rows(writer, "INSERT INTO root VALUES (1)")
        shapes = [shape("users"), shape("t", "public.t"), shape("root", "public.root"), shape("leaf", "public.leaf")]
        rig.define(*shapes)
        rig.wait(lambda: {"t", "root", "leaf"} <= rig.registry().keys(), "the shapes")
        rows(writer, INSERT.format(3))
        rig.wait_for_commits(rig.commit_lsn())
        rows(writer, "COMMIT")
    rig.wait(lambda: len(fold_items(rig.items("t"))) == 2, "both rows")
    capture.stop()


@pytest.mark.parametrize(
    ("publication", "published_by"),
    [
        ("FOR ALL TABLES", set()),
        ("FOR TABLE root", {"table", "partition"}),
        ("FOR TABLE leaf", {"table", "partition"}),
        ("FOR TABLES IN SCHEMA public", {"schema", "in", "partition"}),
    ],
)
def test_the_rows_that_publish_a_table_are_found(
    postgres: LocalPostgres, publication: str, published_by: set[str]
) -> None:
    """Those of the publication, of the table, its ancestors and its partitions; and who has changed one of them."""
    postgres.execute(
        "CREATE TABLE root (id int) PARTITION BY RANGE (id)",
        "CREATE TABLE leaf PARTITION OF root DEFAULT",
        f"CREATE PUBLICATION p {publication}",
    )
    tables = dict(postgres.execute("SELECT relname, oid::bigint FROM pg_class WHERE relname IN ('root', 'leaf')"))
    with closing(postgres.connect()) as connection, session(postgres) as writer, session(postgres) as reader:
        server = ServerTables(connection, "p")
        found = server.publication_rows(tables.values())
        assert found.keys() == set(tables.values())
        assert found[tables["leaf"]] == found[tables["root"]]
        kinds = {"in" if " in schema " in row.name else row.name.split()[0] for row in found[tables["leaf"]]}
        assert kinds == {"publication"} | published_by
        assert all(server.snapshot().is_after(row.xid) for row in found[tables["leaf"]])
        rows(reader, "SELECT FROM root; SELECT txid_current()")
        assert server.writers(tables.values()) == {}
        rows(writer, "SAVEPOINT s; INSERT INTO leaf VALUES (1)")
        xids = server.writers(tables.values())[tables["root"]]
        assert len(xids) == 2
        assert server.writers([tables["leaf"]]) == {tables["leaf"]: xids}
        ((top,),) = rows(writer, "SELECT txid_current()")
        assert xids & server.in_progress().keys() == {top}
        rows(writer, "ROLLBACK TO s")
        assert server.writers(tables.values()) == {}


def test_what_was_committed_without_a_flush_is_before_the_start(postgres: LocalPostgres) -> None:
    """With ``synchronous_commit = off``, a visible transaction may commit above the flushed end of the WAL."""
    postgres.execute("ALTER SYSTEM SET wal_writer_delay = '10s'", "SELECT pg_reload_conf()", TABLE)
    with closing(postgres.connect()) as connection:
        server = ServerTables(connection, "p")
        run_in_transaction(postgres, ["SET LOCAL synchronous_commit = off", INSERT.format(1)])
        ((written,),) = postgres.execute("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn")
        server.flush_commits()
        assert server.wal_end() >= written
