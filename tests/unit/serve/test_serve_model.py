"""Random histories of a shape log, read by clients over several servers: the oracle is the state of a dict."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

import pytest

from flushtracker.shape_log.merge_plan import MergeSettings
from flushtracker.shape_log.table.log_table import create_shape_log
from flushtracker.shape_log.table.retention import RetentionPolicy
from flushtracker.shape_log.table.upkeep import ShapeLogUpkeep
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.item_key import joined_prefix, key_values
from flushtracker.wal.log_offset import LogOffset
from tests.support.folded_log import EPOCH, dated
from tests.support.joined_history import COLUMNS
from tests.support.joined_log import entries, rows_of
from tests.support.joined_partitions import leaf_of, partitioned_case
from tests.support.sample_registry import register, shape_entry, table_entry
from tests.support.seeds import in_turn
from tests.support.serve_client import Client, Server, State, serving
from tests.support.shape_log_rows import RandomLog, append

_STEPS = 25
_SETTINGS = MergeSettings(merge_files=4, files_per_run=3, least_file_bytes=1, sealed_bytes=20_000)


class _JoinedLog:
    """As ``RandomLog``, of shapes with subqueries on tables with partitions: ``at`` has the rows of their queries."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)  # noqa: S311  reproducible
        self._world, found = partitioned_case(self.rng, 3)
        self.definitions = [replace(each, id=f"shape-{n}") for n, each in enumerate(found)]
        self._router = self._world.router(self.definitions)
        self.shape_ids = [each.id for each in self.definitions]
        self.at: dict[str, list[tuple[LogOffset, State]]] = {shape_id: [] for shape_id in self.shape_ids}

    @property
    def tx(self) -> int:
        return self._world.lsn

    def fragments(self) -> Iterator[list[dict[str, object]]]:
        """The next transaction that concerns a shape, in several parts."""
        rows = list[dict[str, object]]()
        while not rows:
            concerned = self._router.route(self._world.as_sent(self._world.transaction()))
            rows = [row for part in concerned for row in rows_of(part)]
        by_id = {each.id: each for each in self.definitions}
        for part in concerned:
            self.at[part.shape_id].append((LogOffset.last_of(self.tx), self._state(by_id[part.shape_id])))
        while rows:
            size = self.rng.randint(1, 8)
            yield rows[:size]
            rows = rows[size:]

    def _state(self, definition: ShapeDefinition) -> State:
        """What the query returns, by the keys that the log has."""
        name, rows = definition.table[1], State()
        for row in self._world.answer(definition):
            partition = self._world.leaves[name][leaf_of(row[0])].relation_id if name in self._world.leaves else None
            key = joined_prefix(definition.table, partition) + key_values(row[:1])
            rows[key] = dict(zip(definition.columns or COLUMNS, row, strict=True))
        return rows


class _World:
    """A log that grows by whole and cut transactions, is merged and folded, and is read at random."""

    def __init__(self, log: str, made: RandomLog | _JoinedLog, seed: int) -> None:
        self.log = log
        self.rng = Random(seed)  # noqa: S311  reproducible
        self.made = made
        create_shape_log(log)
        if isinstance(made, _JoinedLog):
            register(log, *entries(made.definitions))
        else:
            register(log, *(shape_entry(shape_id) for shape_id in made.shape_ids), table_entry())
        retain = RetentionPolicy(timedelta(seconds=100), least_dropped=1)
        self._upkeep = ShapeLogUpkeep(log, f"{log}_shapes", settings=_SETTINGS, retain=retain)
        self._waiting = [dated(part) for part in self.made.fragments()]
        self._last: dict[int, int] = {}
        self.sent_lsn = self.folds = 0

    def write(self) -> None:
        for _ in range(self.rng.randint(1, 5)):
            if not self._waiting:
                self._waiting = [dated(part) for part in self.made.fragments()]
            append(self.log, self._waiting.pop(0))

    def write_all(self) -> None:
        while self._waiting:
            append(self.log, self._waiting.pop(0))

    def keep(self) -> None:
        self.folds += self._upkeep.run(EPOCH + timedelta(seconds=self.made.tx)).folded_shapes

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


_LOGS: Final[Mapping[str, Callable[[int], RandomLog | _JoinedLog]]] = {
    "one table": RandomLog,
    "partitions": partial(RandomLog, partitions=3),
    "subqueries": _JoinedLog,
}


@pytest.mark.parametrize("name", in_turn([*_LOGS]))
def test_each_copy_is_a_state_of_the_shape_and_never_goes_back(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Transactions in parts, truncates of the table and of partitions, changed keys, merges, folds, tiny pages.

    Clients change between three servers at random, come back after any time, and go away; at the end, each has the
    newest state.
    """
    for module in ("body", "reads", "state_rows"):
        monkeypatch.setattr(f"flushtracker.serve.{module}.PAGE_BYTES", 400)
    monkeypatch.setattr("flushtracker.serve.reads.SMALL_BYTES", 150)
    monkeypatch.setattr("flushtracker.serve.cache.MAX_CACHED_FILES", 4)
    seed = [*_LOGS].index(name)
    world = _World(str(tmp_path / "log"), _LOGS[name](seed), seed)

    def new() -> Client:
        return Client({"shape": world.rng.choice(world.made.shape_ids)})

    async def read(client: Client, server: Server) -> None:
        # Some do not finish what they have begun.
        for _ in range(world.rng.randint(1, 6)):
            response = await client.step(server, live=world.rng.random() < 0.3)
            assert response.status in {200, 409}, response.body
            world.check(client)
            world.sent_lsn += response.status == 409

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
                await server.served.parts.poller.current(fresh=True)
                for client in clients:
                    client.is_up_to_date = False
                    await client.sync(server)
                    world.check(client)
                    assert client.rows == world.states(client)[-1][1]

    asyncio.run(asyncio.wait_for(test(), 600))
    assert world.folds > 0
    assert len({str(rows) for states in world.made.at.values() for _, rows in states}) > 10
    # Of a shape with subqueries a TRUNCATE is deletes, so its clients need not begin again.
    assert world.sent_lsn > 0 or isinstance(world.made, _JoinedLog)
