"""Random histories of a shape log, read by clients over several servers: the oracle is the state of a dict."""

import asyncio
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from random import Random

import pytest

from flushtracker.delta.log.retention import Retain
from flushtracker.delta.log.table import create_shape_log
from flushtracker.delta.log.upkeep import ShapeLogUpkeep
from flushtracker.shape_log.merge_plan import MergeSettings
from tests.support.serve_client import Client, Server, State, serving
from tests.support.shape_log_rows import RandomLog, append
from tests.unit.test_retention import _EPOCH, dated
from tests.unit.test_shape_log_reader import register, shape_entry, table_entry

_STEPS = 25
_SETTINGS = MergeSettings(merge_files=4, files_per_run=3, least_file_bytes=1, sealed_bytes=20_000)


class _World:
    """A log that grows by whole and cut transactions, is merged and folded, and is read at random."""

    def __init__(self, log: str, seed: int) -> None:
        self.log = log
        self.rng = Random(seed)  # noqa: S311  reproducible
        self.made = RandomLog(seed, partitions=3 if seed % 2 else 0)
        create_shape_log(log)
        entries = [shape_entry(shape_id) for shape_id in self.made.shape_ids]
        register(log, *entries, table_entry())
        retain = Retain(timedelta(seconds=100), least_dropped=1)
        self._upkeep = ShapeLogUpkeep(log, f"{log}_shapes", settings=_SETTINGS, retain=retain)
        self._waiting = [dated(part) for part in self.made.fragments()]
        self._last: dict[int, int] = {}
        self.told = self.folds = 0

    def write(self) -> None:
        for _ in range(self.rng.randint(1, 5)):
            if not self._waiting:
                self._waiting = [dated(part) for part in self.made.fragments()]
            append(self.log, self._waiting.pop(0))

    def write_all(self) -> None:
        while self._waiting:
            append(self.log, self._waiting.pop(0))

    def keep(self) -> None:
        self.folds += self._upkeep.run(_EPOCH + timedelta(seconds=self.made.tx)).folded_shapes

    def states(self, client: Client) -> list[tuple[int, State]]:
        """Each state of the client's shape, with its transaction."""
        at = self.made.at[client.params["shape"]]
        return [(0, {}), *((offset.tx_offset, rows) for offset, rows in at)]

    def check(self, client: Client) -> None:
        """A copy is the shape after the client's offset, which never goes back while it is not told to begin again."""
        if client.is_up_to_date:
            before = [rows for tx, rows in self.states(client) if tx <= client.tx]
            assert client.rows == before[-1], f"not the state at {client.tx}"
            assert client.tx >= self._last.get(id(client), 0), "a copy went back"
            self._last[id(client)] = client.tx


@pytest.mark.parametrize("seed", range(2))
def test_each_copy_is_a_state_of_the_shape_and_never_goes_back(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Transactions in parts, truncates of the table and of partitions, changed keys, merges, folds, tiny pages.

    Clients change between three servers at random, come back after any time, and go away; at the end, each has the
    newest state.
    """
    for module in ("body", "reads", "state_rows"):
        monkeypatch.setattr(f"flushtracker.serve.{module}.PAGE_BYTES", 400)
    monkeypatch.setattr("flushtracker.serve.reads.SMALL_BYTES", 150)
    monkeypatch.setattr("flushtracker.serve.kept._MOST_FILES", 4)
    world = _World(str(tmp_path / "log"), seed)

    def new() -> Client:
        return Client({"shape": world.rng.choice(world.made.shape_ids)})

    async def read(client: Client, server: Server) -> None:
        # Some do not finish what they have begun.
        for _ in range(world.rng.randint(1, 6)):
            response = await client.step(server, live=world.rng.random() < 0.3)
            assert response.status in {200, 409}, response.body
            world.check(client)
            world.told += response.status == 409

    async def test() -> None:
        # The longest is enough for a server to see meanwhile what another one has shown already.
        async with AsyncExitStack() as stack:
            servers = [await stack.enter_async_context(serving(world.log, live_s=s)) for s in (0.1, 0.1, 1.0)]
            clients = [new() for _ in range(5)]
            for _ in range(_STEPS):
                world.rng.choice([world.write, world.write, world.write, world.keep])()
                chosen = world.rng.sample(clients, 2)
                await asyncio.gather(*(read(client, world.rng.choice(servers)) for client in chosen))
                if world.rng.random() < 0.1:
                    clients[world.rng.randrange(5)] = new()
            world.write_all()
            world.keep()
            for server in servers:
                await server.served.parts.watch.current(fresh=True)
                for client in clients:
                    client.is_up_to_date = False
                    await client.sync(server)
                    world.check(client)
                    assert client.rows == world.states(client)[-1][1]

    asyncio.run(asyncio.wait_for(test(), 600))
    assert world.told > 0
    assert world.folds > 0
