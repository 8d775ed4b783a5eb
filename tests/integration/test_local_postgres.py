"""The local server of the tests and the demo, with each PostgreSQL that is installed."""

from pathlib import Path
from typing import Final

import pytest

from flushtracker.errors import PostgresUnavailableError
from flushtracker.local.postgres import LocalPostgres, packaged_binaries, system_binaries
from tests.support.new_server import new_server
from tests.support.processes import group_has_ended, started_by_killed_program
from tests.support.waiting import wait_until

START_AND_WAIT: Final = """
import sys, time
from pathlib import Path
from flushtracker.local.postgres import LocalPostgres
server = LocalPostgres(Path(sys.argv[1]))
server.start()
print(server._process.pid, flush=True)
time.sleep(600)
"""
IDENTIFIER: Final = "SELECT system_identifier FROM pg_control_system()"
BINARIES = [folder for folder in (packaged_binaries(), system_binaries()) if folder is not None]


@pytest.mark.parametrize("binaries", BINARIES, ids=lambda folder: folder.parent.name)
def test_commits_survive_a_kill_and_a_restart_on_the_same_port(postgres_folder: Path, binaries: Path) -> None:
    """Every process gets SIGKILL, then the server starts on the same data; at the end nothing is left running."""
    with LocalPostgres(postgres_folder / "server", binaries=binaries) as server:
        port = server.port
        server.execute("CREATE TABLE kept (id int)", "INSERT INTO kept VALUES (1)")
        server.kill()
        with pytest.raises(PostgresUnavailableError, match="cannot be reached"):
            server.connect()
        server.start()
        server.execute("INSERT INTO kept VALUES (2)")
        server.restart()
        assert server.execute("SELECT id FROM kept ORDER BY id") == [(1,), (2,)]
        assert server.port == port
    with pytest.raises(PostgresUnavailableError):
        server.connect()


def test_a_standby_follows_its_primary(postgres: LocalPostgres, postgres_folder: Path) -> None:
    """The standby starts from a base backup of the running server."""
    postgres.execute("CREATE TABLE kept (id int)", "INSERT INTO kept VALUES (1)")
    with postgres.standby(postgres_folder / "standby") as standby:
        assert standby.execute("SELECT pg_is_in_recovery(), id FROM kept") == [(True, 1)]


def test_a_copy_of_a_stopped_server_is_independent(postgres: LocalPostgres, postgres_folder: Path) -> None:
    """The copy has the data, and does not affect the restarted original."""
    postgres.execute("CREATE TABLE kept (id int)", "INSERT INTO kept VALUES (1)")
    postgres.stop()
    twin = postgres.copy_to(postgres_folder / "copy")
    postgres.start()
    with twin:
        twin.execute("INSERT INTO kept VALUES (2)")
        assert (twin.execute("SELECT count(*) FROM kept"), postgres.execute("SELECT count(*) FROM kept")) == (
            [(2,)],
            [(1,)],
        )


def test_new_servers_have_identifiers_of_their_own(postgres: LocalPostgres, postgres_folder: Path) -> None:
    """Also in their WAL, which a recovery and a standby read."""
    with new_server(postgres_folder / "other") as other:
        identifiers = {
            each.execute("SELECT system_identifier FROM pg_control_system()")[0] for each in (postgres, other)
        }
        assert len(identifiers) == 2
        other.execute("CREATE TABLE kept (id int)", "INSERT INTO kept VALUES (1)")
        other.kill()
        other.start()
        with other.standby(postgres_folder / "standby") as standby:
            assert standby.execute("SELECT pg_is_in_recovery(), id FROM kept") == [(True, 1)]
            assert standby.execute(IDENTIFIER)[0] in identifiers


def test_a_server_ends_with_the_program_that_started_it(postgres_folder: Path) -> None:
    """However the program ended: a killed test run leaves none of its processes behind."""
    pid = started_by_killed_program(START_AND_WAIT, postgres_folder / "server")
    wait_until(lambda: group_has_ended(pid), "the server's end", 60)
