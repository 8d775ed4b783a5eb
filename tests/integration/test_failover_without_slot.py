"""Promotions before PostgreSQL 17, where a standby has no copy of the slot: the ids stay, and followers continue."""

from pathlib import Path

import pytest

from flushtracker.errors import PostgresError
from flushtracker.local.free_ports import HOST
from flushtracker.local.postgres import SUPERUSER, LocalPostgres
from tests.support.brokers import Broker
from tests.support.log_follower import Follower
from tests.support.loop import Loop
from tests.support.loop_workload import USERS
from tests.support.seeds import every
from tests.support.server_versions import binaries_of, runs_here
from tests.support.waiting import wait_until

pytestmark = pytest.mark.skipif(not runs_here(), reason="the servers are built for 64-bit x86 Linux")

_DEADLINE_S = 60
_USERS = USERS.shapes[0].id


def standby_of(primary: LocalPostgres, folder: Path) -> LocalPostgres:
    """A standby that streams from the primary, made of a copy of its files, which has no slots."""
    primary.stop()
    standby = primary.copy_to(folder)
    primary.start()
    (standby.data / "standby.signal").touch()
    for slot in (standby.data / "pg_replslot").glob("*/*"):
        slot.unlink()
    for slot in (standby.data / "pg_replslot").glob("*"):
        slot.rmdir()
    standby.settings |= {"primary_conninfo": f"host={HOST} port={primary.port} user={SUPERUSER}"}
    standby.start()
    return standby


def wait_for_replay(primary: LocalPostgres, standby: LocalPostgres) -> None:
    """Wait until the standby has everything that the primary has written so far."""
    ((lsn,),) = primary.execute("SELECT pg_current_wal_flush_lsn()::text")
    replayed = f"SELECT pg_last_wal_replay_lsn() >= '{lsn}'::pg_lsn"
    wait_until(lambda: standby.execute(replayed) == [(True,)], "the standby", _DEADLINE_S)


@pytest.mark.parametrize("version", [pytest.param(15, marks=pytest.mark.soak), pytest.param(16, marks=every(8, 7))])
def test_followers_continue_over_a_promotion_that_has_no_slot(
    postgres_folder: Path, broker: Broker, version: int
) -> None:
    """With ``--create --new-epoch``: by the difference; also what the failover has lost, and nobody captured."""
    server = LocalPostgres(postgres_folder / "old", binaries=binaries_of(version))
    with Loop(postgres_folder, USERS, servers=server, running_broker=broker) as loop:
        loop.wait(lambda: loop.is_current(_USERS), "the first snapshot")
        primary = loop.server
        standby = standby_of(primary, postgres_folder / "standby")
        try:
            follower = Follower(str(loop.log), short_lived=True, shape_id=_USERS)
            primary.execute("UPDATE public.users SET n = -n WHERE id % 5 = 0")
            loop.wait(lambda: loop.has_followed(follower), "changes of the primary")
            wait_for_replay(primary, standby)
            standby.stop()
            primary.execute("INSERT INTO public.users VALUES (1000, 1)", "DELETE FROM public.users WHERE id = 7")
            loop.wait(lambda: loop.has_followed(follower), "what the failover loses")
            loop.end("capture")
            primary.kill()
            standby.start()
            standby.execute("SELECT pg_promote()")
            standby.execute("DELETE FROM public.users WHERE id = 9", "INSERT INTO public.users VALUES (2000, 2)")
            loop.use(standby)
            refused = loop.rig.start_process()
            assert refused.wait(_DEADLINE_S) == PostgresError.exit_code
            assert "there is no replication slot" in loop.rig.log()
            loop.begin_epoch("--create", "--new-epoch")
            loop.kill("writers")
            loop.wait(lambda: loop.has_followed(follower), "the follower after the promotion")
            lsn = loop.rig.commit_lsn("INSERT INTO public.users VALUES (4000, 4)")
            loop.wait(lambda: loop.has_followed(follower), "a later change")
            loop.wait(lambda: loop.rig.confirmed_lsn() > lsn, "the slot past it")
            assert follower.restarts == 0
            assert follower.position is not None
            assert follower.position.source.endswith("/1/shapes/1")
        finally:
            standby.stop()
