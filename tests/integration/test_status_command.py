"""``flushtracker status`` with a real server: the slot in each state, and each way in which the server says no."""

import os
import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from flushtracker.local.free_ports import free_port
from flushtracker.local.postgres import LocalPostgres
from flushtracker.postgres.replication_stream import ReplicationStream
from flushtracker.postgres.slot import system_identifier
from flushtracker.postgres.upgrade_seal import create_seal
from flushtracker.status.job_status import SourceStatus
from tests.support.status_command import StatusCommand
from tests.support.status_pages import ACK, SEEN, job_page, job_status
from tests.support.waiting import wait_until

CREATE = "SELECT lsn::text FROM pg_create_logical_replication_slot('shapes', 'pgoutput')"
WRITE = "SELECT pg_logical_emit_message(true, 'test', repeat('x', 1000000))"


@pytest.fixture
def command(postgres: LocalPostgres, tmp_path: Path) -> StatusCommand:
    """The server has a slot, which nobody reads."""
    postgres.execute(CREATE)
    return StatusCommand(tmp_path, postgres.options, is_in_process=True)


@contextmanager
def reader(server: LocalPostgres) -> Iterator[None]:
    """Somebody who reads the slot."""
    server.execute("CREATE PUBLICATION shapes FOR ALL TABLES")
    stream = ReplicationStream(server.options)
    try:
        stream.start("shapes", "shapes")
        yield
    finally:
        stream.close()


def source_name(server: LocalPostgres) -> str:
    connection = server.connect()
    try:
        return f"{system_identifier(connection)}/1/shapes"
    finally:
        connection.close()


def test_slot_is_shown_while_the_tracker_is_dead(postgres: LocalPostgres, command: StatusCommand) -> None:
    """Its figures are right, the row is dated, and the exit code says that something is wrong."""
    source = source_name(postgres)
    command.append(source)
    command.append("1/1/shapes", ack_lsn=SEEN + 5, last_seen_lsn=SEEN + 5)  # another server's slot of the same name
    postgres.execute(WRITE)
    ((retained,),) = postgres.execute("SELECT pg_current_wal_lsn() - restart_lsn FROM pg_replication_slots")
    url = f"http://127.0.0.1:{free_port()}"
    code, found = command.json("--job", url, "--max-retained", "1TB")
    assert found["source"] == source
    assert found["postgres"]["slot"]["retained_bytes"] >= retained >= 1_000_000
    assert found["job"]["error"] == f"job {url} does not answer (connection refused)"
    assert found["acks"]["last"]["ack_lsn"] == "0/37F1C5E"
    assert [each["kind"] for each in found["verdict"]["findings"]] == ["slot_inactive", "job_silent"]
    assert code == 1
    assert command.kinds("--job", url, "--max-retained", "1MB") == (1, ["slot_inactive", "job_silent", "max_retained"])


def test_all_is_right_where_everybody_answers(postgres: LocalPostgres, command: StatusCommand) -> None:
    """Somebody reads the slot, the job tells its status, and the ack table has the source's ack."""
    source = source_name(postgres)
    command.append(source)
    with job_page(job_status(SourceStatus(source, ACK, SEEN, 0, 0, None, ()))) as url:
        assert command.kinds("--job", url) == (1, ["slot_inactive"])
        with reader(postgres):
            assert command.kinds("--job", url) == (0, [])
            first, second = command.run("--job", url, "--max-retained", "1 GB", "--max-age", "1s").stdout.splitlines()
    assert first.startswith("slot shapes  active  wal_status=reserved  retained ")
    assert second == "ack 0/37F1C5E   last seen 0/37F1CE7   nothing pending"


def test_slot_that_is_missing_or_lost_is_told(postgres: LocalPostgres, command: StatusCommand) -> None:
    """A lost slot is a failure, and one that does not exist is another."""
    command.append(source_name(postgres))
    postgres.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'", "SELECT pg_reload_conf()")
    for _ in range(3):
        postgres.execute(WRITE, "SELECT pg_switch_wal()")
    assert command.kinds() == (1, ["slot_unreserved", "slot_inactive", "job_not_asked"])
    postgres.execute("CHECKPOINT")
    assert command.kinds() == (1, ["slot_lost", "job_not_asked"])
    postgres.execute("SELECT pg_drop_replication_slot('shapes')")
    assert command.kinds() == (7, ["slot_missing", "job_not_asked"])


def test_role_that_is_refused_is_told_why(
    postgres: LocalPostgres, command: StatusCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a wrong password, and without the right to log in; the password is not shown."""
    postgres.execute("CREATE ROLE watcher LOGIN PASSWORD 'right'")
    hba = postgres.data / "pg_hba.conf"
    hba.write_text(f"host all watcher 127.0.0.1/32 scram-sha-256\n{hba.read_text()}")
    postgres.execute("SELECT pg_reload_conf()")
    command.connection = {**postgres.options, "user": "watcher", "password": "${SECRET}"}
    monkeypatch.setenv("SECRET", "hunter2")
    done = command.run()
    assert done.returncode == 7
    assert "password authentication failed" in done.stdout.splitlines()[0]
    assert "hunter2" not in done.stdout + done.stderr
    monkeypatch.setenv("SECRET", "right")
    assert command.run().stdout.startswith("slot shapes  inactive  wal_status=reserved  retained ")
    postgres.execute("ALTER ROLE watcher NOLOGIN")
    code, found = command.json()
    assert code == 7
    assert found["postgres"]["error"].endswith("ALTER ROLE … LOGIN")


def test_server_that_hangs_or_is_down_is_told_in_time(postgres: LocalPostgres, command: StatusCommand) -> None:
    """A stopped postmaster, whose kernel still accepts connections, and no server at all."""
    command.append(source_name(postgres))
    postmaster = int((postgres.data / "postmaster.pid").read_text().splitlines()[0])
    os.kill(postmaster, signal.SIGSTOP)
    try:
        code, found = command.json()
    finally:
        os.kill(postmaster, signal.SIGCONT)
    assert code == 7
    assert "timeout expired" in found["postgres"]["error"]
    assert found["acks"]["last"]["ack_lsn"] == "0/37F1C5E"
    postgres.kill()
    code, found = command.json()
    assert code == 7
    assert "Connection refused" in found["postgres"]["error"]
    assert found["acks"]["last"]["ack_lsn"] == "0/37F1C5E"
    postgres.start()
    assert command.kinds() == (1, ["slot_inactive", "job_not_asked"])


def test_it_is_safe_to_upgrade_once_everything_is_confirmed(postgres: LocalPostgres, command: StatusCommand) -> None:
    """A transaction that is open may still commit; nobody need read the slot any more, nor answer."""
    postgres.execute(WRITE)
    connection = postgres.connect()
    connection.autocommit = False
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE users (id int)")
        code, found = command.json("--safe-to-upgrade")
        kinds = [each["kind"] for each in found["verdict"]["findings"] if each["exit_code"]]
        assert (code, kinds) == (1, ["upgrade_has_writers", "upgrade_unconfirmed", "upgrade_not_sealed"])
        assert found["upgrade"]["server_version"] == 18
    connection.close()

    postgres.execute("SELECT pg_create_logical_replication_slot('drained', 'pgoutput')")

    def is_safe() -> bool:
        # The server logs the transactions in progress now and then.
        postgres.execute("SELECT pg_replication_slot_advance('shapes', pg_current_wal_lsn())")
        with closing(postgres.connect()) as connection:
            # Also of a capture of the same server that was drained before: nothing confirms its slot any more.
            for slot in ("shapes", "drained"):
                create_seal(connection, slot, system_identifier(connection))
        return command.run("--safe-to-upgrade").returncode == 0

    wait_until(is_safe, "a slot that is confirmed to the end", 60)
