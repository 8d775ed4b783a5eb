"""Definitions on demand: how soon a new client has their rows, and what they cost the parent's own clients.

The rows of a definition, and of a subset, are beside those of their parent: each is the first that asks for them, and
shares nothing with the others but the server.

Then how late the parent's clients have a change, with others and without. One server, on the first core, and one log,
in which a transaction changes 50 rows each second. The definitions' clients, one for each definition, are there in
half of the parts of the time, so both halves meet the same machine. Each definition shows some of the rows; nobody else
asks for it, so nothing but the reads of the parent is shared.
"""

import asyncio
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import numpy as np

from flushtracker.shape_log.shape_snapshot import ShapeSnapshot
from flushtracker.shape_log.table.log_table import create_shape_log
from flushtracker.wal.mvcc_snapshot import MvccSnapshot
from tests.bench.live_clients import LiveClient
from tests.bench.measure import Table, say
from tests.bench.serving import CLIENTS_AT_ONCE, ServerProcess, require_files
from tests.support.on_demand_log import NAMES, WHOLE, order_entries
from tests.support.sample_registry import register
from tests.support.shape_log_rows import append, commit, item, snapshot_rows

_SNAPSHOT: Final = ShapeSnapshot(1, MvccSnapshot.parse("1:1:"), lsn=8, next_xid=1)
_FIRST: Final = 1_000
_STEP: Final = 500
_CHANGED: Final = 50
_EVERY_S: Final = 1.0
_PARENTS: Final = 100
_CONNECT_S: Final = 120.0
_SETTLED_S: Final = 3.0
_NEWEST: Final = {"subset__order_by": "i4 DESC, id", "subset__limit": "100"}
_TENTH: Final = {"table": "orders", "where": "i4 < 100"}
_ASKED: Final = {
    "the shape": {"shape": "orders"},
    "all of it, on demand": {"table": "orders", "where": "i4 >= 0"},
    "a tenth, on demand": _TENTH,
    "one row by its key, on demand": {"table": "orders", "where": "id = 7"},
    "a subset of the shape: an order, limit 100": {"shape": "orders", **_NEWEST},
    "a subset of that tenth: an order, limit 100": _TENTH | _NEWEST,
    "a subset of the shape: a condition, limit 100": {"shape": "orders", "subset__where": "i4 = 5", **_NEWEST},
}
"""What a client asks for, by what it is."""


def tables(*, quick: bool = False) -> Iterator[Table]:
    """The time to the rows, and the delay of a change for few and many definitions."""
    counts, rows, parts, changes = ([5], 100, 2, 2) if quick else ([100, 1_000], 10_000, 8, 25)
    header = [
        "definitions",
        "without, ms mean/p95",
        "with, ms mean/p95",
        "ratio of means",
        "of p95",
        "definitions late, s",
    ]
    yield _first_rows(1_000 if quick else 100_000, 1 if quick else 5)
    lines = [_measured(count, rows, parts, changes) for count in counts]
    yield Table(f"serve: a change for {_PARENTS} clients of the parent, load {os.getloadavg()[0]:.1f}", header, lines)


def _measured(count: int, rows: int, parts: int, changes: int) -> list[str]:
    require_files(count + _PARENTS)
    with _orders(rows) as (folder, log):
        keys: dict[str, Any] = {"on_demand": ["public.orders"], "on_demand_definitions": count + 10, "poll": "100 ms"}
        server = ServerProcess(folder, log, count + _PARENTS, **keys)
        try:
            return [f"{count:,}", *asyncio.run(_Bench(server, log, count, rows).figures(parts, changes))]
        finally:
            server.stop()


@contextmanager
def _orders(rows: int) -> Iterator[tuple[Path, str]]:
    """A folder, and in it the log of a shape with so many rows."""
    with tempfile.TemporaryDirectory() as folder:
        log = str(Path(folder) / "log")
        create_shape_log(log)
        register(log, *order_entries(WHOLE))
        append(log, snapshot_rows(_SNAPSHOT, {_key(n): _row(n, 0) for n in range(rows)}, shape_id=WHOLE.id))
        yield Path(folder), log


def _first_rows(rows: int, runs: int) -> Table:
    """How long one new client waits for the first byte, and for all rows."""
    found: dict[str, list[tuple[int, float, float]]] = {}
    with _orders(rows) as (folder, log):
        for run in range(runs):
            server = ServerProcess(folder, log, 10, on_demand=["public.orders"])
            try:
                # The first read of a process also loads and opens what all of them need.
                _rows_of(server, {"shape": "orders", **_NEWEST})
                for what, asked in _ASKED.items():
                    found.setdefault(what, []).append(_rows_of(server, asked))
            finally:
                server.stop()
            say(f"rows of definitions on demand, run {run + 1} of {runs}")
    header = ["asked for", "MB", "ms to the first byte", "ms to all"]
    lines = [[what, f"{each[0][0] / 1e6:.2f}", *_medians(each)] for what, each in found.items()]
    return Table(
        f"serve: the rows of {rows:,} that a new client asks for, load {os.getloadavg()[0]:.1f}", header, lines
    )


def _medians(measured: list[tuple[int, float, float]]) -> list[str]:
    return [f"{1e3 * float(np.median(each)):,.0f}" for each in list(zip(*measured, strict=True))[1:]]


def _rows_of(server: ServerProcess, asked: dict[str, str]) -> tuple[int, float, float]:
    """Bytes, and seconds to the first one and to the last one."""
    began_s, size, first_s = time.monotonic(), 0, 0.0
    place = {"offset": "-1"}
    while True:
        status, headers, page, at_s = server.get(f"/v1/shape?{urlencode(asked | place)}")
        if status != 200:
            raise OSError(f"{asked} got a {status}")
        size, first_s = size + page, first_s or at_s - began_s
        if "electric-up-to-date" in headers or "electric-snapshot" in headers:
            return size, first_s, time.monotonic() - began_s
        place = {"offset": headers["electric-offset"], "handle": headers["electric-handle"]}


def _key(number: int) -> str:
    return f'"public"."orders"/"{number}"'


def _row(number: int, change: int) -> dict[str, str | None]:
    return {**dict.fromkeys(NAMES), "id": str(number), "i4": str(number % 1_000), "t": f"a note {change}"}


class _Delays:
    """How late clients are: each transaction for each of them."""

    def __init__(self, committed_s: list[float]) -> None:
        self._committed_s = committed_s
        self.late_ms = list[float]()

    def client(self, server: ServerProcess, asked: str, address: str) -> LiveClient:
        reached = [-1]

        def got(body: bytes, at_s: float) -> None:
            place = body.rfind(b'"lsn":"')
            if place < 0:
                return
            last = (int(body[place + 7 :].partition(b'"')[0]) - _FIRST) // _STEP
            self.late_ms += [1e3 * (at_s - each) for each in self._committed_s[reached[0] + 1 : last + 1]][-1:]
            reached[0] = last

        return LiveClient(server.port, asked, got, address=address)


class _Bench:
    def __init__(self, server: ServerProcess, log: str, count: int, rows: int) -> None:
        self._server, self._log, self._count, self._rows = server, log, count, rows
        self._committed_s: list[float] = []

    async def figures(self, parts: int, changes: int) -> list[str]:
        """Let parts of so many changes follow each other, half of them with the definitions' clients.

        Their order is without, with, with, without: the log grows with each part, and a look takes longer.
        """
        own, others = _Delays(self._committed_s), _Delays(self._committed_s)
        parents = [own.client(self._server, "shape=orders", "127.0.0.2") for _ in range(_PARENTS)]
        following = await self._connected(parents)
        found: tuple[list[float], list[float]] = ([], [])
        for part in range(parts):
            is_with, asked = part % 4 in {1, 2}, list[asyncio.Task[None]]()
            if is_with:
                where = [urlencode({"table": "orders", "where": f"i4 = {n}"}) for n in range(self._count)]
                asked = await self._connected([others.client(self._server, each, "127.0.0.3") for each in where])
            await asyncio.sleep(_SETTLED_S)
            own.late_ms.clear()
            for _ in range(changes):
                await asyncio.gather(asyncio.sleep(_EVERY_S), asyncio.to_thread(self._change))
            await asyncio.sleep(_SETTLED_S)
            found[is_with].extend(own.late_ms)
            await _ended(asked)
            say(f"{self._count} definitions, with them: {is_with}: {_figures(own.late_ms)} ms")
        await _ended(following)
        without, with_them = (_figures(each) for each in found)
        cells = ["/".join(f"{each:.0f}" for each in line) for line in (without, with_them)]
        late = f"{np.median(others.late_ms) / 1e3:.1f}"
        return [*cells, *(f"{ours / theirs:.2f}" for ours, theirs in zip(with_them, without, strict=True)), late]

    def _change(self) -> None:
        number = len(self._committed_s)
        tx, first = _FIRST + _STEP * number, number * _CHANGED
        changed = [(first + n) % self._rows for n in range(_CHANGED)]
        items = [
            item((tx, 2 * n), "update", _key(row), _row(row, tx), shape_id=WHOLE.id) for n, row in enumerate(changed)
        ]
        append(self._log, [*items, commit(tx, shape_id=WHOLE.id)])
        self._committed_s.append(time.time())

    async def _connected(self, clients: list[LiveClient]) -> "list[asyncio.Task[None]]":
        """Follow with all of them, once each waits for a change."""
        tasks = []
        for number, client in enumerate(clients, 1):
            tasks.append(asyncio.create_task(client.run()))
            if number % CLIENTS_AT_ONCE == 0:
                await asyncio.sleep(0.1)
        deadline_s = time.monotonic() + _CONNECT_S
        while not all(client.answers for client in clients):
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"not all of {len(clients)} clients have an answer")
            await asyncio.sleep(0.2)
        return tasks


def _figures(late_ms: list[float]) -> tuple[float, float]:
    """The mean, which is surer than the median while a look comes at any time, and the 95th percentile."""
    return float(np.mean(late_ms)), float(np.quantile(late_ms, 0.95))


async def _ended(tasks: "list[asyncio.Task[None]]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
