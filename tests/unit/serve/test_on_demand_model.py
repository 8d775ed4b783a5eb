"""Random definitions on demand over random histories of their parents, read by clients over several servers.

The oracle filters the table's rows after each commit, by the router's own rule.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from random import Random
from typing import Final

import pytest

from flushtracker.errors import DecodeError
from flushtracker.shape_log.change_columns import ChangeColumns
from flushtracker.shape_log.merge_plan import MergeSettings
from flushtracker.shape_log.table.retention import RetentionPolicy
from flushtracker.shape_log.table.upkeep import ShapeLogUpkeep
from flushtracker.wal.changes import Row
from flushtracker.wal.log_offset import LogOffset
from tests.support.folded_log import EPOCH, dated
from tests.support.on_demand_log import ORDERS, WHOLE, OrdersLog, order_entries, order_entry, random_definition, shown
from tests.support.sample_registry import again, register
from tests.support.seeds import in_turn
from tests.support.serve_client import Client, Server, serving
from tests.support.shape_log_rows import Row as LogRow
from tests.support.shape_log_rows import append
from tests.support.tail_servers import PublishedRows, publish, schema_of, with_tail

_STEPS: Final = 20
_DEFINITIONS: Final = 6
_SETTINGS: Final = MergeSettings(merge_files=4, files_per_run=3, least_file_bytes=1, sealed_bytes=20_000)
_SOME: Final = replace(WHOLE, id="some", where="b IS NOT TRUE", replica="full")


@dataclass
class _Reader(Client):
    """``least``: the last transaction that it was shown, also before it has begun again."""

    least: int = 0


class _World:
    """Parents whose logs grow by whole and cut transactions, are merged and folded, and begin and end."""

    def __init__(self, log: str, seed: str) -> None:
        self.log, self.rng = log, Random(seed)  # noqa: S311  reproducible
        parents = [WHOLE, replace(WHOLE, id="zz"), *([_SOME] if seed == "full" else [])]
        self.orders = OrdersLog(self.rng, parents, identity=seed)
        register(log, *order_entries(*parents))
        append(log, [row for rows in self.orders.snapshots() for row in rows])
        retain = RetentionPolicy(timedelta(seconds=100), least_dropped=1)
        self._upkeep = ShapeLogUpkeep(log, f"{log}_shapes", settings=_SETTINGS, retain=retain)
        self._waiting = list[list[LogRow]]()
        self._captures = {each.id: PublishedRows(schema_of(log, each.id)) for each in parents}
        self._topic = list[ChangeColumns]()
        self._read: dict[int, int] = {}
        """How much of the topic each server's tail has read."""
        self._shown: dict[tuple[str, int], dict[str, Row]] = {}
        self._changed_s = 10
        self.folds = self.begun_again = self.crossings = 0

    def definition(self) -> dict[str, str]:
        """One that has an outcome for many rows."""
        while True:
            params = random_definition(self.rng)
            probe = OrdersLog(Random(7), [WHOLE], "full")  # noqa: S311  reproducible
            for _ in range(60):
                probe.transaction()
            try:
                found = [shown(params, rows) for _, rows in probe.at]
            except DecodeError:
                continue
            if params.keys() != {"table", "replica"} and any(found):
                return params

    def write(self) -> None:
        for _ in range(self.rng.randint(1, 4)):
            rows = dated(self.orders.transaction())
            for shape_id, capture in self._captures.items():
                self._topic += capture.events([row for row in rows if row["shape_id"] == shape_id])
            size = self.rng.randint(1, max(len(rows), 1))
            self._waiting += [part for part in (rows[:size], rows[size:]) if part]
        for _ in range(self.rng.randint(0, len(self._waiting))):
            append(self.log, self._waiting.pop(0))

    def write_all(self) -> None:
        append(self.log, [row for rows in self._waiting for row in rows])
        self._waiting.clear()

    def keep(self) -> None:
        self.folds += self._upkeep.run(EPOCH + timedelta(seconds=self.orders.tx)).folded_shapes

    def end_or_begin(self) -> None:
        """The parent that the least id makes the first ends, or is live again, as if it had never ended."""
        is_ended = self._changed_s % 20 == 0
        entry = order_entry(WHOLE)
        again(self.log, entry if is_ended else replace(entry, removed_at=LogOffset(2**40, 0)), self._changed_s)
        self._changed_s += 10

    def read_topic(self, server: Server) -> None:
        """A tail reads on: its server's clients must see none of that but what the log tells."""
        if server.served.parts.tail_pages is not None:
            publish(server, *self._topic[self._read.get(id(server), 0) :])
            self._read[id(server)] = len(self._topic)

    async def read(self, client: _Reader, servers: list[Server]) -> None:
        """Some requests, each to any server."""
        for _ in range(self.rng.randint(1, 5)):
            server = self.rng.choice(servers)
            self.read_topic(server)
            response = await client.step(server, live=self.rng.random() < 0.3)
            assert response.status in {200, 409, 503}, response.body
            self.begun_again += response.status == 409
            self.crossings += b'"operation":"delete"' in response.body
            if response.status == 503:
                return
            self.check(client)

    def check(self, client: _Reader) -> None:
        """A copy is the query after the client's offset; no row of it was ever hidden; and it never goes back."""
        states = [(tx, self._state(client.params, tx, rows)) for tx, rows in self.orders.at]
        for key, row in client.rows.items():
            assert any(state.get(key) == row for _, state in states), "a row that was never one of the query's"
        if client.is_up_to_date:
            before = [state for tx, state in states if tx <= client.tx]
            assert client.rows == before[-1], f"not the state at {client.tx}"
            assert client.tx >= client.least, "a copy went back"
            client.least = client.tx

    def _state(self, params: dict[str, str], tx: int, rows: dict[str, Row]) -> dict[str, Row]:
        key = repr(params), tx
        if key not in self._shown:
            self._shown[key] = shown(params, rows)
        return self._shown[key]


async def _started(stack: AsyncExitStack, log: str, number: int) -> Server:
    """A server that knows nothing yet; two of three have a tail."""
    made = serving(log, on_demand=frozenset([ORDERS]), live_s=(0.1, 0.1, 1.0)[number])
    server = await stack.enter_async_context(made)
    if number < 2:
        with_tail(server)
    return server


async def _kill(rng: Random, servers: list[Server], started: Callable[[int], Awaitable[Server]]) -> None:
    """Sometimes a server ends, and another one starts in its place."""
    if rng.random() < 0.15:
        number = rng.randrange(len(servers))
        servers[number].served.close()
        servers[number] = await started(number)


@pytest.mark.parametrize("identity", in_turn(["default", "full"]))
def test_each_copy_is_a_state_of_the_query_and_has_no_row_that_is_hidden(
    log: str, identity: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut transactions, truncates, changed keys, merges, folds, parents that end and begin again, tails, tiny pages.

    Clients change between three servers at random with each request, and servers are killed, and know nothing when they
    start again. At the end, each client has the newest state.
    """
    for module in ("body", "log_pages", "state_rows"):
        monkeypatch.setattr(f"flushtracker.serve.{module}.PAGE_BYTES", 400)
    monkeypatch.setattr("flushtracker.serve.body.SMALL_BYTES", 150)
    world, kills = _World(log, identity), Random(identity)  # noqa: S311  reproducible
    asked = [world.definition() for _ in range(_DEFINITIONS)]

    def new() -> _Reader:
        return _Reader(dict(world.rng.choice(asked)))

    async def test() -> None:
        async with AsyncExitStack() as stack:
            servers = [await _started(stack, log, number) for number in range(3)]
            clients, whole = [new() for _ in range(6)], _Reader({"shape": "zz"})
            for _ in range(_STEPS):
                step = world.rng.choice([world.write, world.write, world.write, world.keep, world.end_or_begin])
                step()
                await asyncio.gather(*(world.read(each, servers) for each in world.rng.sample(clients, 2)))
                # Somebody follows a parent itself, so that tails have its changes.
                await whole.step(world.rng.choice(servers), live=True)
                await _kill(kills, servers, partial(_started, stack, log))
                if world.rng.random() < 0.1:
                    clients[world.rng.randrange(len(clients))] = new()
            world.write_all()
            world.keep()
            for server in servers:
                await server.served.parts.poller.current(fresh=True)
                for client in clients:
                    client.is_up_to_date = False
                    await client.sync(server)
                    world.check(client)
                    assert client.rows == shown(client.params, world.orders.rows)

    asyncio.run(asyncio.wait_for(test(), 600))
    assert world.folds > 0
    assert world.begun_again > 0
    assert world.crossings > 0
