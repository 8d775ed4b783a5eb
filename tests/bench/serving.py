"""The HTTP server of shapes, in its own process: rows for new clients, and clients that wait for a change.

The server may use one core; its clients are in this process, on the others. Each step has a deadline, and a line that
misses one says so instead of its figures, so the bench ends in any case: by default after some ten minutes on a machine
that does nothing else.
"""

import asyncio
import http.client
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import datetime, timezone
from pathlib import Path
from statistics import median
from typing import Any, Final

from flushtracker.delta.registry_table import RegistryTable
from flushtracker.events.registry_events import ShapeEntry
from flushtracker.local.free_ports import free_port
from flushtracker.shape_log.table.log_table import create_shape_log
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.wal.log_offset import LogOffset
from tests.bench.measure import Table, say
from tests.bench.reads import append_rows
from tests.support.caching_proxy import PROXIES, follow, has_proxy, served_behind
from tests.support.config_file import change_config
from tests.support.serve_process import configuration
from tests.support.shape_log_rows import SOURCE, append, commit, item

CLIENTS_AT_ONCE: Final = 200
_OTHER_FILES: Final = 1_100
"""Open files of a process with so many connections besides these."""

_START_S: Final = 60.0
_ROWS_S: Final = 300.0
"""For all rows of one client."""
_CONNECT_S: Final = 120.0
_CHANGE_S: Final = 60.0
_SETTLED_S: Final = 20.0
"""As long as a request waits: so each client has asked once in this time."""


def tables(*, quick: bool) -> Iterator[Table]:
    """Rows for one client, clients that wait, and clients behind proxies."""
    sizes = [10_000] if quick else [100_000, 1_000_000, 10_000_000]
    header = ["rows", "MB", "s to the first byte", "s", "rows/s", "MB/s", "CPU s of the server", "its most MB resident"]
    yield Table("serve: rows for one new client", header, [_line([f"{n:,}"], header, _initial, n) for n in sizes])
    counts, settled_s = ([100], 1.0) if quick else ([1_000, 10_000, 18_000, 50_000], _SETTLED_S)
    header = ["clients", "KB for each", "CPU % while they wait", "commit to the first client, s", "median", "last"]
    lines = [_line([f"{count:,}"], header, _waiting, count, settled_s) for count in counts]
    yield Table("serve: clients that wait for one shape", header, lines)
    header = ["proxy", "clients", "requests that reach the server for a change", "most", "commit to the last client, s"]
    counts, changes = ([50], 2) if quick else ([1_000, 10_000], 10)
    pairs = [(proxy, count) for proxy in PROXIES if has_proxy(proxy) for count in counts]
    lines = [_line([proxy, f"{count:,}"], header, _proxied, proxy, count, changes) for proxy, count in pairs]
    yield Table("serve: clients behind a caching proxy", header, lines)


def _line(names: list[str], header: list[str], measure: Callable[..., list[str]], *arguments: object) -> list[str]:
    """The figures, or why there are none."""
    say(f"{measure.__name__.strip('_')} {' '.join(names)}")
    try:
        figures = measure(*arguments)
    except (OSError, EOFError, asyncio.TimeoutError) as error:
        figures = [f"none: {error or type(error).__name__}"]
    line = [*names, *figures]
    return line + [""] * (len(header) - len(line))


class ServerProcess:
    """``flushtracker serve`` on the first core, with more keys of ``serve``; its tail is on ``brokers``, if there are
    any.
    """

    def __init__(self, folder: Path, log: str, clients: int, brokers: str = "", **serve: Any) -> None:
        self.port, self.status_port = free_port(), free_port()
        keys = {"connections": clients + 10, "tail": bool(brokers), **serve}
        config = configuration(folder, log, self.port, self.status_port, **keys)
        if brokers:
            change_config(config, {"kafka": brokers})
        command = ["taskset", "-c", "0", sys.executable, "-m", "flushtracker", "serve", "--config", str(config)]
        self._process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        deadline_s = time.monotonic() + _START_S
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                self.stop()
                raise TimeoutError(f"the server has not started in {_START_S:.0f} s")
            time.sleep(0.1)

    def _is_ready(self) -> bool:
        try:
            return self.get("/readyz")[0] == 200
        except OSError:
            return False

    def get(self, path: str) -> tuple[int, dict[str, str], int, float]:
        """Status, headers, bytes, and when the first byte came."""
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=_ROWS_S)) as connection:
            connection.request("GET", path)
            response = connection.getresponse()
            first_s = time.monotonic()
            size = 0
            while data := response.read(1 << 20):
                size += len(data)
            headers = {name.lower(): value for name, value in response.getheaders()}
            return response.status, headers, size, first_s

    def waiting(self) -> int:
        """Clients that wait for a change."""
        with closing(http.client.HTTPConnection("127.0.0.1", self.status_port, timeout=_CONNECT_S)) as connection:
            connection.request("GET", "/metrics")
            found = re.search(
                r"^flushtracker_serve_waiting_clients\S* (\S+)$", connection.getresponse().read().decode(), re.M
            )
        return 0 if found is None else int(float(found[1]))

    @property
    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / 100

    def resident_kb(self, name: str = "VmRSS") -> int:
        """``VmHWM``: the most until now."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(status.partition(f"{name}:")[2].split()[0])

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


@contextmanager
def _serving(rows: int, clients: int = 10) -> Iterator[tuple[ServerProcess, str]]:
    with tempfile.TemporaryDirectory() as folder:
        log = str(Path(folder) / "log")
        create_shape_log(log)
        append_rows(log, rows)
        entry = ShapeEntry(SOURCE, ShapeDefinition("users", ("public", "users")), 0, LogOffset(0, 0))
        RegistryTable(f"{log}_shapes", create=True).append([entry.to_json()], datetime.now(timezone.utc))
        process = ServerProcess(Path(folder), log, clients)
        try:
            yield process, log
        finally:
            process.stop()


def _initial(rows: int) -> list[str]:
    with _serving(rows) as (server, _):
        before_s, started_s = server.cpu_s, time.monotonic()
        path, size, first_s = "/v1/shape?shape=users&offset=-1", 0, 0.0
        while True:
            status, headers, page, at_s = server.get(path)
            if status != 200 or time.monotonic() - started_s > _ROWS_S:
                raise TimeoutError(f"{size / 1e6:,.0f} MB after {time.monotonic() - started_s:.0f} s, then a {status}")
            size, first_s = size + page, first_s or at_s - started_s
            if "electric-up-to-date" in headers:
                break
            path = f"/v1/shape?shape=users&offset={headers['electric-offset']}&handle={headers['electric-handle']}"
        spent_s = time.monotonic() - started_s
        cpu_s, resident = server.cpu_s - before_s, server.resident_kb("VmHWM") / 1e3
    rate = float(f"{rows / spent_s:.3g}")
    figures = [f"{size / 1e6:,.0f}", f"{first_s:.2f}", f"{spent_s:.2f}", f"{rate:,.0f}", f"{size / 1e6 / spent_s:.0f}"]
    return [*figures, f"{cpu_s:.1f}", f"{resident:,.0f}"]


def _waiting(count: int, settled_s: float) -> list[str]:
    require_files(count)
    with _serving(10, count) as (server, log):
        _, headers, _, _ = server.get("/v1/shape?shape=users&offset=-1")
        query = f"offset={headers['electric-offset']}&handle={headers['electric-handle']}&live=true"
        request = f"GET /v1/shape?shape=users&{query} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode()
        return asyncio.run(_Clients(server, log, request, count).measure(settled_s))


def _proxied(proxy: str, clients: int, changes: int) -> list[str]:
    require_files(clients)
    with served_behind(proxy) as proxied:
        found = asyncio.run(follow(proxied, clients, changes))
    asked, times = zip(*found, strict=True)
    return [f"{median(asked):.0f}", f"{max(asked)}", f"{median(times):.2f}"]


def require_files(connections: int) -> None:
    """Let this process and those that it starts open as many files; raises ``OSError``."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < connections + _OTHER_FILES:
        raise OSError(f"a process may have {hard:,} files open")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class _Clients:
    """So many that wait for the same change, each on a connection of its own."""

    def __init__(self, server: ServerProcess, log: str, request: bytes, count: int) -> None:
        self._server, self._log, self._request, self._count = server, log, request, count
        self._answered_s: list[float] = []

    async def measure(self, settled_s: float) -> list[str]:
        """Connect, wait, commit, and wait for all; raises ``OSError`` or ``EOFError``."""
        before_kb = self._server.resident_kb()
        tasks = await self._connect()
        try:
            before_s, at_s = self._server.cpu_s, time.monotonic()
            await asyncio.wait(tasks, timeout=settled_s, return_when="FIRST_EXCEPTION")
            idle = 100 * (self._server.cpu_s - before_s) / (time.monotonic() - at_s)
            each_kb = (self._server.resident_kb() - before_kb) / self._count
            committed_s = time.monotonic()
            rows = [item((10_000_000, 0), "insert", "new", {"id": "new"}), commit(10_000_000)]
            await asyncio.to_thread(append, self._log, rows)
            await self._until(lambda: len(self._answered_s), self._count, tasks, _CHANGE_S, "have the change")
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        times = [each - committed_s for each in self._answered_s]
        return [f"{each_kb:.1f}", f"{idle:.0f}", f"{min(times):.2f}", f"{median(times):.2f}", f"{max(times):.2f}"]

    async def _connect(self) -> "list[asyncio.Task[None]]":
        """All of them, once they wait, but for a few that ask again at the moment."""
        tasks = []
        for number in range(self._count):
            tasks.append(asyncio.create_task(self._client(number)))
            if number % CLIENTS_AT_ONCE == 0:
                await asyncio.sleep(0.1)
        await self._until(self._server.waiting, self._count * 99 // 100, tasks, _CONNECT_S, "wait")
        return tasks

    async def _until(
        self, found: Callable[[], int], wanted: int, tasks: "list[asyncio.Task[None]]", limit_s: float, what: str
    ) -> None:
        deadline_s = time.monotonic() + limit_s
        while (count := await asyncio.to_thread(found)) < wanted:
            for task in tasks:
                if task.done():
                    task.result()
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"{count:,} of {self._count:,} clients {what} after {limit_s:.0f} s")
            await asyncio.sleep(0.1)

    async def _client(self, number: int) -> None:
        # Each has an address of its own range: so many connections need more ports than one address has.
        address = f"127.0.{number // 20_000 + 1}.1"
        reader, writer = await asyncio.open_connection("127.0.0.1", self._server.port, local_addr=(address, 0))
        with closing(writer):
            body = b""
            while b'"key"' not in body:
                writer.write(self._request)
                head = await reader.readuntil(b"\r\n\r\n")
                if not head.startswith(b"HTTP/1.1 200"):
                    raise OSError(f"a client got {head[:40].decode().strip()}")
                body = await reader.readexactly(int(head.lower().partition(b"content-length:")[2].split()[0]))
        self._answered_s.append(time.monotonic())
