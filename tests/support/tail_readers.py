"""``TailReaders``: clients that follow shapes over HTTP in a thread, by servers with tails and without one."""

import asyncio
from collections.abc import Sequence
from typing import Final

from flushtracker.config.serve_config import TailConfig
from flushtracker.serve.seen_shape import SeenShape
from tests.support.background import Background
from tests.support.log_follower import row_texts
from tests.support.tail_client import TailClient
from tests.support.tail_fleet import TailFleet

_RETRY_S: Final = 0.1
_STATUSES: Final = frozenset({200, 404, 409, 410, 503})


class TailReaders(Background):
    """Two clients of each shape: one asks another server each time, the other one always that without a tail.

    ``rows``: what they have, by shape, if they are up to date. ``ahead``: how often one had what the log did not have.
    """

    def __init__(self, log: str, tail: TailConfig, shape_ids: Sequence[str], seed: int) -> None:
        super().__init__(lambda: asyncio.run(self._play()))
        self._log, self._tail, self._seed = log, tail, seed
        self._shape_ids = shape_ids
        self.rows: dict[tuple[str, bool], list[str]] = {}
        self.ahead = 0

    def have(self, shape_id: str, expected: list[str]) -> bool:
        """Whether both clients have these rows."""
        self.raise_failure()
        return all(self.rows.get((shape_id, is_plain)) == expected for is_plain in (False, True))

    async def _play(self) -> None:
        fleet = TailFleet(self._log, self._tail, self._seed, poll_ms=200)
        try:
            follow = [self._follow(fleet, each, is_plain=plain) for each in self._shape_ids for plain in (False, True)]
            await asyncio.gather(*follow)
        finally:
            fleet.close()

    async def _follow(self, fleet: TailFleet, shape_id: str, *, is_plain: bool) -> None:
        client, servers = fleet.client(shape_id), [fleet.plain] if is_plain else fleet.servers
        while not self.stopping.is_set():
            status = await fleet.step(client, *servers)
            assert status in _STATUSES, status
            if status in {404, 410}:
                # It is not defined yet, or has ended: its client stops, and another one begins.
                client = fleet.client(shape_id)
            if status != 200:
                await asyncio.sleep(_RETRY_S)
            elif client.is_up_to_date:
                self.rows[shape_id, is_plain] = row_texts(client.rows.values())
                self._note_ahead(fleet, client)

    def _note_ahead(self, fleet: TailFleet, client: TailClient) -> None:
        seen = fleet.plain.served.parts.poller.view.shapes.get(client.params["shape"])
        self.ahead += isinstance(seen, SeenShape) and seen.is_behind(client.tx)
