"""The texts of the stream are the same whatever the database, the role, the options and the environment set."""

import re
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

import pytest

from flushtracker.errors import PostgresError, PostgresUnavailableError
from flushtracker.local.postgres import LocalPostgres
from flushtracker.postgres.connection import connect, connect_for_snapshot, rows
from flushtracker.postgres.replication_frames import XLogData
from flushtracker.postgres.replication_stream import ReplicationStream
from flushtracker.shapes.where import parse_where
from flushtracker.shapes.where.server_text import server_text
from flushtracker.status.http.status_app import sections
from flushtracker.wal.changes import Column, Relation
from tests.support.brokers import Broker
from tests.support.capture_rig import CaptureRig, shape
from tests.support.waiting import wait_until

# None is the default, and each changes the text of at least one value below.
OTHERWISE: Final = {
    "extra_float_digits": "-10",
    "datestyle": "SQL, DMY",
    "intervalstyle": "sql_standard",
    "bytea_output": "escape",
    "timezone": "Asia/Kolkata",
    "client_encoding": "LATIN1",
    "search_path": "pg_catalog",
    "quote_all_identifiers": "on",
    "array_nulls": "off",
    "standard_conforming_strings": "off",
    "backslash_quote": "on",
    "transform_null_equals": "on",
    "xmlbinary": "hex",
    "xmloption": "document",
    "gin_fuzzy_search_limit": "1",
    "default_transaction_isolation": "serializable",
}
# Each means something else under one of these.
CONDITIONS: Final = (
    *("tags = '{NULL,a}'", "'NULL' = ANY(tags)", "tags && '{null}'", "v = 'a\\b'", "v LIKE '%\\\\%'", "v = NULL"),
    *("f = 0.30000000000000004", "f = '0.3'", "day = '2026-02-01'", "ts >= '2026-02-01 00:00'"),
    *("tz = '2026-02-01 00:00+00'", "span = '-1 days +02:03:00'", "span < '1 day'", "v = NULL OR v IS NULL"),
)
JUDGED: Final = (
    """CREATE TABLE judged (id int PRIMARY KEY, tags text[], v text, f float8, day date, ts timestamp, tz timestamptz,
    span interval)""",
    r"""INSERT INTO judged VALUES (1, ARRAY[NULL, 'a'], 'a\b', 0.1::float8 + 0.2, '2026-02-01', '2026-02-01',
    '2026-02-01 00:00+00', '-1 day 2 hours 3 minutes'), (2, ARRAY['NULL', 'a'], 'ab', 0.3, '2026-01-02',
    '2026-01-02', '2026-01-02', '1 day'), (3, NULL, NULL, NULL, NULL, NULL, NULL, NULL)""",
    "CREATE TABLE tagged AS SELECT n AS id, ARRAY['a', 't' || n % 7] AS tags FROM generate_series(1, 20000) n",
    "CREATE INDEX ON tagged USING gin (tags)",
    "ANALYZE tagged",
)
COLUMNS: Final = {"id": 23, "tags": 1009, "v": 25, "f": 701, "day": 1082, "ts": 1114, "tz": 1184, "span": 1186}
TABLE: Final = """
CREATE TABLE public."café" (id int PRIMARY KEY, f real, d float8, fs float8[], day date, ts timestamp, tz timestamptz,
    tt timetz, span interval, raw bytea, "größe" text, during tstzrange)
"""
FULL: Final = 'ALTER TABLE public."café" REPLICA IDENTITY FULL'
ROWS: Final = (
    r"""INSERT INTO public."café" VALUES (1, 0.1, 0.1::float8 + 0.2, '{0.1, 1e-300}', '2026-01-02',
    '2026-01-02 03:04:05.678', '2026-01-02 03:04:05+00', '03:04:05+02', '-1 year 2 days 03:04:05.6', '\x00ff27',
    'é£ÿ', '[2026-01-02 00:00+00,)')""",
    r"""INSERT INTO public."café" VALUES (2, 16777216.5, 1e22, '{}', '0044-03-15 BC', '0044-03-15 12:00 BC',
    '1850-01-01 00:00+00', '00:00-15:59', '100 days', '\xdeadbeef', 'ascii', 'empty')""",
    r"""INSERT INTO public."café" VALUES (3, 'NaN', '-Infinity', NULL, 'infinity', '-infinity', 'infinity',
    '12:00+00', '-00:00:01', '', '', '(,)')""",
    """UPDATE public."café" SET "größe" = "größe" || '§' WHERE id = 1""",
)
# Each number takes 9 bytes here, some in the row, and 131,072 as text.
_LARGE: Final = "INSERT INTO documents SELECT {}, ('[' || repeat('1e131071,', 8300) || '1]')::jsonb"
_RUNBOOK: Final = Path(__file__).parents[2] / "docs/runbook.md"
_SECTION: Final = "a-row-is-too-large-to-be-sent"
_IS_SHORT: Final = """
SELECT FROM pg_stat_activity JOIN pg_stat_replication USING (pid)
WHERE clock_timestamp() - coalesce(pg_stat_activity.xact_start, clock_timestamp()) < '1 s'
"""
WHERES: Final = {
    "float": "d = 0.30000000000000004",
    "real": "f = '0.1'",
    "day": "day >= '2026-01-02'",
    "instant": "tz = '2026-01-02 03:04:05+00'",
    "text": """ "größe" <> 'é£ÿ' """,
}


class Database(LocalPostgres):
    """One database of a running server."""

    def __init__(self, server: LocalPostgres, name: str, **options: str) -> None:
        self.__dict__.update(server.__dict__)
        self._own = {"dbname": name, **options}

    @property
    def options(self) -> dict[str, str]:
        return {**super().options, **self._own}


@contextmanager
def slot_in(database: LocalPostgres) -> Iterator[None]:
    """The table, the publication and the slot; the slot is the server's, so the next database needs it gone."""
    database.execute(TABLE, FULL, "CREATE PUBLICATION shapes FOR ALL TABLES")
    database.execute("SELECT pg_create_logical_replication_slot('shapes', 'pgoutput')")
    yield
    is_unused = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE NOT active"
    wait_until(lambda: database.execute(is_unused), "the slot released", timeout_s=30)


def set_otherwise(server: LocalPostgres, subject: str) -> None:
    """Set everything otherwise for a database or a role."""
    server.execute(*[f"ALTER {subject} SET {name} = {value}" for name, value in quoted(OTHERWISE).items()])


def quoted(settings: dict[str, str]) -> dict[str, str]:
    return {name: value if name in {"datestyle", "search_path"} else f"'{value}'" for name, value in settings.items()}


def streamed(database: LocalPostgres, options: dict[str, str]) -> list[bytes]:
    """The changes of the rows, as the stream of a connection with these options has them, without the table's OID."""
    changes: list[bytes] = []
    with slot_in(database):
        database.execute(*ROWS)
        with closing(ReplicationStream(options)) as stream:
            stream.start("shapes", "shapes")

            def read() -> bool:
                frames = [frame for frame in stream.read() if isinstance(frame, XLogData)]
                changes.extend(frame.data[:1] + frame.data[5:] for frame in frames if frame.data[:1] in b"IU")
                return len(changes) == len(ROWS)

            wait_until(read, "all changes", timeout_s=30)
    return changes


def test_texts_do_not_depend_on_the_settings_of_a_session(
    postgres: LocalPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not on those of the database, of the role, of libpq's options and of its environment variables."""
    postgres.execute("CREATE ROLE other LOGIN SUPERUSER", *[f"CREATE DATABASE d{number}" for number in range(5)])
    databases = [Database(postgres, f"d{number}") for number in range(5)]
    expected = streamed(databases[0], databases[0].options)
    assert b"30000000000000004" in expected[0]
    set_otherwise(postgres, "DATABASE d1")
    assert streamed(databases[1], databases[1].options) == expected
    set_otherwise(postgres, "ROLE other")
    assert streamed(databases[2], {**databases[2].options, "user": "other"}) == expected
    options = " ".join(f"-c {name}={value.replace(' ', '')}" for name, value in OTHERWISE.items())
    assert streamed(databases[3], {**databases[3].options, "options": options, "client_encoding": "SJIS"}) == expected
    for name, value in {"PGTZ": "Asia/Kolkata", "PGDATESTYLE": "German", "PGOPTIONS": options}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    assert streamed(databases[4], databases[4].options) == expected


def judged(options: dict[str, str]) -> list[tuple[set[int], set[int]]]:
    """For each condition, the rows that a snapshot's session finds, and those that are found by their texts."""
    relation = Relation(1, "public", "judged", "full", tuple(Column(*column) for column in COLUMNS.items()))
    found = []
    with closing(connect_for_snapshot(options)) as connection:
        texts = rows(connection, f"SELECT {', '.join(f'{name}::text' for name in COLUMNS)} FROM public.judged")  # noqa: S608
        for condition in CONDITIONS:
            where = server_text(condition, relation)
            on_server = {each for (each,) in rows(connection, f"SELECT id FROM public.judged WHERE {where}")}  # noqa: S608
            matches = parse_where(condition).bind(relation)
            here = [dict(zip(COLUMNS, row, strict=True)) for row in texts]
            found.append((on_server, {int(row["id"]) for row in here if matches(row) is True}))
    return found


def test_conditions_do_not_depend_on_the_settings_of_a_session(postgres: LocalPostgres) -> None:
    """Those of the role and of the database: the server finds the rows that are found here, and all of them."""
    postgres.execute("CREATE ROLE other LOGIN SUPERUSER", *JUDGED)
    plain = judged(postgres.options)
    assert all(on_server == here for on_server, here in plain)
    assert sum(bool(here) for _, here in plain) > 8
    set_otherwise(postgres, "DATABASE postgres")
    set_otherwise(postgres, "ROLE other")
    postgres.execute("ALTER ROLE other SET enable_seqscan = off")
    for options in (postgres.options, {**postgres.options, "user": "other"}):
        assert judged(options) == plain
        with closing(connect_for_snapshot(options)) as connection:
            assert rows(connection, "SELECT count(*) FROM public.tagged WHERE tags @> '{a}'") == [(20_000,)]


def test_other_options_of_the_user_are_kept(postgres: LocalPostgres) -> None:
    """Only the settings that change texts are fixed."""
    options = {**postgres.options, "options": "-c work_mem=5MB -c timezone=Asia/Kolkata"}
    with closing(connect(options)) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('work_mem'), current_setting('timezone')")
        assert cursor.fetchall() == [("5MB", "UTC")]


def test_a_role_may_limit_its_transactions_and_a_large_one_is_sent_all_the_same(postgres: LocalPostgres) -> None:
    """The server sends a transaction inside one of its own, which lasts as long as the reader takes."""
    postgres.execute(
        "CREATE ROLE limited LOGIN SUPERUSER",
        *[f"ALTER ROLE limited SET {name} = '500ms'" for name in ("transaction_timeout", "idle_session_timeout")],
    )
    with slot_in(postgres):
        postgres.execute("CREATE TABLE large AS SELECT repeat('x', 10000) AS v FROM generate_series(1, 4000)")
        with closing(ReplicationStream({**postgres.options, "user": "limited"})) as stream:
            stream.start("shapes", "shapes")
            wait_until(lambda: not postgres.execute(_IS_SHORT), "a transaction that takes longer", timeout_s=30)
            kinds: list[bytes] = []

            def read() -> bool:
                stream.wait(0.1)
                kinds.extend(frame.data[:1] for frame in stream.read() if isinstance(frame, XLogData))
                return b"C" in kinds

            wait_until(read, "the commit", timeout_s=60, pause_s=0)
            assert kinds.count(b"I") == 4_000


def test_byte_that_the_encoding_lacks_ends_the_stream_with_the_servers_reason(postgres: LocalPostgres) -> None:
    """For an encoding that only the server converts. The reason also arrives behind changes, and is final."""
    postgres.execute("CREATE DATABASE bytes ENCODING 'EUC_JP' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'")
    database = Database(postgres, "bytes")
    with slot_in(database):
        database.execute(
            "CREATE TABLE texts (content text)",
            "INSERT INTO texts VALUES ('é')",
            "SET client_encoding = 'EUC_JP'; INSERT INTO texts VALUES (E'\\xa9\\xa1')",
        )
        with closing(ReplicationStream(database.options)) as stream:
            stream.start("shapes", "shapes")
            in_use = "SELECT FROM pg_replication_slots WHERE active"
            wait_until(lambda: not database.execute(in_use), "the end of the stream", timeout_s=30)
            changes: list[bytes] = []

            def read() -> None:
                # What the server has sent may take its time to arrive.
                changes.extend(frame.data for frame in stream.read() if isinstance(frame, XLogData))

            for _ in range(2):
                with pytest.raises(
                    PostgresError, match=r"0xa9 0xa1 in encoding \"EUC_JP\" has no equivalent.*22P05"
                ) as end:
                    wait_until(read, "the server's reason", timeout_s=30)
                assert not isinstance(end.value, PostgresUnavailableError)
            assert changes[2].endswith("é".encode())


def await_row(postgres: LocalPostgres) -> None:
    """Read the slot until it sends a row."""
    with closing(ReplicationStream(postgres.options)) as stream:
        stream.start("shapes", "shapes")
        kinds: list[bytes] = []

        def read() -> bool:
            stream.wait(0.1)
            kinds.extend(frame.data[:1] for frame in stream.read() if isinstance(frame, XLogData))
            return b"I" in kinds

        wait_until(read, "a row, or the server's reason", timeout_s=120, pause_s=0)


def test_a_short_row_that_has_1_gb_as_text_ends_each_stream_until_the_slot_is_replaced(
    postgres: LocalPostgres,
) -> None:
    """Neither a later publication nor the end of the row helps; what the runbook says does, and prevents the next."""
    find, drop, check = re.findall(r"```sql\n(.*?)```", sections(_RUNBOOK.read_text())[_SECTION], re.DOTALL)
    postgres.execute("CREATE TABLE documents (id int PRIMARY KEY, body jsonb)")
    with slot_in(postgres), closing(postgres.connect()) as session:
        rows(session, _LARGE.format(2))
        ((stored,),) = rows(session, "SELECT pg_column_size(body) FROM documents")
        assert stored < 100_000
        notices: list[str | None] = []
        session.add_notice_handler(lambda notice: notices.append(notice.message_primary))
        rows(session, "INSERT INTO documents VALUES (1)")
        rows(session, find)
        assert notices == ["(0,1)"]
        rows(session, "DROP PUBLICATION shapes; CREATE PUBLICATION shapes FOR TABLE documents (id)")
        rows(session, "DELETE FROM documents WHERE id = 2")
        with pytest.raises(PostgresError, match=r"cannot send a change, as of .*: see the runbook") as end:
            await_row(postgres)
        assert not isinstance(end.value, PostgresUnavailableError)
        rows(session, drop.replace("flushtracker", "shapes"))
        rows(session, "SELECT pg_create_logical_replication_slot('shapes', 'pgoutput')")
        rows(session, check)
        with pytest.raises(PostgresError):
            rows(session, _LARGE.format(3))
        rows(session, "INSERT INTO documents VALUES (4, '[1e131071]')")
        await_row(postgres)


def captured(rig: CaptureRig) -> dict[str, list[object]]:
    """What each shape gets of the rows."""
    rig.create_topics()
    rig.define(
        *[shape(name, "public.café", where=where) for name, where in WHERES.items()], shape("all", "public.café")
    )
    with slot_in(rig.server):
        capture = rig.start()
        rig.wait_for_commits(rig.commit_lsn(*ROWS))
        capture.stop()
    return {
        name: [(item.operation, item.key, item.value, item.old_value) for item in rig.items(name)]
        for name in (*WHERES, "all")
    }


def test_shapes_of_any_database_get_the_same_rows(
    postgres: LocalPostgres, broker: Broker, tmp_path: Path, topic_name: Callable[[str], str]
) -> None:
    """With other settings, and with another encoding: the same rows match each `where`, with the same texts."""
    postgres.execute(
        "CREATE DATABASE standard",
        "CREATE DATABASE otherwise",
        "CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'",
    )
    set_otherwise(postgres, "DATABASE otherwise")
    results = []
    for name in ("standard", "otherwise", "latin"):
        database = Database(postgres, name)
        rig = CaptureRig(database, broker.bootstrap_servers, tmp_path / name, topic_name)
        rig.settings["postgres"] = {**postgres.options, "dbname": name}
        try:
            results.append(captured(rig))
        finally:
            rig.close()
    assert {name: len(items) for name, items in results[0].items()} == {
        "float": 2,
        "real": 2,
        "day": 3,
        "instant": 2,
        "text": 3,
        "all": 4,
    }
    assert results[1] == results[0]
    assert results[2] == results[0]
