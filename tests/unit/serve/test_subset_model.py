"""Random subsets of shapes with random histories, merged by clients as Electric's and TanStack DB's do, over servers.

Xids do not follow commits: some transactions began long before others that commit first. The oracle filters the table's
rows after each commit, by the router's own rule.
"""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from random import Random
from typing import Final

import pytest

from flushtracker.serve.subset.subset_answers import SINCE_S
from flushtracker.shape_log.change_columns import ChangeColumns
from flushtracker.shape_log.merge_plan import MergeSettings
from flushtracker.shape_log.table.retention import RetentionPolicy
from flushtracker.shape_log.table.upkeep import ShapeLogUpkeep
from flushtracker.wal.changes import Row
from tests.support.folded_log import EPOCH, dated
from tests.support.on_demand_log import ORDERS, WHOLE, OrdersLog, order_entries, shown
from tests.support.sample_registry import register
from tests.support.seeds import in_turn
from tests.support.serve_client import Server, serving
from tests.support.shape_log_rows import Row as LogRow
from tests.support.shape_log_rows import append
from tests.support.subset_client import SnapshotTracker, SubsetClient
from tests.support.tail_servers import PublishedRows, publish, schema_of, with_tail

_STEPS: Final = 15
_KILL_EVERY: Final = 5
"""After so many steps a server is killed and started again: each of the three at least once."""
_SETTINGS: Final = MergeSettings(merge_files=4, files_per_run=3, least_file_bytes=1, sealed_bytes=20_000)
_SOME: Final = replace(WHOLE, id="some", where="b IS NOT TRUE", replica="full")
_CONDITIONS: Final = ("true", "b", "i4 > 1", "NOT b OR b IS NULL", "n < 2 AND i4 <> 3", "t IS NULL", "id < 6", "id > 8")
_CUTS: Final = (
    {"limit": "2", "order_by": "i4 DESC"},
    {"limit": "3", "offset": "1"},
    {"order_by": "n NULLS FIRST, id", "limit": "4"},
)
_ASKED: Final = (
    {"table": "orders", "replica": "full", "where": "b OR i4 > 0 OR n IS NULL"},
    {"table": "orders", "replica": "full", "where": "i4 IS NOT NULL", "columns": "i4,b,n,t"},
)


class _World:
    """A table, the logs of its shapes, and clients whose streams and subsets are of any of these."""

    def __init__(self, log: str, seed: int) -> None:
        self.log, self.rng = log, Random(seed)  # noqa: S311  reproducible
        self.orders = OrdersLog(self.rng, [WHOLE, _SOME], identity="full")
        register(log, *order_entries(WHOLE, _SOME))
        append(log, [row for rows in self.orders.snapshots() for row in rows])
        retain = RetentionPolicy(timedelta(seconds=400), least_dropped=1)
        self._upkeep = ShapeLogUpkeep(log, f"{log}_shapes", settings=_SETTINGS, retain=retain)
        self._waiting = list[list[LogRow]]()
        self._captures = {each.id: PublishedRows(schema_of(log, each.id)) for each in (WHOLE, _SOME)}
        self._topic = list[ChangeColumns]()
        self._read: dict[int, int] = {}
        self._next_xid, self._began = 2**31 - 40, list[int]()
        self._shown: dict[tuple[str, int], dict[str, Row]] = {}
        self.clients = list[SubsetClient]()
        self.folds = self.late = self.waited = 0
        self.checked = {"cold": 0, "strict": 0, "again": 0}

    def client(self) -> SubsetClient:
        params = self.rng.choice([{"shape": "orders"}, {"shape": "some"}, *_ASKED])
        tracker = SnapshotTracker(is_old=self.rng.random() < 0.4)
        offset = self.rng.choice(["now", "-1"])
        is_cold = self.rng.random() < 0.5
        return SubsetClient(dict(params), "table" in params, tracker, offset=offset, is_cold=is_cold)

    async def begin(self, server: Server) -> None:
        """Some clients whose streams begin first, and some others."""
        self.clients = [self.client() for _ in range(5)]
        for client in self.clients[:3]:
            client.params, client.takes_complete = dict(self.rng.choice(_ASKED)), True
            await client.step(server)
        for client in self.clients[3:]:
            client.is_cold = True

    def write(self) -> None:
        """Some transactions commit, and the log gets some of what it lacks, in parts."""
        for _ in range(self.rng.randint(1, 4)):
            xid = self._xid()
            rows = [row | {"xid": xid} for row in dated(self.orders.transaction())]
            for shape_id, capture in self._captures.items():
                self._topic += capture.events([row for row in rows if row["shape_id"] == shape_id])
            size = self.rng.randint(1, max(len(rows), 1))
            self._waiting += [part for part in (rows[:size], rows[size:]) if part]
        for _ in range(self.rng.randint(0, len(self._waiting))):
            append(self.log, self._waiting.pop(0))

    def _xid(self) -> int:
        """The xid of a transaction that began now, or long ago, as some do: 32 bits, as the stream has it."""
        for _ in range(self.rng.randint(1, 6)):
            self._began.append(self._next_xid % 2**32)
            self._next_xid += 1
        return self._began.pop(self.rng.choice([0, -1, self.rng.randrange(len(self._began))]))

    def write_all(self) -> None:
        append(self.log, [row for rows in self._waiting for row in rows])
        self._waiting.clear()

    def keep(self) -> None:
        self.folds += self._upkeep.run(EPOCH + timedelta(seconds=self.orders.tx)).folded_shapes

    def by(self) -> datetime:
        """A time after which the answers were made that are on their way to any client."""
        now = datetime.now(timezone.utc)
        arriving = [asked.asked_at for client in self.clients for asked in client.arriving]
        # The storage counts milliseconds.
        return min([now, *arriving]) + timedelta(seconds=SINCE_S, milliseconds=-2)

    def read_topic(self, server: Server) -> None:
        if server.served.parts.tail_pages is not None:
            publish(server, *self._topic[self._read.get(id(server), 0) :])
            self._read[id(server)] = len(self._topic)

    async def use(self, client: SubsetClient, servers: list[Server]) -> None:
        """A client asks for subsets, perhaps several at once, or its stream goes on; each by any server."""
        server = self.rng.choice(servers)
        self.read_topic(server)
        if client.wanted and client.is_up_to_date and not client.arriving:
            for subset in client.wanted:
                await self.ask(client, self.rng.choice(servers), subset)
            client.wanted = []
        elif client.is_new and client.is_cold and not client.arriving:
            # Changes come between the answers to what it asks for at once.
            for _ in range(self.rng.randint(2, 3)):
                await self.ask(client, self.rng.choice(servers))
                self.write()
        elif not client.is_new and self.rng.random() < 0.4:
            await self.ask(client, server)
        elif client.arriving:
            await client.take(self.rng.choice(client.arriving), server)
        else:
            await self.follow(client, server)

    async def follow(self, client: SubsetClient, server: Server) -> None:
        """The stream goes on, mostly until it is up to date."""
        for _ in range(self.rng.randint(1, 5)):
            response = await client.step(server, live=self.rng.random() < 0.3)
            assert response.status in {200, 409, 503}, response.body
            self.checked["again"] += response.status == 409
            self.check(client)
            if client.is_up_to_date:
                return

    async def ask(self, client: SubsetClient, server: Server, again: dict[str, str] | None = None) -> None:
        subset = again or {"where": self.rng.choice(_CONDITIONS)}
        if again is None and self.rng.random() < 0.2:
            subset |= self.rng.choice(_CUTS)
        self.checked["cold"] += client.is_new
        response = await client.ask(server, subset)
        assert response.status in {200, 503}, response.body
        if response.headers["cache-control"] == "no-store":
            client.newest = self.orders.tx
        self.waited += response.status == 503

    def check(self, client: SubsetClient) -> None:
        """No row is hidden, older or newer than at the client's offset, or missing, once it is up to date.

        Rows without an offset may be newer, until the stream has passed them.
        """
        states = {tx: self._state(client.params, tx, rows) for tx, rows in self.orders.at}
        for key, row in client.rows.items():
            assert any(state.get(key) == row for state in states.values()) or not client.is_up_to_date, "never was so"
        if not client.is_up_to_date or client.tx < client.newest:
            return
        now = [state for tx, state in states.items() if tx <= client.tx][-1]
        for key, row in client.rows.items():
            assert now.get(key) == row, f"not the row at {client.tx}: {key}"
        for subset, keys, since in client.loaded:
            after = [state for tx, state in states.items() if since <= tx <= client.tx]
            lasting = {key for key in keys if all(key in state for state in after)}
            assert lasting <= client.rows.keys(), "a row is lost"
            if client.takes_complete and "limit" not in subset:
                matching = self._matching(client.params, subset["where"], client.tx)
                assert matching <= client.rows.keys(), "a row that matches is missing"
                self.checked["strict"] += client.is_strict

    def _state(self, params: dict[str, str], tx: int, rows: dict[str, Row]) -> dict[str, Row]:
        known = repr(sorted(params.items())), tx
        if known not in self._shown:
            where = {"where": "b IS NOT TRUE"} if params.get("shape") == "some" else {}
            self._shown[known] = shown({**where, **params}, rows)
        return self._shown[known]

    def _matching(self, params: dict[str, str], where: str, tx: int) -> set[str]:
        rows = [rows for at, rows in self.orders.at if at <= tx][-1]
        return set(shown({"where": f"({params['where']}) AND ({where})"}, rows))


async def _started(stack: AsyncExitStack, world: _World, number: int) -> Server:
    """A server that knows nothing yet. Two of three have a tail; the third looks only when a request makes it."""
    made = serving(world.log, on_demand=frozenset([ORDERS]), live_s=(0.1, 0.1, 0.3)[number])
    server = await stack.enter_async_context(made)
    if number < 2:
        with_tail(server)
    server.served.answers.subsets.now = world.by
    if number == 2:
        await server.served.parts.poller.current(fresh=True)
        server.served.parts.poller._poll_s = 1_000
    return server


async def _play(world: _World) -> None:
    async with AsyncExitStack() as stack:
        servers = [await _started(stack, world, number) for number in range(3)]
        await world.begin(servers[0])
        steps = 0
        # In some histories it takes longer until a client is checked for all rows that match, and each once.
        while steps < _STEPS or not world.checked["strict"]:
            steps += 1
            world.rng.choice([world.write, world.write, world.write, world.keep])()
            for client in world.rng.sample(world.clients, 3):
                for _ in range(world.rng.randint(1, 4)):
                    await world.use(client, servers)
            if world.rng.random() < 0.3:
                world.clients[world.rng.randrange(5)] = world.client()
            if steps % _KILL_EVERY == 0:
                number = steps // _KILL_EVERY % 3
                servers[number].served.close()
                servers[number] = await _started(stack, world, number)
        world.write_all()
        # All that is written now is later than what any client has, or in the log.
        for client in world.clients:
            client.newest = 0
        for server in servers:
            await server.served.parts.poller.current(fresh=True)
            for client in world.clients:
                await _finish(client, server)
                world.check(client)


async def _finish(client: SubsetClient, server: Server) -> None:
    """The client processes what has arrived, and its stream gets up to date."""
    while client.arriving:
        await client.take(client.arriving[0], server)
    client.is_up_to_date = False
    for _ in range(20):
        if not client.is_up_to_date:
            await client.step(server)
    assert client.is_up_to_date


def _run(log: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> _World:
    for module in ("body", "log_pages"):
        monkeypatch.setattr(f"flushtracker.serve.{module}.PAGE_BYTES", 2_000)
    monkeypatch.setattr("flushtracker.serve.open_tables._SINCE_FOR", timedelta(0))
    world = _World(log, seed)
    asyncio.run(asyncio.wait_for(_play(world), 600))
    return world


@pytest.mark.parametrize("seed", in_turn([1, 2, 3, 4]))
def test_what_a_client_merges_is_the_query_at_its_offset(log: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Old and new clients, cold ones that ask for several subsets at once, cut transactions, truncates, folds, tails.

    Each of three servers is killed, and knows nothing when it starts again. One looks only when a request makes it. A
    client that has an offset gets nothing twice.
    """
    world = _run(log, seed, monkeypatch)
    assert world.checked["cold"] > 0
    assert world.checked["strict"] > 0
