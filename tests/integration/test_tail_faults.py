"""Clients of servers with a tail, in the real loop without Spark: whatever happens while they are ahead of the log.

Each client asks another server each time, one of them without a tail. Nothing is taken back, missing, or shown twice:
:class:`TailClient` sees to that at each answer.
"""

import asyncio
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from flushtracker.local.broker import LocalBroker
from flushtracker.local.postgres import LocalPostgres
from tests.support.capture_rig import CaptureRig
from tests.support.local_loop import LocalLoop
from tests.support.seeds import every
from tests.support.tail_loop import OTHERS, rows_of, tail_loop

_COLUMN_ADDED = ("ALTER TABLE users ADD COLUMN more text", "INSERT INTO users VALUES (10, 'of two', 'of two')")
_TYPE_CHANGED = ("ALTER TABLE users ALTER COLUMN note TYPE varchar(80)", "UPDATE users SET note = 'of 80'")


async def test_writer_stopped_server_restarted(loop: LocalLoop) -> None:
    """Clients go on with the other server's tail, and with that of the new one from the next transaction on."""
    async with tail_loop(loop) as world:
        fleet = world.fleet
        await world.ahead("INSERT INTO users VALUES (10, 'ahead')")
        fleet.restart(0)
        (new,), other = fleet.tails[:1], fleet.tails[1]
        assert await fleet.step(world.wanderer, new) == 200
        await world.ahead("UPDATE users SET note = 'of the other tail' WHERE id = 10", on=(other,))
        await world.ahead("DELETE FROM users WHERE id = 10", on=(new,))
        await world.log()
        assert world.wanderer.conflicts == 0


async def test_snapshot_again_while_ahead(loop: LocalLoop) -> None:
    """The client waits for a log that has what it was shown, and begins again then."""
    async with tail_loop(loop) as world:
        await world.ahead("INSERT INTO users VALUES (10, 'ahead')")
        await asyncio.to_thread(loop.take_snapshots, "users")
        for server in world.fleet.servers:
            assert await world.fleet.step(world.wanderer, server) == 200
        await world.log()
        await world.log("INSERT INTO users VALUES (11, 'of the log')")
        assert world.wanderer.conflicts == 1
        await world.ahead("UPDATE users SET note = 'ahead again'")
        await world.log()


async def test_truncate_in_tail(loop: LocalLoop) -> None:
    """Only the log can show it, by a new beginning, and what follows in the tail waits for that."""
    async with tail_loop(loop) as world:
        await world.ahead("INSERT INTO users VALUES (10, 'ahead')")
        world.rig.server.execute("TRUNCATE users", "INSERT INTO users VALUES (11, 'after')")
        await world.log()
        assert world.wanderer.conflicts == 1
        await world.ahead("INSERT INTO users VALUES (12, 'ahead again')")
        await world.log()


@pytest.mark.parametrize("statements", [_COLUMN_ADDED, _TYPE_CHANGED])
async def test_column_added_type_changed_before_registry(loop: LocalLoop, statements: tuple[str, ...]) -> None:
    """No row is shown by a server whose registry has other columns or types than capture had for the row."""
    async with tail_loop(loop) as world:
        before, schemas = world.expected(), world.schemas()
        world.rig.server.execute(*statements)
        await world.tails_have(lambda tail: tail.schema not in schemas)
        for server in world.fleet.servers:
            assert await world.fleet.step(world.wanderer, server) == 200
            assert rows_of(world.wanderer) == before
        await world.log()
        await world.ahead("INSERT INTO users VALUES (11, 'ahead again')")


async def test_shape_removed_in_same_batch(loop: LocalLoop) -> None:
    """Its last transaction may be shown; the client is told that the shape has ended, and nothing else."""
    async with tail_loop(loop) as world:
        await world.ahead("INSERT INTO users VALUES (10, 'ahead')")
        world.rig.server.execute("INSERT INTO users VALUES (11, 'last')")
        world.rig.define(OTHERS)
        await world.until(lambda: world.rig.registry()["users"].removed_at is not None)
        statuses = set()
        while 410 not in statuses:
            await asyncio.to_thread(loop.step)
            statuses.add(await world.fleet.step(world.wanderer))
        assert statuses <= {200, 404, 410, 503}
        assert await world.fleet.step(world.wanderer) == 410


async def test_source_replaced_while_ahead(loop: LocalLoop) -> None:
    """What a client was shown of another source does not count: it begins again at once, with the new one's rows."""
    async with tail_loop(loop) as world:
        await world.ahead("INSERT INTO users VALUES (10, 'ahead')")
        await asyncio.to_thread(loop.stop)
        world.rig.server.execute(
            "SELECT pg_drop_replication_slot('shapes')",
            "DELETE FROM users WHERE id = 10",
            "SELECT pg_create_logical_replication_slot('shapes', 'pgoutput')",
        )
        loop.start(new_epoch=True)
        await world.log()
        assert world.wanderer.conflicts > 0
        await world.log("INSERT INTO users VALUES (11, 'of the new source')")
        await world.ahead("INSERT INTO users VALUES (12, 'ahead of its log')")


async def test_capture_killed_each_commit(loop: LocalLoop) -> None:
    """The next one sends all again that is not confirmed, and clients get what is new of it, once."""
    async with tail_loop(loop) as world:
        # Without it, what the next capture sends first follows what was confirmed, which the log alone can tell of.
        await world.ahead("INSERT INTO users VALUES (10, 'not confirmed')")
        await asyncio.to_thread(loop.stop)
        world.rig.settings["capture"]["max_batch_size"] = 2
        for note in ("one", "two", "three"):
            process = world.rig.start_process()
            # In many fragments.
            await world.ahead(f"UPDATE users SET note = '{note}'")  # noqa: S608
            process.kill()
            await asyncio.to_thread(process.wait)
        loop.start()
        await world.log()
        assert world.wanderer.conflicts == 0


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[LocalBroker]:
    with LocalBroker(tmp_path / "broker") as broker:
        yield broker


@pytest.fixture
def own_loop(
    postgres: LocalPostgres, own_broker: LocalBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[LocalLoop]:
    """The loop on a broker that a test may stop."""
    rig = CaptureRig(postgres, own_broker.bootstrap_servers, tmp_path, str)
    rig.create()
    with closing(LocalLoop(rig, monkeypatch)) as loop, closing(rig):
        yield loop


@every(2, 0)
async def test_kafka_stopped_and_broker_lost_acknowledged_records(
    own_loop: LocalLoop, own_broker: LocalBroker, tmp_path: Path
) -> None:
    """Clients are served from the log meanwhile, wait for what they were shown, and have later rows at once.

    Capture publishes again what the broker has lost.
    """
    async with tail_loop(own_loop) as world:
        sizes = {path: path.stat().st_size for path in (tmp_path / "broker" / "data").glob("*.shape_changes-*/*.log")}
        await world.ahead("INSERT INTO users VALUES (10, 'lost')")
        await asyncio.to_thread(own_loop.stop)
        await asyncio.to_thread(own_broker.kill)
        assert sum(path.stat().st_size for path in sizes) > sum(sizes.values())
        for path, size in sizes.items():
            os.truncate(path, size)
        world.rig.server.execute("INSERT INTO users VALUES (11, 'while Kafka is away')")
        await world.tails_are_forgotten()
        beginner = world.fleet.client("users")
        for server in world.fleet.servers:
            assert await world.fleet.step(world.wanderer, server) == 200
            await beginner.sync(server)
        assert len(beginner.rows) == len(world.wanderer.rows) - 1
        await asyncio.to_thread(own_broker.start)
        # A tail has what follows the client's place only if it is read before capture publishes that again.
        await world.tails_are_read()
        own_loop.read_again()
        own_loop.start()
        await world.ahead("INSERT INTO users VALUES (12, 'after')")
        await world.log()
        assert (world.wanderer.conflicts, beginner.conflicts) == (0, 0)
