"""Exporting a snapshot and reading ranges in it, on a real server: what is seen, and what is refused."""

import gc
import os
import resource
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from threading import Thread
from typing import Any, Final

import pytest

from flushtracker.errors import PostgresError, PostgresUnavailableError, ShapeError
from flushtracker.local.postgres import LocalPostgres
from flushtracker.postgres import snapshot_export
from flushtracker.postgres.connection import Connection, connect, require_open, rows
from flushtracker.postgres.range_query import PageRange, RowSelection, page_ranges
from flushtracker.postgres.range_reader import RangeReader
from flushtracker.postgres.replication_frames import XLogData
from flushtracker.postgres.replication_stream import ReplicationStream
from flushtracker.postgres.snapshot_export import ExportedTable, exported_table, primary_server
from flushtracker.shape_log.log_row import item_row
from flushtracker.shape_log.snapshot.item_rows import ItemTexts
from flushtracker.shape_log.snapshot.read_plan import ItemColumns
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.log_items import log_items
from flushtracker.shapes.shape import Shape
from flushtracker.shapes.type_binding import user_types
from flushtracker.shapes.where.server_text import server_text
from flushtracker.wal.changes import Insert, TableName
from flushtracker.wal.fragment_converter import FragmentConverter
from flushtracker.wal.pgoutput import decode
from tests.support.waiting import wait_until

T: Final = ("public", "t")
WHOLE: Final = PageRange(0, None)

# Each type that has a text of its own kind, but xml, which the server is built without. The texts have all that
# COPY, JSON and keys must escape.
EVERY_TYPE: Final = (
    "CREATE SCHEMA odd",
    "CREATE TYPE odd.mood AS ENUM ('sad', 'it''s ok')",
    "CREATE TYPE odd.pair AS (a int, b text)",
    "CREATE DOMAIN odd.email AS text",
    "CREATE TYPE odd.span AS RANGE (subtype = float8)",
    """CREATE TABLE odd."T%t" (id int, "ke""y%s" text, b boolean, i2 smallint, i8 bigint, n numeric, f4 real, f8 float8,
    m money, c char(4), v varchar, raw bytea, d date, ts timestamp, tz timestamptz, tm time, tt timetz, iv interval,
    u uuid, js json, jb jsonb, ip inet, mac macaddr, bits bit varying, p point, ints int[], texts text[],
    feel odd.mood, feels odd.mood[], two odd.pair, mail odd.email, during odd.span, days daterange, words tsvector,
    place regclass, jp jsonpath, "large" text, twice int GENERATED ALWAYS AS (id * 2) STORED,
    PRIMARY KEY (id, "ke""y%s"))""",
    'ALTER TABLE odd."T%t" REPLICA IDENTITY FULL',
    """INSERT INTO odd."T%t" VALUES (1, E'tab\\tnew\\nline\\\\ "q" ''s''\\r\\b\\f\\v\\x01\\x7f', true, -1, 9e18, 1.50,
    0.1, 0.1::float8 + 0.2, 12.3, 'ab', '', '\\x00ff5c',
    '0044-03-15 BC', '2026-01-02 03:04:05.678', '1850-01-01 00:00+00',
    '03:04', '03:04+02', '-1 year 2 days 03:04:05.6', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '{"a" : "\\u0001"}',
    '{"b": [1, "\\\\"]}', '10.0.0.1/8', '08:00:2b:01:02:03', B'101', '(1,2)', '{1,NULL}',
    E'{"a\\tb","\\\\\\\\","",NULL}', 'it''s ok', '{sad,"it''s ok"}', '(1,"a, ""b")', 'x@y', '[0.1,)', '[2026-01-01,)',
    'fat:2 cat', 'odd."T%t"', '$.a', repeat('large ☃ ', 100000))""",
    """INSERT INTO odd."T%t" (id, "ke""y%s") VALUES (2, '\\N'), (3, ''), (4, E'\\\\.'), (5, 'Grüße 😀 \u2028'),
    (6, '\\t')""",
)


@contextmanager
def exported(
    server: LocalPostgres, table: TableName = T, *, lock_timeout_s: float = 10.0, **options: str
) -> Iterator[ExportedTable]:
    """The table in an exported snapshot, as long as the body runs."""
    ((oid,),) = server.execute(f"SELECT max(oid::bigint) FROM pg_class WHERE relname = '{table[1]}'")  # noqa: S608
    keywords = {**server.options, **options}
    with exported_table(
        keywords, source_of(server), table, oid, publication="shapes", lock_timeout_s=lock_timeout_s
    ) as (_, found):
        yield found


def source_of(server: LocalPostgres) -> str:
    with closing(server.connect()) as connection:
        return f"{primary_server(connection)}/shapes"


@contextmanager
def open_files(below: int) -> Iterator[None]:
    """Every descriptor below this one is in use; those of earlier tests' garbage are freed first."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(2 * below, hard)), hard))
    gc.collect()
    with ExitStack() as files:
        while files.enter_context(Path(os.devnull).open()).fileno() < below:
            pass
        yield


@pytest.fixture
def server(postgres: LocalPostgres) -> LocalPostgres:
    """With a publication and a slot."""
    postgres.execute(
        "CREATE PUBLICATION shapes FOR ALL TABLES", "SELECT pg_create_logical_replication_slot('shapes', 'pgoutput')"
    )
    return postgres


@contextmanager
def transaction(server: LocalPostgres) -> Iterator[Connection]:
    """A connection that begins a transaction with its first statement."""
    with closing(server.connect()) as connection:
        connection.autocommit = False
        yield connection


def reader(server: LocalPostgres, table: ExportedTable, **options: str) -> RangeReader:
    tables = [leaf.relation.table for leaf in table.leaves]
    return RangeReader({**server.options, **options}, table.snapshot_id, tables)


def lines(
    reader: RangeReader, table: TableName = T, columns: tuple[str, ...] = ("id",), where: str | None = None
) -> list[str]:
    found = reader.read(table, selected(columns, where), WHOLE)
    return sorted(line for part in found for line in part)


def selected(columns: tuple[str, ...], where: str | None) -> RowSelection:
    return RowSelection(columns, () if where is None else (where,), has_all=where is None)


def streamed(server: LocalPostgres, count: int) -> list[Insert]:
    """The inserts that the slot's stream has."""
    found, converter = list[Insert](), FragmentConverter()
    with closing(ReplicationStream(server.options)) as stream:
        stream.start("shapes", "shapes")

        def read() -> bool:
            for frame in stream.read():
                if isinstance(frame, XLogData):
                    for fragment in converter.handle(decode(frame.data)):
                        found.extend(change for change in fragment.changes if isinstance(change, Insert))
            return len(found) == count

        wait_until(read, "all inserts", timeout_s=30)
    return found


@pytest.mark.parametrize(
    ("columns", "where", "count"),
    [
        (None, None, 6),
        (("b", "texts"), "feel = 'it''s ok'::mood OR \"large\" IS NULL", 6),
        (("mail",), """feels @> CAST('{sad}' AS mood[]) OR "ke""y%s" = '\\N' -- and no more""", 2),
    ],
)
def test_texts_are_those_of_the_stream(
    server: LocalPostgres, columns: tuple[str, ...] | None, where: str | None, count: int
) -> None:
    """Key and value of each row of every type, with all that COPY, JSON and keys escape; TOAST is read, too."""
    server.execute(*EVERY_TYPE)
    table = ("odd", "T%t")
    definition = ShapeDefinition("s", table, columns, where, primary_key=("id", 'ke"y%s'))
    with exported(server, table) as found, closing(reader(server, found)) as open_reader:
        relation = found.leaves[0].relation
        shape = Shape(definition).bind(relation)
        texts = ItemTexts(ItemColumns(shape.columns, shape.key_columns, shape.key_prefix), shape.columns)
        condition = None if where is None else server_text(where, relation)
        rows = [*open_reader.read(table, selected(shape.columns, condition), WHOLE)]
        read = [*zip(*texts.of([line for part in rows for line in part]), strict=True)]
        inserts = streamed(server, 6)
        types = user_types(found.binding.types)
    expected = []
    for insert in inserts:
        bound = Shape(definition).bind(insert.relation.with_types(types))
        if (change := bound.filter(insert)) is not None:
            row = item_row(log_items(bound, change)[0], 0, 0)
            expected.append((row.key, row.value))
    assert sorted(read) == sorted(expected)
    assert len(read) == count


def test_a_process_with_many_open_files_reads_the_copy_and_the_stream(server: LocalPostgres) -> None:
    """``select(2)`` does not take a descriptor above 1,023, such as a Kafka client for many brokers leads to."""
    server.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1), (2)")
    with open_files(1_100), exported(server) as found, closing(reader(server, found)) as open_reader:
        assert lines(open_reader) == ["1", "2"]
        assert len(streamed(server, 2)) == 2
        with open_files(1_100), closing(connect(server.options)) as idle:
            assert idle.fileno() > 1_023
            require_open(idle)


def test_every_reader_sees_the_moment_of_the_export(server: LocalPostgres) -> None:
    """Whatever is committed while it is read, and however late a reader comes."""
    server.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1), (2)")
    with transaction(server) as other, other.cursor() as cursor:
        cursor.execute("INSERT INTO t VALUES (3)")
        cursor.execute("SELECT txid_current()::bigint % 4294967296")
        ((xid,),) = cursor.fetchall()
        with exported(server) as found:
            assert not found.visible.sees(xid)
            with closing(reader(server, found)) as early:
                other.commit()
                server.execute("DELETE FROM t WHERE id = 1", "UPDATE t SET id = 5 WHERE id = 2", "VACUUM t")
                assert lines(early) == ["1", "2"]
            with closing(reader(server, found)) as late:
                assert lines(late) == ["1", "2"]
    with exported(server) as found, closing(reader(server, found)) as after:
        assert lines(after) == ["3", "5"]
        assert found.visible.sees(xid)


def test_ranges_have_each_row_once(server: LocalPostgres) -> None:
    """The last one has also the pages that were added since; each is read with the condition."""
    server.execute(
        "CREATE TABLE t (id int PRIMARY KEY, pad text)",
        "INSERT INTO t SELECT n, repeat('x', 500) FROM generate_series(1, 1000) n",
        "DELETE FROM t WHERE id BETWEEN 200 AND 400",
    )
    with exported(server) as found, closing(reader(server, found)) as open_reader:
        ranges = page_ranges(found.leaves[0].pages, 7, 180_000)
        assert len(ranges) > 5
        parts = [
            [line for part in open_reader.read(T, selected(("id",), "id % 2 = 0"), pages) for line in part]
            for pages in ranges
        ]
    assert sorted(int(line) for part in parts for line in part) == [
        n for n in range(1, 1001) if not 200 <= n <= 400 and n % 2 == 0
    ]
    assert all(len(part) < 200 for part in parts)


@pytest.mark.parametrize("has_all", [False, True])
def test_conditions_of_many_shapes_are_told_apart_in_one_pass(server: LocalPostgres, *, has_all: bool) -> None:
    """More than a call of the server has arguments, and none for most rows; a condition may end in a comment."""
    server.execute(
        "CREATE TABLE t (id int PRIMARY KEY, matches text)",
        "INSERT INTO t SELECT n, CASE WHEN n % 5 > 0 THEN n::text END FROM generate_series(1, 400) n",
    )
    conditions = [f"id % {n + 2} = 1 AND matches IS NOT NULL -- and {{no}} %s" for n in range(2, 250)]
    selection = RowSelection(("matches", "id"), tuple(conditions), has_all)
    with exported(server) as found, closing(reader(server, found)) as open_reader:
        one_by_one = {where: set(lines(open_reader, where=where)) for where in conditions}
        read = [line for part in open_reader.read(T, selection, WHOLE) for line in part]
    expected = []
    for id_ in map(str, range(1, 401)):
        true = [str(number) for number, where in enumerate(conditions) if id_ in one_by_one[where]]
        if has_all or true:
            expected.append("\t".join([" ".join(true), "\\N" if int(id_) % 5 == 0 else id_, id_]))
    assert sorted(read) == sorted(expected)
    assert len(max(read, key=len).split("\t")[0].split()) > 10


def test_reader_reads_on_after_an_error_of_a_condition(server: LocalPostgres) -> None:
    """In the same snapshot, so that the shapes that are to blame can be found."""
    server.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t SELECT n FROM generate_series(-5000, 0) n")
    with exported(server) as found, closing(reader(server, found)) as open_reader:
        server.execute("DELETE FROM t")
        for _ in range(2):
            with pytest.raises(PostgresError, match="division by zero"):
                lines(open_reader, where="10 / id < 1")
        assert len(lines(open_reader)) == 5001


def in_thread(server: LocalPostgres, statement: str) -> Thread:
    """Run the statement, once it waits for a lock."""
    thread = Thread(target=server.execute, args=(statement,))
    thread.start()
    waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    wait_until(lambda: server.execute(waiting), "a statement that waits for a lock", timeout_s=30)
    return thread


@pytest.mark.parametrize(
    "statement", ["TRUNCATE t", "ALTER TABLE t ALTER id TYPE bigint", "VACUUM FULL t", "DROP TABLE t"]
)
def test_what_is_not_mvcc_safe_waits_for_the_snapshot(server: LocalPostgres, statement: str) -> None:
    """A reader that comes while it waits would wait for the exporter's end, so it gives up at once."""
    server.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    with exported(server) as found, closing(reader(server, found)) as early:
        thread = in_thread(server, statement)
        with pytest.raises(PostgresUnavailableError, match=r'could not obtain lock on relation "public\.t"'):
            reader(server, found)
        assert lines(early) == ["1"]
        assert thread.is_alive()
    thread.join(30)
    assert not thread.is_alive()


def test_readers_keep_what_they_have_locked_when_the_export_is_lost(server: LocalPostgres) -> None:
    """A TRUNCATE waits for them as well; a reader that comes later is refused."""
    server.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    with exported(server) as found:
        early = reader(server, found)
    with closing(early):
        ended = "SELECT count(*) = 1 FROM pg_stat_activity WHERE application_name LIKE 'flushtracker_snapshot%'"
        # The server notices a moment later that a connection was closed.
        wait_until(lambda: server.execute(ended) == [(True,)], "the end of the export", 10)
        with pytest.raises(PostgresUnavailableError, match="the connection that exported the snapshot was lost"):
            reader(server, found)
        thread = in_thread(server, "TRUNCATE t")
        assert lines(early) == ["1"]
        assert thread.is_alive()
    thread.join(30)
    assert not thread.is_alive()


def test_a_rewrite_that_the_lock_has_waited_for_hides_no_row(server: LocalPostgres) -> None:
    """A snapshot that was taken before the lock would find the table empty, as the rows are newer."""
    server.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1), (2)")
    with transaction(server) as other, other.cursor() as cursor:
        cursor.execute("ALTER TABLE t ALTER id TYPE bigint")
        waits = "SELECT 1 FROM pg_locks WHERE NOT granted AND mode = 'AccessShareLock'"

        def commit() -> None:
            wait_until(lambda: server.execute(waits), "the export waits for its lock", 30)
            other.commit()

        with ThreadPoolExecutor(1) as pool:
            committed = pool.submit(commit)
            with exported(server) as found, closing(reader(server, found)) as read:
                assert lines(read) == ["1", "2"]
            committed.result()


def test_lock_is_waited_for_as_long_as_configured(server: LocalPostgres) -> None:
    """Then the attempt ends, and blocks nobody."""
    server.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with transaction(server) as other, other.cursor() as cursor:
        cursor.execute("LOCK TABLE t")
        started = time.monotonic()
        with pytest.raises(PostgresUnavailableError, match="lock timeout"), exported(server, lock_timeout_s=0.3):
            pass
        assert 0.3 <= time.monotonic() - started < 10


def test_one_snapshot_of_a_table_at_a_time(server: LocalPostgres) -> None:
    """Otherwise the later attempt could have the earlier snapshot. Other tables are not affected."""
    server.execute("CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE other (id int PRIMARY KEY)")
    with (
        exported(server),
        exported(server, ("public", "other")),
        pytest.raises(PostgresUnavailableError, match=r"another snapshot of table public\.t is being taken"),
        exported(server),
    ):
        pass
    with exported(server):
        pass


def test_role_that_holds_the_lock_of_snapshots_is_named_and_can_be_ended(server: LocalPostgres) -> None:
    """Any role that may log in can take it: then no snapshot of the table begins until that session has ended."""
    server.execute("CREATE TABLE t (id int PRIMARY KEY)", "CREATE ROLE nobody_s LOGIN")
    ((oid,),) = server.execute("SELECT 't'::regclass::oid::bigint")
    with closing(connect({**server.options, "user": "nobody_s"})) as other:
        ((pid,),) = rows(other, "SELECT pg_backend_pid() FROM pg_advisory_lock(1718383475, %s)", (oid - 2**31,))
        with pytest.raises(PostgresUnavailableError, match=rf"lock: session {pid} of role nobody_s$"), exported(server):
            pass
        server.execute(f"SELECT pg_terminate_backend({pid}, 60000)")
        with exported(server):
            pass
    server.execute("DROP ROLE nobody_s")


def test_later_snapshot_has_the_later_time_and_lsn(server: LocalPostgres) -> None:
    """The time is the server's, so that it does not depend on who takes them."""
    server.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with exported(server) as first:
        pass
    server.execute("INSERT INTO t VALUES (1)")
    with exported(server) as second:
        pass
    assert (first.taken_us, first.lsn) < (second.taken_us, second.lsn)
    assert abs(second.taken_us / 1e6 - time.time()) < 60


def test_partitions_are_read_one_by_one(server: LocalPostgres) -> None:
    """Those of partitions too; each has its own order of columns."""
    server.execute(
        "CREATE TABLE t (id int, day int, PRIMARY KEY (id, day)) PARTITION BY RANGE (day)",
        "CREATE TABLE p0 PARTITION OF t FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE p1 PARTITION OF t FOR VALUES FROM (10) TO (30) PARTITION BY RANGE (day)",
        "CREATE TABLE p1a (day int NOT NULL, id int NOT NULL)",
        "ALTER TABLE p1 ATTACH PARTITION p1a FOR VALUES FROM (10) TO (20)",
        "INSERT INTO t VALUES (1, 5), (2, 15)",
    )
    with exported(server) as found, closing(reader(server, found)) as open_reader:
        assert {leaf.relation.name for leaf in found.leaves} == {"p0", "p1a"}
        assert lines(open_reader, ("public", "p0"), ("id", "day")) == ["1\t5"]
        assert lines(open_reader, ("public", "p1a"), ("day", "id")) == ["15\t2"]


def test_partition_that_is_attached_after_the_lock_is_not_read_without_one(
    server: LocalPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ATTACH does not wait for the lock of the root; the new partition could be truncated while it is read."""
    server.execute("CREATE TABLE t (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    export: Callable[..., ExportedTable] = snapshot_export._export

    def attached_just_before(*arguments: Any) -> ExportedTable:
        server.execute(
            "CREATE TABLE p (id int NOT NULL)", "ALTER TABLE t ATTACH PARTITION p FOR VALUES FROM (0) TO (10)"
        )
        return export(*arguments)

    monkeypatch.setattr(snapshot_export, "_export", attached_just_before)
    with (
        pytest.raises(PostgresUnavailableError, match=r"table public\.t got the partition public.p while"),
        exported(server),
    ):
        pass
    monkeypatch.undo()
    with exported(server) as found:
        assert [leaf.relation.name for leaf in found.leaves] == ["p"]


def test_columns_may_have_names_that_are_words_of_sql(server: LocalPostgres) -> None:
    """A reserved word needs quotes, here as on the server; another one, as in ``Level``, does not."""
    server.execute('CREATE TABLE t (id int PRIMARY KEY, "order" text, "end" int, "left" int, level int)')
    server.execute("INSERT INTO t VALUES (1, 'x', 1, 2, 3), (2, 'y', 1, 2, 3), (3, 'x', 9, 2, 3)")
    with exported(server) as found:
        relation = found.leaves[0].relation
        where = server_text("""\"order\" = 'x' AND "end" < 5 AND "left" IN (2) AND Level = 3""", relation)
        assert lines(reader(server, found), where=where) == ["1"]


def test_crash_takes_nothing_back_that_a_snapshot_has_read(server: LocalPostgres) -> None:
    """A commit may be visible before its WAL is flushed; after a crash its LSN and its xid would be another's."""
    server.execute("CREATE TABLE t (id int PRIMARY KEY)", "ALTER SYSTEM SET wal_writer_delay = '10 s'")
    server.execute("SELECT pg_reload_conf()")
    server.execute("SET synchronous_commit = off; INSERT INTO t VALUES (1)")
    with exported(server) as found:
        assert lines(reader(server, found)) == ["1"]
        server.kill()
    server.start()
    assert server.execute("SELECT id FROM t") == [(1,)]


def test_dropped_table_is_said_to_be_dropped(server: LocalPostgres) -> None:
    """Also if another one has got its name."""
    server.execute("CREATE TABLE t (id int PRIMARY KEY)")
    ((oid,),) = server.execute("SELECT 't'::regclass::oid::bigint")
    server.execute("DROP TABLE t", "CREATE TABLE t (id int PRIMARY KEY)")
    with (
        pytest.raises(ShapeError, match=r"table public\.t was dropped"),
        exported_table(server.options, source_of(server), T, oid, publication="shapes", lock_timeout_s=1),
    ):
        pass


def test_other_servers_and_databases_are_refused(server: LocalPostgres) -> None:
    """A copy of the database has the same tables with the same OIDs, and other rows."""
    server.execute("CREATE TABLE t (id int PRIMARY KEY)", "CREATE DATABASE copy TEMPLATE template0")
    with (
        pytest.raises(PostgresError, match=r"has plugin pgoutput and database postgres, not pgoutput and copy"),
        exported(server, dbname="copy"),
    ):
        pass
    with (
        pytest.raises(PostgresError, match=r"and source 7301/1/shapes is of 7301/1; name its primary in postgres"),
        exported_table(server.options, "7301/1/shapes", T, 1, publication="shapes", lock_timeout_s=1),
    ):
        pass


def test_a_promoted_server_is_waited_for_until_capture_continues_on_it(
    server: LocalPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no error of the configuration, as another server would be, and the attempt is made again."""
    server.execute("CREATE TABLE t (id int PRIMARY KEY)")
    promoted = source_of(server).replace("/1/", "/2/").rpartition("/")[0]
    monkeypatch.setattr(snapshot_export, "primary_server", lambda _: promoted)
    with (
        pytest.raises(PostgresUnavailableError, match="was promoted to timeline 2, on which capture has not continued"),
        exported(server),
    ):
        pass


def test_standby_is_refused(server: LocalPostgres) -> None:
    """Its snapshots have no list of the transactions in progress."""
    with (
        server.standby(server.folder.parent / "standby") as standby,
        closing(standby.connect()) as connection,
        pytest.raises(PostgresError, match=r"is a standby, .*; name the primary in postgres"),
    ):
        primary_server(connection)


def test_select_on_the_table_and_its_partitions_is_all_that_is_needed(server: LocalPostgres) -> None:
    """Without it on a partition, the server says which one."""
    server.execute(
        "CREATE ROLE snapshot LOGIN",
        "CREATE TABLE t (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE p PARTITION OF t FOR VALUES FROM (0) TO (10)",
        "INSERT INTO t VALUES (1)",
    )
    with pytest.raises(PostgresError, match="permission denied for table t"), exported(server, user="snapshot"):
        pass
    server.execute("GRANT SELECT ON t TO snapshot")
    with exported(server, user="snapshot") as found:
        with pytest.raises(PostgresError, match="permission denied for table p"):
            reader(server, found, user="snapshot")
        server.execute("GRANT SELECT ON p TO snapshot")
        with closing(reader(server, found, user="snapshot")) as open_reader:
            assert lines(open_reader, ("public", "p")) == ["1"]


def test_conditions_mean_what_they_mean_to_capture_whatever_the_role_has_set(server: LocalPostgres) -> None:
    """A backslash escapes nothing, and nothing is equal to NULL; a reader of the stream knows no other rules."""
    server.execute(
        "CREATE TABLE t (id int PRIMARY KEY, path text)",
        "INSERT INTO t VALUES (1, E'C:\\\\new'), (2, NULL), (3, E'C:\\new')",
        "ALTER ROLE CURRENT_USER SET standard_conforming_strings = off",
        "ALTER ROLE CURRENT_USER SET transform_null_equals = on",
    )
    expected = {"path = 'C:\\new'": ["1"], "path = NULL": [], "path = '\\' OR path = ' OR true --'": []}
    with exported(server) as found:
        for where, ids in expected.items():
            with closing(reader(server, found)) as one:
                assert lines(one, where=where) == ids


def test_policies_leave_out_no_row(server: LocalPostgres) -> None:
    """The stream has all rows, so a role that may not see them gets an error."""
    server.execute(
        "CREATE ROLE snapshot LOGIN",
        "CREATE TABLE t (id int PRIMARY KEY)",
        "GRANT SELECT ON t TO snapshot",
        "ALTER TABLE t ENABLE ROW LEVEL SECURITY",
        "INSERT INTO t VALUES (1)",
    )
    with (
        exported(server, user="snapshot") as found,
        closing(reader(server, found, user="snapshot")) as open_reader,
        pytest.raises(PostgresError, match="query would be affected by row-level security policy"),
    ):
        lines(open_reader)


def test_reader_with_much_to_read_holds_little(server: LocalPostgres) -> None:
    """It pulls: what the consumer has not asked for stays with the server."""
    server.execute(
        "CREATE TABLE t (id int PRIMARY KEY, pad text)",
        "INSERT INTO t SELECT n, repeat(md5(n::text), 100) FROM generate_series(1, 20000) n",
    )
    with exported(server) as found, closing(reader(server, found)) as open_reader:
        parts = open_reader.read(T, selected(("id", "pad"), None), WHOLE)
        sizes = [sum(map(len, rows)) for rows in parts]
    assert sum(sizes) > 60_000_000
    assert max(sizes) < 5_000_000
