"""One client asks a server of its own process for thousands of definitions and subsets, and others go on meanwhile."""

import asyncio
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import pytest

from flushtracker.shape_log.shape_snapshot import ShapeSnapshot
from flushtracker.shape_log.table.log_table import create_shape_log
from flushtracker.wal.mvcc_snapshot import MvccSnapshot
from tests.support.on_demand_log import NAMES, WHOLE, order_entries
from tests.support.sample_registry import register
from tests.support.serve_client import Client, RemoteServer
from tests.support.serve_process import Process, configuration
from tests.support.shape_log_rows import append, commit, item, snapshot_rows
from tests.support.waiting import wait_until

_CONNECTIONS: Final = 50
_DEFINITIONS: Final = 20
"""How many the server keeps, with that of another client."""
_GROWTH_BYTES: Final = 40_000_000
"""What a process may take more after a second flood than after the first, for the changes in between and by chance."""
_SNAPSHOT: Final = ShapeSnapshot(1, MvccSnapshot.parse("1:1:"), lsn=8, next_xid=1)
_STATUS: Final = re.compile(rb"HTTP/1.1 (\d+)")
_LENGTH: Final = re.compile(rb"content-length: (\d+)")
_RETRY: Final = re.compile(rb"retry-after: [1-9]")


def _requests(numbers: range) -> Iterator[tuple[str, dict[str, str]]]:
    """Definitions by literals and by params, some that are refused, and subsets: each another one, with its kind."""
    begin = {"offset": "-1"}
    for n in numbers:
        match n % 20:
            case 0:
                yield "subset", {"shape": "orders", "subset__where": f"i4 < {n}", "subset__limit": "3"} | begin
            case 1:
                yield "unknown", {"table": f"orders{n}"} | begin
            case 2:
                yield "malformed", {"table": "orders", "where": f"i4 = {n} AND"} | begin
            case 3:
                yield "malformed", {"table": "orders", "columns": f"id,c{n}"} | begin
            case even if even % 2 == 0:
                yield "definition", {"table": "orders", "where": f"t = 'no {n}'", "columns": "id,t"} | begin
            case _:
                yield "definition", {"table": "orders", "where": "i4 = $1", "params[1]": str(n)} | begin


class _Flood:
    """An attacker with many connections; ``answers`` counts what it got, by kind and status."""

    def __init__(self, port: int, numbers: range) -> None:
        self._port, self._requests = port, _requests(numbers)
        self.answers = Counter[tuple[str, int]]()

    async def run(self) -> None:
        await asyncio.gather(*(self._connection() for _ in range(_CONNECTIONS)))

    def check(self) -> None:
        """Few definitions were answered, and the others were told to come again; what is refused has its reason."""
        statuses = {kind: {s for k, s in self.answers if k == kind} for kind, _ in self.answers}
        assert statuses.pop("subset") <= {200, 503}
        # The second flood may find no place at all.
        assert statuses.pop("definition") | {200} == {200, 503}
        assert statuses == {"malformed": {400}, "unknown": {404}}
        assert self.answers["definition", 200] < _DEFINITIONS

    async def _connection(self) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        with closing(writer):
            for kind, params in self._requests:
                writer.write(f"GET /v1/shape?{urlencode(params)} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
                head = await reader.readuntil(b"\r\n\r\n")
                status, length = _STATUS.match(head), _LENGTH.search(head)
                assert status is not None and length is not None, head  # noqa: PT018
                await reader.readexactly(int(length[1]))
                assert status[1] != b"503" or _RETRY.search(head), head
                self.answers[kind, int(status[1])] += 1


class _Others:
    """Clients of the shape, and of a definition that they asked for before, who follow the log's changes."""

    def __init__(self, log: str, port: int) -> None:
        self._log, self._server = log, RemoteServer(f"http://127.0.0.1:{port}/v1/shape", 60)
        self._clients = [Client({"shape": "orders"}), Client({"table": "orders", "where": "id = 1 OR t = 'x'"})]
        self._tx = 8

    async def begin(self) -> None:
        for client in self._clients:
            await client.sync(self._server)

    async def change(self) -> None:
        """A row changes, and each of them gets it, without a refusal."""
        self._tx += 16
        row = {**dict.fromkeys(NAMES), "id": "1", "i4": "1", "t": f"{self._tx}"}
        rows = [item((self._tx, 0), "update", '"public"."orders"/"1"', row, shape_id=WHOLE.id)]
        await asyncio.to_thread(append, self._log, [*rows, commit(self._tx, shape_id=WHOLE.id)])
        await asyncio.gather(*(self._follow(each) for each in self._clients))

    async def _follow(self, client: Client) -> None:
        while client.tx < self._tx:
            response = await client.step(self._server, live=True)
            assert response.status == 200, response.body


@pytest.mark.parametrize("count", [400, pytest.param(5_000, marks=pytest.mark.soak)])
def test_a_flood_of_definitions_is_refused_and_others_go_on(tmp_path: Path, count: int) -> None:
    """What is refused costs no memory: after as many requests again, the process is as large."""
    log = str(tmp_path / "log")
    create_shape_log(log)
    register(log, *order_entries(WHOLE))
    first = {f'"public"."orders"/"{n}"': {**dict.fromkeys(NAMES), "id": str(n)} for n in range(100)}
    append(log, snapshot_rows(_SNAPSHOT, first, shape_id=WHOLE.id))
    keys: dict[str, Any] = {"on_demand": ["public.orders"], "on_demand_definitions": _DEFINITIONS, "poll": "100 ms"}
    server = Process(configuration(tmp_path, log, **keys))
    others, resident = _Others(log, server.port), list[int]()

    async def test() -> None:
        await others.begin()
        for number in range(2):
            first = 1_000_000 + number * count
            flood = _Flood(server.port, range(first, first + count))
            flooding = asyncio.create_task(flood.run())
            await others.change()
            while not flooding.done():
                await others.change()
            await flooding
            flood.check()
            resident.append(server.resident_bytes)
        await others.change()

    try:
        wait_until(lambda: server.get("/readyz")[0] == 200, "the server has looked at the tables", 120)
        asyncio.run(asyncio.wait_for(test(), 600))
    finally:
        _, lines = server.stop()
    assert resident[1] < resident[0] + _GROWTH_BYTES
    assert [line for line in lines if " ERROR " in line] == []
