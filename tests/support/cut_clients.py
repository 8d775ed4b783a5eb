"""``CutClient``: a client of HTTP that keeps what it gets by LSN, so that several can be combined as of one."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.support.serve_client import Client, Response, Server, State


@dataclass
class CutClient(Client):
    """``lsn``: up to where it has its shape, -1 before it is known; ``first``: the first one since it has begun."""

    base: State = field(default_factory=dict)
    changes: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    lsn: int = -1
    first: int = -1

    async def step(self, server: Server, *, live: bool = False) -> Response:
        response = await super().step(server, live=live)
        if response.status == 409:
            self.base, self.changes, self.lsn, self.first = {}, [], -1, -1
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
