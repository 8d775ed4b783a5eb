"""What any role may have a server send, and no shape needs: it neither stops capture, nor fills it."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from flushtracker.local.postgres import LocalPostgres
from tests.support.brokers import Broker
from tests.support.capture_rig import CaptureRig, shape
from tests.support.seeds import every, in_turn
from tests.support.server_versions import binaries_of, runs_here

pytestmark = pytest.mark.skipif(not runs_here(), reason="the servers are built for 64-bit x86 Linux")

_DATABASE: Final = "CREATE DATABASE bytes ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
_NAME: Final = "convert_from('\\xff', 'SQL_ASCII')"
_MB: Final = 1_000_000
_LARGE: Final = 200 * _MB


def named(statement: str) -> str:
    """The statement with a name, for ``%I``, that is not UTF-8."""
    return f"DO $$ BEGIN EXECUTE format('{statement}', {_NAME}); END $$"


# By what is in the stream: what any role may do that may connect, or create a table.
_HOSTILE: Final = {
    "M in a transaction": f"SELECT pg_logical_emit_message(true, {_NAME}, 'x')",
    "M outside of one": f"SELECT pg_logical_emit_message(false, {_NAME}, {_NAME})",
    "R, the table": named("CREATE TABLE %1$I (id int PRIMARY KEY); INSERT INTO %1$I VALUES (1)"),
    "R, a column": named("CREATE TABLE c (id int PRIMARY KEY, %1$I int); INSERT INTO c VALUES (1); TRUNCATE c"),
    "R, the schema": named("CREATE SCHEMA %1$I; CREATE TABLE %1$I.s (id int PRIMARY KEY); TRUNCATE %1$I.s"),
    "Y": named(
        "CREATE TYPE public.e%1$s AS ENUM (%1$L); CREATE TABLE y (id int PRIMARY KEY, v public.e%1$s); "
        "INSERT INTO y VALUES (1, %1$L)"
    ),
    "O": f"SELECT pg_replication_origin_create({_NAME}), pg_replication_origin_session_setup({_NAME})",
}


# Its name is in an index, which limits it: by its length after compression before PostgreSQL 18, which has 512 bytes.
_LONGEST_ORIGIN: Final = """
DO $$ DECLARE low int := 1; high int := 500000000; middle int; BEGIN
  WHILE low < high LOOP
    middle := (low + high + 1) / 2;
    BEGIN
      PERFORM pg_replication_origin_create(repeat('x', middle));
      PERFORM pg_replication_origin_drop(repeat('x', middle));
      low := middle;
    EXCEPTION WHEN OTHERS THEN
      high := middle - 1;
    END;
  END LOOP;
  PERFORM pg_replication_origin_create(repeat('x', low));
END $$
"""


class Server(LocalPostgres):
    """A server with a database whose names and texts may be any bytes."""

    def __init__(self, folder: Path, version: int) -> None:
        super().__init__(folder, binaries=binaries_of(version))
        self.database = "postgres"

    @property
    def options(self) -> dict[str, str]:
        return {**super().options, "dbname": self.database}


@pytest.fixture(params=in_turn([14, 18]))
def rig(
    postgres_folder: Path,
    broker: Broker,
    tmp_path: Path,
    topic_name: Callable[[str], str],
    request: pytest.FixtureRequest,
) -> Iterator[CaptureRig]:
    server = Server(postgres_folder / "server", request.param)
    with server:
        server.execute(_DATABASE)
        server.database = "bytes"
        rig = CaptureRig(server, broker.bootstrap_servers, tmp_path, topic_name)
        try:
            rig.create_with_users()
            yield rig
        finally:
            rig.close()


def test_names_and_messages_that_are_not_utf_8_stop_nothing(rig: CaptureRig) -> None:
    """Each kind of message has them, while capture runs and at its next start, as nothing of it is confirmed."""
    capture = rig.start()
    rig.wait(lambda: "users" in rig.registry(), "the shape")
    for number, (kind, statement) in enumerate(_HOSTILE.items(), 1):
        session = [statement]
        if kind == "O":
            session.append("INSERT INTO users (region) VALUES ('o')")
        rig.server.execute(*session)
        rig.execute_and_wait("INSERT INTO users (region) VALUES ('eu')")
        assert len(rig.items("users")) >= number, kind
    found = rig.items("users")
    capture.stop()
    capture = rig.start()
    rig.execute_and_wait("INSERT INTO users (region) VALUES ('eu')")
    capture.stop()
    assert len(rig.items("users")) == len(found) + 1
    assert rig.registry()["users"].ended_because is None


def test_a_shape_on_a_missing_table_is_refused_alone_beside_such_names(rig: CaptureRig) -> None:
    """Names that are similar to the missing one are looked for, among all that are there."""
    rig.server.execute(_HOSTILE["R, the table"], _HOSTILE["R, the schema"], "CREATE SCHEMA own")
    rig.define(shape("users"), shape("lost", "public.user"), shape("far", "owm.users"))
    assert "there is no table" in rig.refusal()
    assert set(rig.registry()) == {"users"}


def test_a_name_on_a_shapes_own_table_ends_that_shape_alone(rig: CaptureRig) -> None:
    """Its owner may give a column such a name, which the server refuses to send as UTF-8, also to queries."""
    rig.server.execute("CREATE TABLE own (id int PRIMARY KEY)")
    rig.define(shape("users"), shape("own", "public.own"))
    capture = rig.start()
    rig.wait(lambda: rig.registry().keys() == {"users", "own"}, "the shapes")
    rig.execute_and_wait("INSERT INTO own VALUES (1)")
    rig.server.execute(named("ALTER TABLE own ADD COLUMN %1$I int; INSERT INTO own VALUES (2)"))
    rig.wait(lambda: rig.registry()["own"].ended_because, "the end of the shape")
    assert "has a name without equivalent in UTF-8" in str(rig.registry()["own"].ended_because)
    rig.execute_and_wait("INSERT INTO users (region) VALUES ('eu')", "INSERT INTO own (id) VALUES (3)")
    capture.stop()
    capture = rig.start()
    rig.execute_and_wait("INSERT INTO users (region) VALUES ('eu')")
    capture.stop()
    assert len(rig.items("users")) == 2
    assert len(rig.items("own")) == 1
    assert rig.registry()["users"].ended_because is None


def publish(rig: CaptureRig, statement: str) -> None:
    """Execute a statement whose WAL takes long to write and to read, and wait until it is published."""
    rig.wait_for_commits(rig.commit_lsn(statement), timeout_s=240)


def resident_peak_mb(pid: int) -> int:
    """The most memory that a process has had, in MB, of a million bytes."""
    found = re.search(r"^VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found.group(1)) * 1024 // _MB


@every(3, 0)
def test_messages_of_any_size_take_no_memory(rig: CaptureRig) -> None:
    """In a transaction of their own, in one with a change of a shape's table, and in none; and at the next start."""
    content = f"repeat('x', {_LARGE})"
    process = rig.start_process()
    rig.wait(lambda: "users" in rig.registry(), "the shape")
    publish(rig, "INSERT INTO users (region) VALUES ('eu')")
    before = resident_peak_mb(process.pid)
    for is_transactional in ("true", "false"):
        publish(rig, f"SELECT pg_logical_emit_message({is_transactional}, 'x', {content})")
    both = f"PERFORM pg_logical_emit_message(true, 'x', {content}); INSERT INTO users VALUES (9, 'us');"  # noqa: S608  the test's own
    publish(rig, f"DO $$ BEGIN {both} END $$")
    assert resident_peak_mb(process.pid) < before + 32
    process.terminate()
    assert process.wait(30) == 0
    process = rig.start_process()
    publish(rig, "INSERT INTO users (region) VALUES ('eu')")
    assert resident_peak_mb(process.pid) < before + 32
    assert len(rig.items("users")) == 3


@every(3, 1)
def test_names_are_bounded_by_the_server_and_take_no_memory(rig: CaptureRig) -> None:
    """The largest ``R``, of 1,600 columns, with a ``Y`` for each; and the largest ``O``, once for each transaction."""
    for each in range(16):
        rig.server.execute(
            "DO $$ BEGIN FOR n IN 1..100 LOOP EXECUTE format('CREATE TYPE %I AS ENUM ()', "
            f"rpad('type_{each}_' || n, 63, 'x')); END LOOP; END $$"
        )
    columns = ", ".join(f"{f'c{n}_':x<63} {f'type_{n // 100}_{n % 100 + 1}':x<63}" for n in range(1_600))
    rig.server.execute(f"CREATE TABLE wide ({columns})", "ALTER TABLE wide REPLICA IDENTITY FULL")
    process = rig.start_process()
    rig.wait(lambda: "users" in rig.registry(), "the shape")
    publish(rig, "INSERT INTO users (region) VALUES ('eu')")
    before = resident_peak_mb(process.pid)
    rig.server.execute(_LONGEST_ORIGIN)
    ((origin_bytes,),) = rig.server.execute("SELECT max(octet_length(roname)) FROM pg_replication_origin")
    assert origin_bytes < _MB
    insert = "INSERT INTO wide DEFAULT VALUES"
    rig.server.execute("SELECT pg_replication_origin_session_setup(roname) FROM pg_replication_origin", *[insert] * 100)
    publish(rig, "INSERT INTO users (region) VALUES ('eu')")
    assert resident_peak_mb(process.pid) < before + 32
    assert len(rig.items("users")) == 2
