"""Shapes begin again, with the real server, broker, capture, tracker and writers, and their followers just continue."""

from pathlib import Path
from typing import Final

import pytest

from flushtracker.cli import main
from flushtracker.local.free_ports import free_port
from flushtracker.shape_log.table.reader import read_shape, read_shape_log
from flushtracker.wal.log_offset import LogOffset
from tests.support.brokers import Broker
from tests.support.log_follower import Follower, row_texts
from tests.support.loop import Loop
from tests.support.loop_workload import USERS
from tests.support.seeds import every

_USERS: Final = USERS.shapes[0].id


@every(9, 0)
def test_a_shape_that_a_schema_change_has_ended_begins_again_under_its_id(
    postgres_folder: Path, broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    """Capture and the writers are killed meanwhile. The rows are those of the query, and the slot goes on.

    What was changed while the shape had ended is in its new snapshot, and in no event: a follower gets it with the
    difference, and continues. An older offset is still what was true then.
    """
    with Loop(postgres_folder, USERS, running_broker=broker) as loop:
        loop.wait(lambda: loop.is_current(_USERS), "the first snapshot")
        loop.server.execute("UPDATE public.users SET n = -n WHERE id % 5 = 0")
        loop.wait(lambda: loop.is_current(_USERS), "the first changes")
        follower = Follower(str(loop.log), shape_id=_USERS)
        assert loop.has_followed(follower)
        then, rows_then = LogOffset.last_of(follower.poll().tx_offset), loop.expected(_USERS)
        loop.server.execute("ALTER TABLE public.users ALTER COLUMN n TYPE bigint")
        loop.server.execute("DELETE FROM public.users WHERE id % 7 = 0")
        loop.wait(lambda: loop.rig.registry()[_USERS].removed_at, "the end of the shape")
        assert main(["resync", _USERS, "--config", str(loop.rig.config_file), "--yes", "--no-wait"]) == 0
        assert f"shape {_USERS} has incarnation 2" in capsys.readouterr().out
        loop.kill("capture")
        loop.wait(lambda: loop.rig.registry()[_USERS].removed_at is None, "its next incarnation")
        assert loop.rig.registry()[_USERS].definition.incarnation == 2
        loop.kill("writers")
        loop.server.execute("INSERT INTO public.users VALUES (1000, 1)")
        loop.wait(lambda: loop.is_current(_USERS), "the new snapshot, and what follows it")
        loop.wait(lambda: loop.has_followed(follower), "the follower")
        assert (follower.restarts, len(follower.table)) == (0, len(loop.expected(_USERS)))
        before = read_shape(str(loop.log), _USERS, then).rows.to_pylist()
        assert row_texts(before) == rows_then
        later = read_shape_log(str(loop.log), _USERS).position
        lsn = loop.rig.commit_lsn("INSERT INTO public.users VALUES (1001, 1)")
        loop.wait(lambda: loop.is_current(_USERS), "a later change")
        assert [row["key"] for row in read_shape_log(str(loop.log), _USERS, later).rows.to_pylist() if row["key"]] == [
            '"public"."users"/"1001"'
        ]
        loop.wait(lambda: loop.rig.confirmed_lsn() > lsn, "the slot past it")


@every(9, 4)
def test_a_shape_that_was_evicted_begins_again_and_its_follower_continues(
    postgres_folder: Path, broker: Broker
) -> None:
    """Its writer was down. Meanwhile the slot goes on, so what is changed is in no event, and in the new snapshot."""
    settings = {
        "status": {"listen": f"127.0.0.1:{free_port()}"},
        "capture": {"evict": {"remove_after": "2 seconds", "grace": "10 seconds", "at_least": "1 kB"}},
        "serve": False,
    }
    with Loop(postgres_folder, USERS, running_broker=broker, settings=settings) as loop:
        loop.wait(lambda: loop.is_current(_USERS), "the first snapshot")
        follower = Follower(str(loop.log), shape_id=_USERS)
        assert loop.has_followed(follower)
        loop.end("writers")

        def is_evicted() -> bool:
            loop.server.execute("UPDATE public.users SET n = n + 1")
            return loop.rig.registry()[_USERS].evicted_at_ms is not None

        loop.wait(is_evicted, "the eviction")
        lsn = loop.rig.commit_lsn(
            "DELETE FROM public.users WHERE id % 7 = 0", "INSERT INTO public.users VALUES (1000, 1)"
        )
        loop.wait(lambda: loop.rig.confirmed_lsn() > lsn, "the slot past what the shape lacks")
        assert main(["resync", _USERS, "--config", str(loop.rig.config_file), "--yes", "--no-wait"]) == 0
        loop.start("writers")
        loop.wait(lambda: loop.has_followed(follower), "the follower")
        lsn = loop.rig.commit_lsn("INSERT INTO public.users VALUES (1001, 1)")
        loop.wait(lambda: loop.has_followed(follower) and loop.is_current(_USERS), "a later change")
        loop.wait(lambda: loop.rig.confirmed_lsn() > lsn, "the slot past it")
        assert (follower.restarts, loop.rig.registry()[_USERS].definition.incarnation) == (0, 2)


@every(9, 8)
def test_followers_continue_when_the_server_is_restored_and_when_the_slot_is_lost(
    postgres_folder: Path, broker: Broker
) -> None:
    """With the same id. The restore undoes an insert, a delete and an update, and the server uses LSNs again.

    Then the slot is dropped, with changes that it has not sent. The follower is stopped meanwhile, and killed parts
    do not matter: it has the rows of the query after each, and gets no change that cannot follow.
    """
    with Loop(postgres_folder, USERS, running_broker=broker) as loop:
        loop.wait(lambda: loop.is_current(_USERS), "the first snapshot")
        follower, behind = (Follower(str(loop.log), short_lived=True, shape_id=_USERS) for _ in range(2))
        assert loop.has_followed(follower)
        assert loop.has_followed(behind)
        original = loop.server
        original.stop()
        copy = original.copy_to(postgres_folder / "copy")
        copy.settings["max_wal_senders"] = "10"
        original.start()
        original.execute(
            "INSERT INTO public.users VALUES (1000, 1)",
            "DELETE FROM public.users WHERE id = 7",
            "UPDATE public.users SET n = -n WHERE id = 8",
        )
        loop.wait(lambda: loop.has_followed(follower), "what the restore undoes")
        original.stop()
        with copy:
            loop.use(copy)
            copy.execute("UPDATE public.users SET n = 0 WHERE id = 9")
            loop.begin_epoch("--new-epoch")
            loop.kill("writers")
            loop.wait(lambda: loop.has_followed(follower), "the follower after the restore")
            copy.execute("INSERT INTO public.users VALUES (2000, 2)")
            loop.wait(lambda: loop.has_followed(follower), "a change after the restore")
            loop.end_capture()
            copy.execute("DELETE FROM public.users WHERE id % 2 = 0", "INSERT INTO public.users VALUES (3000, 3)")
            copy.execute("SELECT pg_drop_replication_slot('shapes')")
            loop.begin_epoch("--create", "--new-epoch")
            loop.kill("tracker")
            loop.wait(lambda: loop.has_followed(follower), "the follower after the slot was lost")
            assert loop.has_followed(behind), "one that has read nothing since before the restore"
            lsn = loop.rig.commit_lsn("INSERT INTO public.users VALUES (4000, 4)")
            loop.wait(lambda: loop.has_followed(follower), "a later change")
            loop.wait(lambda: loop.rig.confirmed_lsn() > lsn, "the slot past it")
            assert [each.restarts for each in (follower, behind)] == [0, 0]
            assert follower.position is not None
            assert follower.position.source.endswith("/1/shapes/2")
