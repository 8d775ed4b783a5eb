"""The server that tests and demonstrations run on, with each of the PostgreSQLs that are here."""

from pathlib import Path

import pytest

from flushtracker.errors import PostgresUnavailableError
from flushtracker.local.postgres import LocalPostgres, packaged_binaries, system_binaries

BINARIES = [folder for folder in (packaged_binaries(), system_binaries()) if folder is not None]


@pytest.mark.parametrize("binaries", BINARIES, ids=lambda folder: folder.parent.name)
def test_what_was_committed_survives_a_kill_and_a_restart_on_the_same_port(
    postgres_folder: Path, binaries: Path
) -> None:
    """SIGKILL to every process of the server, then a start on the same data; afterwards nothing runs any more."""
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
    """A base backup of the running server, started as a standby of it."""
    postgres.execute("CREATE TABLE kept (id int)", "INSERT INTO kept VALUES (1)")
    with postgres.standby(postgres_folder / "standby") as standby:
        assert standby.execute("SELECT pg_is_in_recovery(), id FROM kept") == [(True, 1)]


def test_a_copy_of_a_stopped_server_is_a_server_of_its_own(postgres: LocalPostgres, postgres_folder: Path) -> None:
    """The copy has the data, and the original, started again, is not disturbed by it."""
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
