"""Text that is not UTF-8: before PostgreSQL 16, of a value of type "char"; and of any text in a SQL_ASCII database."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest

from flushtracker.errors import PostgresError
from flushtracker.local.postgres import LocalPostgres
from flushtracker.postgres.range_query import PageRange, RowSelection
from flushtracker.postgres.range_reader import RangeReader
from tests.support.brokers import Broker
from tests.support.capture_rig import CaptureRig, shape
from tests.support.seeds import in_turn
from tests.support.server_versions import binaries_of, runs_here

pytestmark = pytest.mark.skipif(not runs_here(), reason="the servers are built for 64-bit x86 Linux")

_BYTES: Final = "CREATE DATABASE bytes ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"


class Server(LocalPostgres):
    """A server with a value that is not UTF-8, in a database of its own."""

    def __init__(self, folder: Path, kind: str) -> None:
        super().__init__(folder, binaries=binaries_of(14 if kind == "char" else 18))
        self.database = "postgres"
        self.table = f'CREATE TABLE t (id int PRIMARY KEY, kind "{kind}", kinds "{kind}"[])'
        value = '(-56)::"char"' if kind == "char" else "convert_from('\\xc8', 'SQL_ASCII')"
        self.wrong = f"INSERT INTO t VALUES (2, {value}, ARRAY[{value}])"  # noqa: S608  the test's own

    @property
    def options(self) -> dict[str, str]:
        return {**super().options, "dbname": self.database}


@pytest.fixture(params=in_turn(["char", "text"]))
def server(postgres_folder: Path, request: pytest.FixtureRequest) -> Iterator[Server]:
    server = Server(postgres_folder / "server", request.param)
    with server:
        if request.param == "text":
            server.execute(_BYTES)
            server.database = "bytes"
        yield server


def test_shapes_that_read_text_that_is_not_utf_8_end_and_the_others_continue(
    server: Server, broker: Broker, tmp_path: Path, topic_name: Callable[[str], str]
) -> None:
    """The stream passes the value, whose byte would stop it again after each restart."""
    rig = CaptureRig(server, broker.bootstrap_servers, tmp_path, topic_name)
    try:
        rig.create_topics()
        server.execute(
            server.table,
            "CREATE PUBLICATION shapes FOR TABLE t",
            "SELECT pg_create_logical_replication_slot('shapes', 'pgoutput')",
        )
        lists = {"ids": ["id"], "kinds": ["id", "kind"], "lists": ["id", "kinds"]}
        rig.define(*[shape(name, "public.t", columns=columns) for name, columns in lists.items()])
        rig.start()
        rig.wait(lambda: set(rig.registry()) == {*lists}, "the shapes")
        rig.execute_and_wait("INSERT INTO t VALUES (1, 'a', '{b}')", server.wrong, "DELETE FROM t WHERE id = 1")
        assert rig.operations("ids") == ["insert", "insert", "delete"]
        assert rig.operations("kinds") == rig.operations("lists") == ["insert"]
        reasons = {name: entry.ended_because or "" for name, entry in rig.registry().items()}
        assert reasons.pop("ids") == ""
        for name, column in (("kinds", "kind"), ("lists", "kinds")):
            assert reasons[name].endswith(
                f" wrote text without equivalent in UTF-8 to column {column} of table public.t"
            )
    finally:
        rig.close()


def test_a_snapshot_with_text_that_is_not_utf_8_fails_for_its_shape_alone(server: Server) -> None:
    """Other columns of the table, and the rows of other shapes, can be read over the same connection."""
    server.execute(server.table, "INSERT INTO t SELECT n, 'a' FROM generate_series(3, 5000) n", server.wrong)
    with closing(server.connect()) as exporter:
        exporter.autocommit = False
        with exporter.cursor() as cursor:
            cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            cursor.execute("SELECT pg_export_snapshot()")
            ((snapshot,),) = cursor.fetchall()
        table, whole = ("public", "t"), PageRange(0, None)
        with closing(RangeReader(server.options, snapshot, [table])) as reader:
            with pytest.raises(
                PostgresError, match=r"^table public\.t has text that is not UTF-8|invalid byte sequence for encoding"
            ):
                list(reader.read(table, RowSelection(("id", "kind")), whole))
            for selection in (RowSelection(("id",)), RowSelection(("id", "kind"), ("id > 2",), has_all=False)):
                count = sum(map(len, reader.read(table, selection, whole)))
                assert count == 4_998 + selection.has_all
