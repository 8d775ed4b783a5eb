"""Connections as the driver makes them: what ends a wait, which host is tried next, and what a statement can have."""

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Timer

import pytest

from flushtracker.errors import PostgresError, PostgresUnavailableError
from flushtracker.local.free_ports import HOST
from flushtracker.local.postgres import LocalPostgres
from flushtracker.postgres.connection import connect, rows
from flushtracker.shapes.item_key import quoted
from tests.support.waiting import wait_until


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A server that accepts connections, and says nothing."""
    with socket.create_server((HOST, 0)) as server:
        yield int(server.getsockname()[1])


@contextmanager
def interrupted() -> Iterator[None]:
    """Ctrl-C after a moment ends the body soon."""
    # Also where the tests run in the background of a script, which ignores it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
    finally:
        timer.cancel()
        timer.join()


def test_an_interrupt_ends_a_query_here_and_on_the_server(postgres: LocalPostgres) -> None:
    """As the creation of a slot, which would otherwise go on, and leave the slot."""
    with closing(postgres.connect()) as connection, interrupted():
        rows(connection, "SELECT pg_sleep(600)")
    assert connection.closed
    running = "SELECT FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep%' AND state = 'active'"
    wait_until(lambda: postgres.execute(running) == [], "the query canceled", 30)


def test_an_interrupt_ends_a_query_that_no_server_answers(postgres: LocalPostgres) -> None:
    """Nothing is waited for that would cancel it, either."""
    with closing(postgres.connect()) as connection:
        postmaster = int((postgres.data / "postmaster.pid").read_text().split()[0])
        backend = connection.info.backend_pid
        for pid in (postmaster, backend):
            os.kill(pid, signal.SIGSTOP)
        try:
            with interrupted():
                rows(connection, "SELECT 1")
        finally:
            for pid in (postmaster, backend):
                os.kill(pid, signal.SIGCONT)


def test_an_interrupt_ends_an_attempt_to_connect(silent_port: int) -> None:
    with interrupted():
        connect({"host": HOST, "port": str(silent_port)})


@pytest.mark.parametrize("is_named", [True, False], ids=["option", "PGSERVICE"])
def test_the_next_host_of_a_service_is_tried(
    postgres: LocalPostgres, silent_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_named: bool
) -> None:
    """Once ``connect_timeout`` has passed, as with hosts among the options. libpq prefers a service to PGHOST."""
    services = tmp_path / "services.conf"
    services.write_text(
        f"[main]\nhost={HOST},localhost\nport={silent_port},{postgres.port}\nuser={postgres.options['user']}\n"
        "dbname=postgres\n"
    )
    monkeypatch.setenv("PGSERVICEFILE", str(services))
    monkeypatch.setenv("PGHOST", "192.0.2.1")
    if not is_named:
        monkeypatch.setenv("PGSERVICE", "main")
    options = {"service": "main"} if is_named else {}
    with closing(connect({**options, "connect_timeout": "2"})) as connection:
        assert (connection.info.host, connection.info.port) == ("localhost", postgres.port)


def test_a_value_that_no_statement_can_have_is_no_lost_server(postgres: LocalPostgres) -> None:
    """Else it would be tried again and again."""
    with closing(postgres.connect()) as connection, pytest.raises(PostgresError, match="NUL") as caught:
        rows(connection, "SELECT %s", ("\0",))
    assert not isinstance(caught.value, PostgresUnavailableError)


def test_a_name_in_quotes_is_the_servers_own(postgres: LocalPostgres) -> None:
    name = 'A "b"\\é'
    assert postgres.execute(f"SELECT quote_ident('{name}')") == [(quoted(name),)]


def test_what_its_primary_does_ends_no_program_on_a_standby_for_good(
    postgres: LocalPostgres, postgres_folder: Path
) -> None:
    """The owner of a database may rewrite its catalog, and the standby ends sessions that read it: they come again."""
    standby = postgres.standby(postgres_folder / "standby")
    standby.settings = {**standby.settings, "max_standby_streaming_delay": "0"}
    with standby, closing(connect(standby.options)) as connection:
        rows(connection, "BEGIN")
        rows(connection, "SELECT count(*) FROM pg_class")
        ((lsn,),) = postgres.execute("VACUUM FULL pg_class", "SELECT pg_current_wal_insert_lsn()::text")
        replayed = f"SELECT pg_last_wal_replay_lsn() >= '{lsn}'::pg_lsn"
        wait_until(lambda: standby.execute(replayed) == [(True,)], "the standby", 30.0)
        with pytest.raises(PostgresUnavailableError, match="conflict with recovery"):
            rows(connection, "SELECT count(*) FROM pg_class")
