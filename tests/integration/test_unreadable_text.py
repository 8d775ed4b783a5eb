"""Text that is not UTF-8, which a server before PostgreSQL 16 sends of a value of type "char"."""

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
from tests.support.server_versions import binaries_of, runs_here

pytestmark = pytest.mark.skipif(not runs_here(), reason="the servers are built for 64-bit x86 Linux")

_TABLE: Final = 'CREATE TABLE t (id int PRIMARY KEY, kind "char", kinds "char"[])'
_WRONG: Final = """INSERT INTO t VALUES (2, (-56)::"char", ARRAY[(-56)::"char"])"""


@pytest.fixture
def server(postgres_folder: Path) -> Iterator[LocalPostgres]:
    with LocalPostgres(postgres_folder / "server", binaries=binaries_of(14)) as server:
        yield server


def test_shapes_that_read_a_char_that_is_no_ascii_end_and_the_others_continue(
    server: LocalPostgres, broker: Broker, tmp_path: Path, topic_name: Callable[[str], str]
) -> None:
    """The stream passes the value, whose byte would stop it again after each restart."""
    rig = CaptureRig(server, broker.bootstrap_servers, tmp_path, topic_name)
    try:
        rig.create_topics()
        server.execute(
            _TABLE,
            "CREATE PUBLICATION shapes FOR TABLE t",
            "SELECT pg_create_logical_replication_slot('shapes', 'pgoutput')",
        )
        lists = {"ids": ["id"], "kinds": ["id", "kind"], "lists": ["id", "kinds"]}
        rig.define(*[shape(name, "public.t", columns=columns) for name, columns in lists.items()])
        rig.start()
        rig.wait(lambda: set(rig.registry()) == {*lists}, "the shapes")
        rig.execute_and_wait("INSERT INTO t VALUES (1, 'a', '{b}')", _WRONG, "DELETE FROM t WHERE id = 1")
        assert rig.operations("ids") == ["insert", "insert", "delete"]
        assert rig.operations("kinds") == rig.operations("lists") == ["insert"]
        reasons = {name: entry.ended_because or "" for name, entry in rig.registry().items()}
        assert reasons.pop("ids") == ""
        for name, column in (("kinds", "kind"), ("lists", "kinds")):
            assert reasons[name].endswith(f" wrote text that is not UTF-8 to column {column} of table public.t")
    finally:
        rig.close()


def test_a_snapshot_with_a_char_that_is_no_ascii_fails_for_its_shape_alone(server: LocalPostgres) -> None:
    """Other columns of the table, and the rows of other shapes, can be read over the same connection."""
    server.execute(_TABLE, "INSERT INTO t SELECT n, 'a' FROM generate_series(3, 5000) n", _WRONG)
    with closing(server.connect()) as exporter:
        exporter.autocommit = False
        with exporter.cursor() as cursor:
            cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            cursor.execute("SELECT pg_export_snapshot()")
            ((snapshot,),) = cursor.fetchall()
        table, whole = ("public", "t"), PageRange(0, None)
        with closing(RangeReader(server.options, snapshot, [table])) as reader:
            with pytest.raises(PostgresError, match=r"^table public\.t has text that is not UTF-8"):
                list(reader.read(table, RowSelection(("id", "kind")), whole))
            for selection in (RowSelection(("id",)), RowSelection(("id", "kind"), ("id > 2",), has_all=False)):
                count = sum(map(len, reader.read(table, selection, whole)))
                assert count == 4_998 + selection.has_all
