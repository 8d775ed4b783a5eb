"""What a real server shows of a slot: in each state, to each role, and on a standby."""

from contextlib import closing
from pathlib import Path
from threading import Thread
from typing import Final

import pytest

from flushtracker.errors import LostSlotError, PostgresUnavailableError
from flushtracker.local.postgres import LocalPostgres
from flushtracker.postgres.connection import rows
from flushtracker.postgres.slot import has_slot, read_slot, read_slot_status, system_identifier
from flushtracker.status.capture_status import SlotStatus
from flushtracker.wal.lsn import parse_lsn
from tests.support.waiting import wait_until

CREATE: Final = "SELECT lsn::text FROM pg_create_logical_replication_slot('shapes', 'pgoutput')"
WRITE: Final = "SELECT pg_logical_emit_message(true, 'test', repeat('x', 100000))"
SWITCH: Final = "SELECT pg_switch_wal()"


def slot_of(server: LocalPostgres, **options: str) -> SlotStatus | None:
    connection = server.connect(**options)
    try:
        return read_slot_status(connection, "shapes", 1_000)
    finally:
        connection.close()


def test_figures_of_a_slot_follow_the_wal(postgres: LocalPostgres) -> None:
    """Each byte written is retained, and without a limit no number is safe."""
    assert slot_of(postgres) is None
    ((confirmed,),) = postgres.execute(CREATE)
    before = slot_of(postgres)
    postgres.execute(WRITE)
    after = slot_of(postgres)
    assert before is not None
    assert after is not None
    assert (after.name, after.at_ms, after.is_active, after.wal_status) == ("shapes", 1_000, False, "reserved")
    assert after.confirmed_lsn == parse_lsn(confirmed)
    assert after.safe_wal_bytes is None
    assert after.retained_bytes - before.retained_bytes == after.written_lsn - before.written_lsn >= 100_000


def test_any_role_sees_the_slot_and_the_server(postgres: LocalPostgres) -> None:
    """A role of its own for monitoring needs no right but to connect."""
    postgres.execute(CREATE, "CREATE ROLE watcher LOGIN")
    slot = slot_of(postgres, user="watcher")
    assert slot is not None
    assert slot.retained_bytes > 0
    connection = postgres.connect(user="watcher")
    try:
        assert system_identifier(connection) == str(postgres.execute("SELECT * FROM pg_control_system()")[0][2])
    finally:
        connection.close()


def test_slot_that_is_lost_has_figures(postgres: LocalPostgres) -> None:
    """Its WAL was removed: it retains nothing, and nothing is safe."""
    postgres.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'", "SELECT pg_reload_conf()", CREATE)
    first = slot_of(postgres)
    assert first is not None
    assert first.safe_wal_bytes is not None
    assert first.safe_wal_bytes > 0
    for _ in range(3):
        postgres.execute(WRITE, SWITCH)
    behind = slot_of(postgres)
    assert behind is not None
    assert behind.wal_status == "unreserved"
    postgres.execute("CHECKPOINT")
    lost = slot_of(postgres)
    assert lost is not None
    assert (lost.wal_status, lost.safe_wal_bytes, lost.is_active) == ("lost", None, False)


def test_a_slot_that_was_idle_for_too_long_is_lost_and_says_what_prevents_it(postgres: LocalPostgres) -> None:
    """PostgreSQL 18 ends a slot that nobody reads for longer than a limit, however little WAL it holds."""
    postgres.execute("ALTER SYSTEM SET idle_replication_slot_timeout = '1s'", "SELECT pg_reload_conf()", CREATE)
    connection = postgres.connect()

    def is_lost() -> bool:
        postgres.execute("CHECKPOINT")
        slot = slot_of(postgres)
        return slot is not None and slot.wal_status == "lost"

    wait_until(is_lost, "the server to end the slot", 60, pause_s=0.5)
    message = r"shapes is lost \(idle_timeout\): .* A larger idle_replication_slot_timeout helps, or 0"
    with closing(connection), pytest.raises(LostSlotError, match=message):
        read_slot(connection, "shapes")


def test_a_slot_that_is_being_created_is_unavailable(postgres: LocalPostgres) -> None:
    """Its creation waits for a transaction that has written before; until then it has no position."""
    with closing(postgres.connect()) as writer, closing(postgres.connect()) as reader:
        rows(writer, "BEGIN; SELECT pg_current_xact_id()")
        creation = Thread(target=postgres.execute, args=(CREATE,))
        creation.start()
        wait_until(lambda: has_slot(reader, "shapes"), "the slot", 30)
        with pytest.raises(PostgresUnavailableError, match="shapes is being created"):
            read_slot(reader, "shapes")
        rows(writer, "COMMIT")
        creation.join(60)
        assert not creation.is_alive()
        assert read_slot(reader, "shapes").active_pid is None


def test_slot_on_a_standby_has_figures(postgres: LocalPostgres, postgres_folder: Path) -> None:
    """There the current WAL is what was received."""
    with postgres.standby(postgres_folder / "standby") as standby:
        standby.execute("SELECT pg_create_physical_replication_slot('shapes', true)")
        postgres.execute(WRITE)

        def has_received() -> bool:
            slot = slot_of(standby)
            return slot is not None and slot.retained_bytes >= 100_000

        wait_until(has_received, "the standby's WAL", 30)
