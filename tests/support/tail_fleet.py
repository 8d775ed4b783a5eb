"""``TailFleet``: servers of one log, two with a tail and a plain one, and clients that ask another one each time."""

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from flushtracker.config.serve_config import ServeConfig, TailConfig
from tests.support.serve_client import Server, config_of
from tests.support.tail_client import Sent, TailClient

_LIVE_S: Final = 0.3
_DEADLINE_S: Final = 120.0


class TailFleet:
    """For one event loop; close it when done."""

    def __init__(self, log: str, tail: TailConfig, seed: int, poll_ms: int = 50) -> None:
        self._config = replace(config_of(log), tail=tail, poll_ms=poll_ms)
        self._rng = random.Random(seed)  # noqa: S311  reproducible
        self._sent: Sent = {}
        self.plain = _started(replace(self._config, tail=None))
        self.tails = [_started(self._config) for _ in range(2)]

    @property
    def servers(self) -> list[Server]:
        return [self.plain, *self.tails]

    def client(self, shape_id: str) -> TailClient:
        return TailClient({"shape": shape_id}, sent=self._sent)

    async def step(self, client: TailClient, *servers: Server) -> int:
        """The client asks one of the servers, and waits there if it is up to date; return the status."""
        return (await client.step(self._rng.choice(servers or self.servers), live=True)).status

    async def until(
        self, condition: Callable[[], bool], what: str, *clients: TailClient, on: tuple[Server, ...] = ()
    ) -> None:
        """Let the clients ask until the condition holds."""
        deadline = time.monotonic() + _DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline, f"{what}, but the servers are at {[*map(_described, self.servers)]}"
            statuses = await asyncio.gather(*(self.step(client, *on) for client in clients))
            assert {*statuses} <= {200, 409, 503}, statuses
            await asyncio.sleep(0.01)

    async def logged_tx(self, shape_id: str) -> int:
        """The last transaction of the shape's log."""
        return (await self.plain.served.parts.poller.shape(shape_id, fresh=True)).tx

    def restart(self, number: int) -> None:
        """One of those with a tail, which knows nothing from before."""
        self.tails[number].served.close()
        self.tails[number] = _started(self._config)

    def close(self) -> None:
        for server in self.servers:
            server.served.close()


def _described(server: Server) -> str:
    """What its last look has found, for the message of a failure."""
    poller = server.served.parts.poller
    shapes = ", ".join(sorted(poller.view.shape_ids)) or "no shape"
    looks = f"{poller.polls} looks, the last {poller.age_s:.1f} s ago, {poller.failed_polls} failed"
    return f"version {poller.view.version} with {shapes} ({looks}: {poller.problem})"


def _started(config: ServeConfig) -> Server:
    server = Server(config, _LIVE_S)
    server.served.start()
    return server
