"""Clients of servers with a tail over promotions of a real standby, in the real loop without Spark."""

import asyncio
from collections.abc import Iterator
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest

from tests.support.capture_rig import RigOn
from tests.support.failover_pair import FailoverPair
from tests.support.local_loop import LocalLoop
from tests.support.tail_loop import tail_loop


@pytest.fixture
def pair(postgres_folder: Path) -> Iterator[FailoverPair]:
    with FailoverPair(postgres_folder) as pair:
        yield pair


@pytest.fixture
def paired_loop(pair: FailoverPair, rig_on: RigOn, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalLoop]:
    """Capture connects to whichever server is the primary."""
    rig = rig_on(pair.primary)
    rig.create_topics()
    pair.primary.execute("CREATE PUBLICATION shapes FOR ALL TABLES")
    pair.create_slot()
    rig.settings["postgres"] = pair.options
    rig.settings["kafka"]["retry_timeout"] = "5 seconds"
    with closing(LocalLoop(rig, monkeypatch)) as loop:
        yield loop


@pytest.mark.parametrize("promotions", [1, pytest.param(2, marks=pytest.mark.soak)])
async def test_promoted_while_clients_are_ahead(paired_loop: LocalLoop, pair: FailoverPair, promotions: int) -> None:
    """They keep what they were shown, which the standby had before anybody was sent it, and nobody begins again."""
    numbers = count(1)
    async with tail_loop(paired_loop) as world:

        def acknowledge() -> None:
            world.rig.server.execute(f"INSERT INTO others VALUES ({next(numbers)})")  # noqa: S608
            paired_loop.step()

        for number in (10, 20)[:promotions]:
            await asyncio.to_thread(pair.add_standby)
            await asyncio.to_thread(pair.wait_until_synced, acknowledge)
            await world.ahead(f"INSERT INTO users VALUES ({number}, 'of the old primary')")  # noqa: S608
            await asyncio.to_thread(pair.fail_over)
            world.rig.server = pair.primary
            await world.ahead(f"INSERT INTO users VALUES ({number + 1}, 'of the new primary')")  # noqa: S608
            await world.log(f"UPDATE users SET note = 'of both' WHERE id >= {number}")  # noqa: S608
        assert (world.wanderer.conflicts, world.plain.conflicts) == (0, 0)
