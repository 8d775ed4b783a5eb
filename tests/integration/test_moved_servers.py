"""A source whose server is restored, or replaced in other ways than by pg_upgrade: what capture says, and followers."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from flushtracker.errors import SlotError
from flushtracker.local.postgres import LocalPostgres
from tests.support.local_loop import LocalLoop
from tests.support.major_upgrade import old_server, system_id
from tests.support.moved_server import Archived, dumped, end_subscription, replicated, subscribed
from tests.support.seeds import in_turn
from tests.support.source_history import TABLES, SourceHistory
from tests.support.waiting import wait_until

_CREATE_SLOT = "SELECT pg_create_logical_replication_slot('shapes', 'pgoutput')"
_DEADLINE_S = 120
_WAYS = {"dump": dumped, "logical replication": replicated, "pg_createsubscriber": subscribed}


@pytest.fixture
def postgres(postgres_folder: Path) -> Iterator[LocalPostgres]:
    """A server of PostgreSQL 17, with tables that have rows."""
    with old_server(postgres_folder / "old") as server:
        server.execute(*TABLES)
        yield server


def refusal(loop: LocalLoop, *, new_epoch: bool = False) -> str:
    loop.start(new_epoch=new_epoch)
    assert loop.capture is not None
    return loop.capture.failure()


def stop_capture(loop: LocalLoop) -> None:
    """Stop it, and wait until the server has missed it."""
    loop.stop()
    active = "SELECT 1 FROM pg_replication_slots WHERE slot_name = 'shapes' AND active"
    wait_until(lambda: not loop.rig.server.execute(active), "the slot is free", _DEADLINE_S)


def refusal_to_create(loop: LocalLoop) -> str:
    """``capture --create`` leaves no slot that would keep WAL."""
    process = loop.rig.start_process("flushtracker", "capture", "--create")
    assert process.wait(_DEADLINE_S) == SlotError.exit_code, loop.rig.log()[-2000:]
    assert not loop.rig.server.execute("SELECT 1 FROM pg_replication_slots WHERE slot_name = 'shapes'")
    return loop.rig.log().splitlines()[-1]


@pytest.mark.parametrize("how", in_turn(("base backup", "copy of the files")))
def test_a_recovery_to_a_point_in_time_is_refused_and_heals_as_a_new_epoch(
    loop: LocalLoop, postgres_folder: Path, how: str
) -> None:
    """A base backup has no slots; a copy of the files has, and its recovery promotes a server that lacks what followed.

    Whichever slot it has, capture refuses it, and with a new epoch followers get what the recovery has undone.
    """
    server = loop.rig.server
    archived = Archived(server, postgres_folder)
    history = SourceHistory(loop, postgres_folder, 11)
    if how == "base backup":
        base = server.standby(postgres_folder / "recovered")
    else:
        stop_capture(loop)
        server.stop()
        base = server.copy_to(postgres_folder / "recovered")
        server.start()
        loop.start()
    history.change()
    archived.mark()
    history.change()
    history.settle()
    stop_capture(loop)
    history.use(archived.recovered(base))
    history.change()
    if how == "base backup":
        assert "there is no replication slot shapes" in refusal(loop)
        assert "is gone from the server, and source" in refusal_to_create(loop)
        base.execute(_CREATE_SLOT)
    assert "the failover has lost transactions that shapes have" in refusal(loop)
    history.begin_epoch(new_epoch=True)
    history.finish()


@pytest.mark.parametrize("how", in_turn([*_WAYS]))
def test_a_server_that_has_the_rows_of_another_one_continues_its_shapes(
    loop: LocalLoop,
    postgres_folder: Path,
    servers: ExitStack,
    how: str,
) -> None:
    """With ``--upgraded-from``, by the difference, which has what nobody captured on either server.

    Without it capture refuses the server, also as a new epoch, and creates no slot there.
    """
    history = SourceHistory(loop, postgres_folder, 12)
    old = loop.rig.server
    before = system_id(old)
    make = _WAYS[how]
    if make is dumped:
        stop_capture(loop)
        history.change()
    new = make(old, postgres_folder / "new")
    servers.callback(new.stop)
    if make is not dumped:
        history.change()
        history.settle()
        stop_capture(loop)
        history.change()
        end_subscription(old, new)
    old.stop()
    history.use(new)
    assert system_id(new) != before
    history.change()
    assert f"/1/shapes on server {before}" in refusal_to_create(loop)
    new.execute(_CREATE_SLOT)
    assert f"/1/shapes on server {before}" in refusal(loop)
    assert f"/1/shapes on server {before}" in refusal(loop, new_epoch=True)
    history.begin_epoch(upgraded_from=before)
    history.finish()


def test_a_subscriber_is_captured_before_it_has_caught_up(
    loop: LocalLoop, postgres_folder: Path, servers: ExitStack
) -> None:
    """What it applies are changes like any others, so nobody needs to stop the applications for capture's sake."""
    history = SourceHistory(loop, postgres_folder, 13)
    old = loop.rig.server
    before = system_id(old)
    new = subscribed(old, postgres_folder / "new")
    servers.callback(new.stop)
    stop_capture(loop)
    history.use(new)
    new.execute(_CREATE_SLOT)
    for _ in range(3):
        old.execute("UPDATE items SET note = note || '+'", "DELETE FROM users WHERE id IN (SELECT min(id) FROM users)")
    history.begin_epoch(upgraded_from=before)
    for _ in range(3):
        old.execute("UPDATE items SET note = note || '-'", "INSERT INTO users SELECT max(id) + 1, 1 FROM users")
        history.settle()
    end_subscription(old, new)
    old.stop()
    history.finish()
