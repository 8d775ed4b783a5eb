"""The local server of the tests and the demo, with each PostgreSQL that is installed."""

from pathlib import Path

import pytest

from flushtracker.errors import PostgresUnavailableError
from flushtracker.local.postgres import LocalPostgres, packaged_binaries, system_binaries

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
