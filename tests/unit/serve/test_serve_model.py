"""Random histories of a shape log, read by clients over several servers: the oracle is the state of a dict.

Some servers have tails, which read what is published before the log has it, or lose it; others, which are not among
these, have shown clients what the log lacks, too.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

import pytest

from flushtracker.delta.registry_table import RegistryTable
from flushtracker.serve.handle import Handle
from flushtracker.shape_log.change_columns import ChangeColumns
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
from tests.support.shape_log_rows import RandomLog, Row, append
from tests.support.tail_servers import PublishedRows, publish, schema_of, serving_tail

_STEPS = 25
_AHEAD = 3
"""Transactions that the log may lack."""
_NOW = datetime(2026, 1, 2, tzinfo=timezone.utc)
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


@dataclass
class _Reader(Client):
    """``least``: the last transaction that it was shown, also before it has begun again."""

    least: int = 0


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
        self._waiting = list[list[list[Row]]]()
        """Transactions that are committed, of each what the log has yet to get of it."""
        self._ends = dict.fromkeys(made.shape_ids, 0)
        """The last transaction of each shape in the log."""
        self.sent_lsn = self.folds = self.refused = self.shown = self.types = self.ahead = 0
        self._capture = PublishedRows(schema_of(log, made.shape_ids[0]))
        self._topic = list[ChangeColumns]()
        self._read: dict[int, int] = {}
        """How much of the topic each server's tail has read."""
        self._commit()

    def _commit(self) -> None:
        while len(self._waiting) < _AHEAD:
            self._waiting.append([dated(part) for part in self.made.fragments()])
            self._topic += [event for part in self._waiting[-1] for event in self._capture.events(part)]

    def read_topic(self, server: Server) -> None:
        """A tail reads on. It may lose events, or all that it has."""
        tails = server.served.parts.tail_pages
        if tails is None:
            return
        at, draw = self._read.get(id(server), 0), self.rng.random()
        if draw < 0.05:
            tails.tails.forget_all()
        until = self.rng.randint(at, len(self._topic))
        publish(server, *self._topic[at + (draw > 0.95) : until])
        self._read[id(server)] = until

    def write(self) -> None:
        for _ in range(self.rng.randint(1, 5)):
            self._append()
            self._commit()

    def write_all(self) -> None:
        while self._waiting:
            self._append()

    def _append(self) -> None:
        part = self._waiting[0].pop(0)
        append(self.log, part)
        self._ends |= {str(row["shape_id"]): int(str(row["tx_offset"])) for row in part if row["operation"] == "commit"}
        if not self._waiting[0]:
            del self._waiting[0]

    def alter(self) -> None:
        """The type of a column changes, so that all clients begin again, wherever they are."""
        if isinstance(self.made, RandomLog):
            self.types += 1
            binding = table_entry().binding
            column = replace(binding.columns[-1], type_oid=(20, 23)[self.types % 2])
            entry = replace(table_entry(), binding=replace(binding, columns=(*binding.columns[:-1], column)))
            RegistryTable(f"{self.log}_shapes").append([entry.to_json()], _NOW + timedelta(days=self.types))
            self._capture.schema = schema_of(self.log, self.made.shape_ids[0])

    def show(self, client: _Reader) -> None:
        """A server shows the client what the log may lack."""
        later = [(tx, rows) for tx, rows in self.states(client) if tx > client.tx]
        if client.is_up_to_date and later:
            tx, rows = self.rng.choice(later)
            client.offset, client.rows = f"{tx}_0", {key: dict(row) for key, row in rows.items()}
            self.shown += 1

    def keep(self) -> None:
        self.folds += self._upkeep.run(EPOCH + timedelta(seconds=self.made.tx)).folded_shapes

    def states(self, client: Client) -> list[tuple[int, State]]:
        """Each state of the client's shape, with its transaction."""
        at = self.made.at[client.params["shape"]]
        return [(0, {}), *((offset.tx_offset, rows) for offset, rows in at)]

    async def read(self, client: _Reader, servers: list[Server]) -> None:
        """Some requests, each to any server; some clients do not finish what they have begun."""
        for _ in range(self.rng.randint(1, 6)):
            if self.rng.random() < 0.3:
                self.show(client)
                self.check(client)
            before, server = client.tx, self.rng.choice(servers)
            self.read_topic(server)
            response = await client.step(server, live=self.rng.random() < 0.3)
            assert response.status in {200, 409, 503}, response.body
            if response.status == 503:
                self.check_refused(client)
                return
            self.check(client)
            self.sent_lsn += response.status == 409
            self.ahead += client.tx > max(before, self._ends[client.params["shape"]])

    def check(self, client: _Reader) -> None:
        """A copy is the shape after the client's offset, which never goes back, also if it begins again."""
        if client.is_up_to_date:
            before = [rows for tx, rows in self.states(client) if tx <= client.tx]
            assert client.rows == before[-1], f"not the state at {client.tx}"
            assert client.tx >= client.least, "a copy went back"
            client.least = client.tx

    def check_refused(self, client: _Reader) -> None:
        """Only who begins again waits, and only for what the log lacks."""
        assert client.offset == "-1"
        assert Handle.parse(str(client.handle)).shown > self._ends[client.params["shape"]]
        self.refused += 1


_LOGS: Final[Mapping[str, Callable[[int], RandomLog | _JoinedLog]]] = {
    "one table": RandomLog,
    "partitions": partial(RandomLog, partitions=3),
    "subqueries": _JoinedLog,
}


@pytest.mark.parametrize("name", in_turn([*_LOGS]))
def test_each_copy_is_a_state_of_the_shape_and_never_goes_back(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Transactions in parts, truncates, also of partitions, changed keys and types, merges, folds, tiny pages.

    Clients change between three servers at random with each request, were shown what the log lacks, come back after any
    time, and go away; one server looks only when a request makes it. At the end, each client has the newest state.
    """
    for module in ("body", "log_pages", "state_rows"):
        monkeypatch.setattr(f"flushtracker.serve.{module}.PAGE_BYTES", 400)
    monkeypatch.setattr("flushtracker.serve.body.SMALL_BYTES", 150)
    monkeypatch.setattr("flushtracker.serve.cache.MAX_CACHED_FILES", 4)
    seed = [*_LOGS].index(name)
    world = _World(str(tmp_path / "log"), _LOGS[name](seed), seed)

    def new() -> _Reader:
        return _Reader({"shape": world.rng.choice(world.made.shape_ids)})

    async def test() -> None:
        # The longest is enough for a server to see meanwhile what another one has shown already.
        async with AsyncExitStack() as stack:
            servers = [
                await stack.enter_async_context(each)
                for each in (serving_tail(world.log, 0.1), serving(world.log, live_s=0.1), serving_tail(world.log, 1.0))
            ]
            await servers[1].served.parts.poller.current(fresh=True)
            servers[1].served.parts.poller._poll_s = 1_000
            clients = [new() for _ in range(5)]
            for _ in range(_STEPS):
                world.rng.choice([world.write, world.write, world.write, world.keep, world.alter])()
                chosen = world.rng.sample(clients, 2)
                await asyncio.gather(*(world.read(client, servers) for client in chosen))
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
    assert world.shown > 0
    assert world.ahead > 0 or isinstance(world.made, _JoinedLog)
    assert len({str(rows) for states in world.made.at.values() for _, rows in states}) > 10
    # Of a shape with subqueries a TRUNCATE is deletes, so its clients need not begin again.
    assert (world.sent_lsn > 0 and world.refused > 0) or isinstance(world.made, _JoinedLog)
