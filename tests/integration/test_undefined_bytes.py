"""Bytes that a database's encoding leaves undefined, and stores all the same: they end the shapes that read them."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest

from flushtracker.errors import PostgresError
from flushtracker.local.postgres import LocalPostgres
from flushtracker.postgres.connection import rows
from flushtracker.postgres.range_query import PageRange, RowSelection
from flushtracker.postgres.range_reader import RangeReader
from flushtracker.wal.text_codecs import CODECS, may_lack_characters
from tests.support.brokers import Broker
from tests.support.capture_rig import CaptureRig, shape
from tests.support.new_server import running_server
from tests.support.seeds import in_turn
from tests.support.waiting import wait_until

_OTHERS: Final = sorted(CODECS.keys() - {"SQL_ASCII"})
_PAIRS: Final = [bytes([first, second]) for first in range(0xA1, 0xFF) for second in range(0xA1, 0xFF)]
_BYTE: Final = "convert_from('\\x81', 'SQL_ASCII')"
_CONVERT: Final = """
CREATE FUNCTION pg_temp.converted(code bytea, encoding text) RETURNS text LANGUAGE plpgsql AS $$
  BEGIN RETURN convert_from(code, encoding); EXCEPTION WHEN untranslatable_character THEN RETURN NULL; END
$$
"""
_WRITES: Final = "INSERT INTO notes VALUES"


class Server(LocalPostgres):
    """A server whose connections are to one database."""

    database = "postgres"

    @property
    def options(self) -> dict[str, str]:
        return {**super().options, "dbname": self.database}


@pytest.fixture(params=in_turn(["SQL_ASCII", "WIN1252"]))
def server(postgres_folder: Path, request: pytest.FixtureRequest) -> Iterator[Server]:
    server = Server(postgres_folder / "server")
    with server:
        server.execute(
            f"CREATE DATABASE bytes ENCODING '{request.param}' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
        )
        server.database = "bytes"
        yield server


@pytest.fixture
def rig(server: Server, broker: Broker, tmp_path: Path, topic_name: Callable[[str], str]) -> Iterator[CaptureRig]:
    rig = CaptureRig(server, broker.bootstrap_servers, tmp_path, topic_name)
    try:
        rig.create_with_users()
        yield rig
    finally:
        rig.close()


def named(statement: str) -> str:
    """The statement with a name, for ``%I``, that has no equivalent in UTF-8."""
    return f"DO $$ BEGIN EXECUTE format('{statement}', {_BYTE}); END $$"


@pytest.fixture(scope="module")
def any_server() -> Iterator[LocalPostgres]:
    with running_server() as server:
        yield server


@pytest.mark.parametrize("encoding", _OTHERS)
def test_a_codec_decodes_each_code_as_the_server_does(any_server: LocalPostgres, encoding: str) -> None:
    """And refuses those that the server refuses; of an encoding of several bytes, those that the server stores."""
    codes = [bytes([value]) for value in range(1, 256)] if encoding != "EUC_CN" else _PAIRS
    with closing(any_server.connect()) as connection:
        rows(connection, _CONVERT)
        asked = "SELECT ARRAY(SELECT pg_temp.converted(code, %s) FROM unnest(%s::bytea[]) code)"
        ((expected,),) = rows(connection, asked, (encoding, codes))
    assert [decoded(code, CODECS[encoding]) for code in codes] == expected
    assert may_lack_characters(encoding) == (None in expected)


def decoded(text: bytes, codec: str) -> str | None:
    try:
        return text.decode(codec)
    except UnicodeDecodeError:
        return None


def test_a_row_with_such_a_byte_ends_the_shapes_that_read_its_column(rig: CaptureRig) -> None:
    """The stream goes on, while capture runs and at its next start, and other texts arrive as the server has them."""
    rig.server.execute("CREATE TABLE notes (id int PRIMARY KEY, note text)")
    rig.define(shape("users"), shape("notes", "public.notes"), shape("ids", "public.notes", columns=["id"]))
    capture = rig.start()
    rig.wait(lambda: len(rig.registry()) == 3, "the shapes")
    rig.execute_and_wait(f"{_WRITES} (1, 'a')", "INSERT INTO users (region) VALUES ('Zürich €')")
    rig.execute_and_wait(f"{_WRITES} (2, {_BYTE})", "INSERT INTO users (region) VALUES ('eu')")
    reason = str(rig.registry()["notes"].ended_because)
    assert reason.endswith("wrote text without equivalent in UTF-8 to column note of table public.notes")
    capture.stop()
    capture = rig.start()
    rig.execute_and_wait(f"{_WRITES} (3, {_BYTE})", "INSERT INTO users (region) VALUES ('us')")
    capture.stop()
    assert [item.value and item.value["region"] for item in rig.items("users")] == ["Zürich €", "eu", "us"]
    assert rig.operations("ids") == ["insert"] * 3
    assert rig.operations("notes") == ["insert"]


def test_names_with_such_a_byte_stop_nothing(rig: CaptureRig) -> None:
    """In tables without shapes, in a shape's own, and where a missing table or an identity is searched."""
    rig.server.execute(
        named("CREATE TABLE %1$I (id int); INSERT INTO %1$I VALUES (1)"),
        named("CREATE SCHEMA %1$I; CREATE TABLE %1$I.s (id int PRIMARY KEY); INSERT INTO %1$I.s VALUES (1)"),
        "CREATE TABLE own (id int PRIMARY KEY)",
        "CREATE SCHEMA keyless",
        "CREATE TABLE keyless.less (id int PRIMARY KEY, n int NOT NULL)",
        named("CREATE UNIQUE INDEX %1$I ON keyless.less (id, n)"),
    )
    rig.define(
        shape("users"),
        shape("own", "public.own"),
        shape("lost", "public.user"),
        shape("less", "keyless.less", where="n = 1"),
    )
    capture = rig.start()
    rig.wait(lambda: rig.registry().keys() == {"users", "own"}, "the shapes")
    rig.wait(lambda: len(capture.loop.status().refused) == 2, "the refused ones")
    rig.server.execute(named("ALTER TABLE own ADD COLUMN %1$I int"))
    rig.wait(lambda: rig.registry()["own"].ended_because, "the end of the shape")
    rig.execute_and_wait("INSERT INTO own (id) VALUES (3)", "INSERT INTO users (region) VALUES ('eu')")
    capture.stop()
    rig.server.execute("CREATE TABLE later (id int PRIMARY KEY)")
    rig.define(shape("users"), shape("own", "public.own", incarnation=2), shape("later", "public.later"))
    capture = rig.start()
    rig.wait(lambda: "later" in rig.registry(), "the new shape")
    rig.wait(lambda: capture.loop.status().refused, "the refusal of the shape on the table that cannot be read")
    (refused,) = capture.loop.status().refused
    assert refused.shape_id == "own"
    rig.execute_and_wait("INSERT INTO users (region) VALUES ('eu')")
    capture.stop()
    assert len(rig.items("users")) == 2


def test_a_table_that_is_renamed_to_such_a_name_stays_in_a_managed_publication(rig: CaptureRig) -> None:
    """Capture cannot name it, and goes on."""
    rig.server.execute("DROP PUBLICATION shapes", "CREATE TABLE own (id int PRIMARY KEY)")
    rig.settings["capture"]["publication"] = "managed"
    rig.server.execute("CREATE PUBLICATION managed FOR TABLE users, own")
    rig.server.execute("COMMENT ON PUBLICATION managed IS 'managed by flushtracker capture for slot shapes'")
    rig.server.execute(named("ALTER TABLE own RENAME TO %1$I"))
    capture = rig.start()
    rig.execute_and_wait("INSERT INTO users (region) VALUES ('eu')")
    rig.define(allow_removing=1)
    published = "SELECT prrelid::bigint FROM pg_publication_rel"
    wait_until(lambda: len(rig.server.execute(published)) == 1, "the publication without users", timeout_s=60)
    capture.stop()


def test_a_snapshot_with_such_a_byte_fails_for_its_shape_alone(server: Server) -> None:
    """Other columns and rows of the table can be read over the same connection."""
    server.execute("CREATE TABLE notes (id int PRIMARY KEY, note text)")
    server.execute(f"{_WRITES} (1, 'ü'), (2, {_BYTE})")
    with closing(server.connect()) as exporter:
        exporter.autocommit = False
        ((snapshot,),) = rows(exporter, "SELECT pg_export_snapshot()")
        table, whole = ("public", "notes"), PageRange(0, None)
        with closing(RangeReader(server.options, snapshot, [table])) as reader:
            with pytest.raises(PostgresError, match=r"22P05|22021"):
                list(reader.read(table, RowSelection(("id", "note")), whole))
            assert list(reader.read(table, RowSelection(("id",)), whole)) == [["1", "2"]]
            only = RowSelection(("note",), ("id = 1",), has_all=False)
            assert list(reader.read(table, only, whole)) == [["ü"]]
