"""Followers of a shape log over a major upgrade of the server, by the real pg_upgrade, with all programs."""

import random
import signal
from contextlib import ExitStack
from pathlib import Path
from threading import Event

import pytest

from flushtracker.status.upgrade_facts import KEEPS_SLOTS_SINCE
from tests.support.brokers import Broker
from tests.support.log_follower import Follower
from tests.support.loop import DEADLINE_S, Loop
from tests.support.loop_workload import USERS
from tests.support.major_upgrade import old_server, system_id, upgraded
from tests.support.seeds import every
from tests.support.waiting import wait_until

_DROP_SLOT = "SELECT pg_drop_replication_slot('shapes')"
_DEADLINE_S = 60
_USERS = USERS.shapes[0].id


@every(8, 5)
def test_a_follower_continues_over_an_upgrade_that_has_kept_the_slot(
    postgres_folder: Path, broker: Broker, servers: ExitStack
) -> None:
    """In the log that it reads, from the same snapshot: no table is read again. Writers are killed meanwhile."""
    server = old_server(postgres_folder / "old")
    with Loop(postgres_folder, USERS, servers=server, running_broker=broker) as loop:
        loop.wait(lambda: loop.is_current(_USERS), "the first snapshot")
        old, before = loop.server, system_id(loop.server)
        follower = Follower(str(loop.log), short_lived=True, shape_id=_USERS)
        assert loop.has_followed(follower)
        attempt = follower.poll().attempt
        loop.end_capture()
        old.execute("UPDATE public.users SET n = -n WHERE id % 5 = 0", "DELETE FROM public.users WHERE id = 7")
        process = loop.rig.start_process("flushtracker", "capture", "--before-upgrade")
        assert process.wait(DEADLINE_S) == 0, loop.rig.log()[-2000:]
        old.stop()
        new = servers.enter_context(upgraded(old, postgres_folder / "new"))
        new.execute("DELETE FROM public.users WHERE id = 9", "INSERT INTO public.users VALUES (2000, 2)")
        loop.use(new)
        loop.start("capture")
        loop.kill("writers")
        loop.wait(lambda: loop.has_followed(follower), "the follower after the upgrade")
        lsn = loop.rig.commit_lsn("INSERT INTO public.users VALUES (4000, 4)", "DELETE FROM public.users WHERE id = 10")
        loop.wait(lambda: loop.has_followed(follower), "later changes")
        loop.wait(lambda: loop.rig.confirmed_lsn() > lsn, "the slot past them")
        assert follower.restarts == 0
        assert follower.position is not None
        assert (follower.position.source, follower.position.attempt) == (f"{before}/1/shapes", attempt)


@pytest.mark.parametrize("version", [pytest.param(16, marks=every(8, 6)), pytest.param(17, marks=every(8, 1))])
def test_a_follower_continues_over_an_upgrade_that_has_not_kept_the_slot(
    version: int, postgres_folder: Path, broker: Broker, servers: ExitStack
) -> None:
    """By the difference, under the same id: with what was written before the upgrade and after it, and not captured.

    Capture and the writers are killed meanwhile; capture gets the flag again each time.
    """
    server = old_server(postgres_folder / "old", version)
    loop = Loop(postgres_folder, USERS, servers=server, running_broker=broker)
    rng = random.Random(5)  # noqa: S311  reproducible
    with loop:
        loop.wait(lambda: loop.is_current(_USERS), "the first snapshot")
        old, before = loop.server, system_id(loop.server)
        follower, behind = (Follower(str(loop.log), short_lived=True, shape_id=_USERS) for _ in range(2))
        assert loop.has_followed(behind)
        old.execute("UPDATE public.users SET n = -n WHERE id % 5 = 0")
        loop.wait(lambda: loop.has_followed(follower), "the first changes")
        loop.end_capture()
        old.execute(
            "INSERT INTO public.users VALUES (1000, 1)",
            "DELETE FROM public.users WHERE id = 7",
            "UPDATE public.users SET n = 0 WHERE id = 8",
        )
        if version >= KEEPS_SLOTS_SINCE:
            old.execute(_DROP_SLOT)
        old.stop()
        new = servers.enter_context(upgraded(old, postgres_folder / "new"))
        new.execute("DELETE FROM public.users WHERE id = 9", "INSERT INTO public.users VALUES (2000, 2)")
        loop.use(new)
        arguments = ("flushtracker", "capture", "--create", "--upgraded-from", before)
        for _ in range(3):
            process = loop.rig.start_process(*arguments)
            Event().wait(rng.uniform(0.5, 3))
            process.send_signal(signal.SIGKILL)
            process.wait(_DEADLINE_S)
        process = loop.rig.start_process(*arguments)
        wait_until(lambda: f"{before}/1/shapes/1" in loop.sources(), "the next epoch", DEADLINE_S)
        process.kill()
        process.wait(_DEADLINE_S)
        loop.start("capture")
        loop.kill("writers")
        loop.wait(lambda: loop.has_followed(follower), "the follower after the upgrade")
        assert loop.has_followed(behind), "one that has read little before the upgrade"
        lsn = loop.rig.commit_lsn("INSERT INTO public.users VALUES (4000, 4)", "DELETE FROM public.users WHERE id = 10")
        loop.wait(lambda: loop.has_followed(follower), "later changes")
        loop.wait(lambda: loop.rig.confirmed_lsn() > lsn, "the slot past them")
        assert [each.restarts for each in (follower, behind)] == [0, 0]
        assert follower.position is not None
        assert follower.position.source == f"{before}/1/shapes/1"
