"""``CutClient``: a client of HTTP that keeps what it gets by LSN, so that several can be combined as of one."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.support.background import Background
from tests.support.serve_client import Answering, Client, Response, Server, State, serving


@dataclass
class CutClient(Client):
    """``lsn``: up to where it has its shape, -1 before it is known; ``first``: the first one since it has begun."""

    base: State = field(default_factory=dict)
    changes: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    lsn: int = -1
    first: int = -1
    shown: frozenset[str] = frozenset()
    """The keys of its rows when it was up to date the last time, also before it has begun again."""

    async def step(self, server: Answering, *, live: bool = False) -> Response:
        response = await super().step(server, live=live)
        if response.status == 409:
            self.base, self.changes, self.lsn, self.first = {}, [], -1, -1
        return response

    def show(self, transactions: Sequence[int]) -> None:
        """Take transactions from a server that shows them before the log has them."""
        for tx in transactions:
            headers = {"operation": "insert", "lsn": str(tx)}
            self._apply({"headers": headers, "key": str(tx), "value": {"id": str(tx)}})
            self.lsn, self.offset = tx, f"{tx}_0"

    async def events(self, server: Server) -> Response:
        """Take events up to the first LSN, after which a client goes on, and close the connection.

        If the connection ends before, none counts.
        """
        gone, response, taken = asyncio.Event(), Response(), list[dict[str, Any]]()
        query = {**self.query(live=True), "live_sse": "true"}
        stream = asyncio.create_task(server.get(query, gone=gone, into=response))
        while not (stream.done() or taken):
            await asyncio.sleep(0)
            events = [json.loads(each[6:]) for each in response.body.split(b"\n\n") if each.startswith(b"data: ")]
            ends = [number for number, event in enumerate(events, 1) if "control" in event["headers"]]
            taken = events[: ends[0]] if ends else []
        gone.set()
        await stream
        if taken:
            assert response.headers["electric-handle"] == self.handle
            for message in taken:
                self._apply(message)
            self.offset = f"{taken[-1]['headers']['global_last_seen_lsn']}_0"
        return response

    def _apply(self, message: dict[str, Any]) -> None:
        super()._apply(message)
        headers = message["headers"]
        if "control" in headers:
            self.lsn = max(self.lsn, int(headers.get("global_last_seen_lsn", -1)))
            self.first = self.lsn if self.first < 0 else self.first
        elif "lsn" in headers:
            self.changes.append((int(headers["lsn"]), message))
        else:
            self.base[message["key"]] = dict(message["value"])

    def rows_at(self, lsn: int) -> State:
        """The rows after all transactions up to ``lsn``, which is at least the first one that it was told."""
        found = Client({}, rows={key: dict(value) for key, value in self.base.items()})
        for tx, message in self.changes:
            if tx <= lsn:
                found._apply(message)
        return found.rows


def combined(clients: Sequence[CutClient]) -> tuple[int, dict[str, State]] | None:
    """The shapes of all clients as of one LSN, by id; ``None`` as long as there is none."""
    lsn = min(client.lsn for client in clients)
    if any(client.first < 0 or lsn < client.first for client in clients):
        return None
    return lsn, {client.params["shape"]: client.rows_at(lsn) for client in clients}


class CutReader(Background):
    """Follows shapes over HTTP; ``sums`` are those of each shape, by LSN."""

    def __init__(self, log: str, shapes: str, amounts: Mapping[str, str]) -> None:
        super().__init__(lambda: asyncio.run(self._follow()))
        self._log, self._shapes, self._amounts = log, shapes, amounts
        self.sums: dict[int, dict[str, int]] = {}

    async def _follow(self) -> None:
        clients = [CutClient({"shape": shape_id, "cuts": "true"}) for shape_id in self._amounts]
        async with serving(self._log, self._shapes, live_s=1.0) as server:
            while not self.stopping.is_set():
                answers = await asyncio.gather(*(client.step(server, live=True) for client in clients))
                assert {answer.status for answer in answers} <= {200, 409, 503}
                if (found := combined(clients)) is not None:
                    lsn, shapes = found
                    self.sums[lsn] = {each: self._sum(each, rows) for each, rows in shapes.items()}

    def _sum(self, shape_id: str, rows: State) -> int:
        return sum(int(row[self._amounts[shape_id]]) for row in rows.values())
