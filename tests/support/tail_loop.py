"""``TailLoop``: a table and its shape in a :class:`LocalLoop`, whose clients may be ahead of the log."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from typing import Any, Final

from flushtracker.config.serve_config import TailConfig
from flushtracker.delta.registry_table import RegistryTable
from flushtracker.errors import ConfigError, SinkError
from flushtracker.postgres.shape_rows import shape_rows
from flushtracker.serve.tail.shape_tail import ShapeTail
from flushtracker.shape_log.table.reader import read_shape
from flushtracker.shapes.shapes_file import load_shapes
from tests.support.capture_rig import shape
from tests.support.local_loop import LocalLoop
from tests.support.log_follower import row_texts
from tests.support.serve_client import Server
from tests.support.tail_client import TailClient
from tests.support.tail_fleet import TailFleet
from tests.support.waiting import wait_until

_TABLES: Final = (
    "CREATE TABLE users (id int PRIMARY KEY, note varchar(40))",
    "CREATE TABLE others (id int PRIMARY KEY)",
    "INSERT INTO users SELECT n, 'first' FROM generate_series(1, 3) n",
)
USERS: Final = shape("users")
OTHERS: Final = shape("others", "public.others", snapshot=False)
_DEADLINE_S: Final = 90
_STEP_S: Final = 0.05


class TailLoop:
    """``wanderer`` asks another server each time, ``plain`` always the one without a tail."""

    def __init__(self, loop: LocalLoop, fleet: TailFleet) -> None:
        self.loop, self.rig, self.fleet = loop, loop.rig, fleet
        self.wanderer, self.plain = fleet.client("users"), fleet.client("users")

    async def begin(self) -> None:
        """Both clients have the first rows and a transaction, which the tails have as well."""
        polls = [server.served.parts.poller for server in self.fleet.servers]
        await self.fleet.until(lambda: all("users" in each.view.shape_ids for each in polls), "all servers have users")
        for client, server in ((self.wanderer, self.fleet.plain), (self.plain, self.fleet.plain)):
            await client.sync(server)
        for server in self.fleet.tails:
            # A tail begins once somebody asks for the shape.
            await self.wanderer.step(server)
        await self.log("INSERT INTO users VALUES (4, 'first')")

    async def ahead(self, *statements: str, on: tuple[Server, ...] = ()) -> None:
        """The statements' transaction is shown, by any server or one of these, before the log has it."""
        self.rig.server.execute(*statements)
        await self.until_current(self.wanderer, on=on)
        logged = await self.fleet.logged_tx("users")
        assert logged < self.wanderer.tx, f"the log has {logged}, clients have {self.wanderer.tx}"

    async def log(self, *statements: str) -> None:
        """The log gets what there is, and all clients have it."""
        end = await asyncio.to_thread(self.rig.commit_lsn, *statements)
        await self.until(lambda: self.rig.confirmed_lsn() >= end and _logged(self.loop) == self.expected())
        await self.until_current(self.wanderer)
        await self.until_current(self.plain, on=(self.fleet.plain,))

    async def until(self, condition: Callable[[], object]) -> None:
        """Let the loop go on until the condition holds."""

        def step_and_check() -> bool:
            self.loop.step()
            return bool(condition())

        await asyncio.to_thread(wait_until, step_and_check, "the loop's steps", _DEADLINE_S, pause_s=_STEP_S)

    async def until_current(self, *clients: TailClient, on: tuple[Server, ...] = ()) -> None:
        """Let the clients ask until they have the table's rows."""
        expected = self.expected()
        what = f"the clients have {expected}"
        await self.fleet.until(lambda: all(rows_of(each) == expected for each in clients), what, *clients, on=on)

    def expected(self) -> list[str]:
        """The rows of the table."""
        definition = next(iter(load_shapes(self.rig.shapes_file)))
        with closing(self.rig.server.connect()) as connection:
            return row_texts(shape_rows(connection, definition))

    def schemas(self) -> set[str | None]:
        """Those of the rows that the tails have."""
        return {tail.schema for tail in self._tails()}

    async def tails_have(self, condition: Callable[[ShapeTail], bool]) -> None:
        """Wait until the condition holds for the tail of each server that has one."""
        count = len(self.fleet.tails)
        await self.fleet.until(lambda: sum(map(condition, self._tails())) == count, "the tails have what is published")

    async def tails_are_forgotten(self) -> None:
        """Wait until the tails are lost, because Kafka is."""
        await self.fleet.until(lambda: not self._tails(), "the tails are forgotten")

    async def tails_are_read(self) -> None:
        """Wait until every tail is read, so that it has what is published from now on."""
        readers = [each.served.tail_reader for each in self.fleet.tails]
        await self.fleet.until(
            lambda: all(each is not None and each.problem is None for each in readers), "the tails are read"
        )

    def _tails(self) -> list[ShapeTail]:
        key, pages = (self.rig.source(), "users"), [each.served.parts.tail_pages for each in self.fleet.tails]
        return [each.tails._tails[key] for each in pages if each is not None and key in each.tails._tails]


def _registered(loop: LocalLoop) -> frozenset[str]:
    """The sources whose shape ``users`` the registry table has."""
    return RegistryTable(f"{loop.log}_shapes").entries().sources_of("users")


def _logged(loop: LocalLoop) -> list[str] | None:
    """The rows that the log has; ``None`` while it cannot be read, as before a snapshot."""
    try:
        return row_texts(read_shape(str(loop.log), "users").rows.to_pylist())
    except (ConfigError, SinkError):
        return None


def rows_of(client: TailClient) -> list[str]:
    return row_texts(client.rows.values())


@asynccontextmanager
async def tail_loop(loop: LocalLoop, seed: int = 1, **started: Any) -> AsyncIterator[TailLoop]:
    """It runs: capture, the writers' steps, and clients, who have what the log has."""
    rig = loop.rig
    rig.server.execute(*_TABLES)
    rig.define(USERS, OTHERS)
    loop.start(**started)

    def is_readable() -> bool:
        loop.step()
        # Changes may be in the log before the shape's entry is in the registry, which alone the servers ask.
        return bool(_registered(loop) and _logged(loop))

    await asyncio.to_thread(wait_until, is_readable, "the first snapshot", _DEADLINE_S, pause_s=_STEP_S)
    kafka = rig.config.kafka
    fleet = TailFleet(str(loop.log), TailConfig(kafka.bootstrap_servers, kafka.topics.shape_changes), seed)
    try:
        found = TailLoop(loop, fleet)
        await found.begin()
        yield found
    finally:
        fleet.close()
