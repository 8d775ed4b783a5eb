"""The HTTP server of shapes, in its own process: rows for new clients, and clients that wait for a change."""

import asyncio
import http.client
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from statistics import median

from flushtracker.delta.log.table import create_shape_log
from flushtracker.delta.registry_table import RegistryTable
from flushtracker.events.registry_events import ShapeEntry
from flushtracker.local.postgres import free_port
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.wal.log_offset import LogOffset
from tests.bench.measure import Table
from tests.bench.reads import append_rows
from tests.support.caching_proxy import PROXIES, follow, has_proxy, served_behind
from tests.support.shape_log_rows import SOURCE, append, commit, item

_CLIENTS_AT_ONCE = 200


def tables(*, quick: bool) -> Iterator[Table]:
    """The server may use one core; the clients are in this process."""
    header = ["rows", "MB", "s to the first byte", "s", "rows/s", "MB/s", "CPU s of the server", "its MB resident"]
    sizes = [10_000] if quick else [100_000, 1_000_000, 4_000_000]
    yield Table("serve: rows for one new client", header, [_initial(rows) for rows in sizes])
    header = ["clients", "KB for each", "CPU % while they wait", "commit to the first client, s", "to the last, s"]
    counts = [100] if quick else [1_000, 10_000, 50_000]
    yield Table("serve: clients that wait for one shape", header, [_waiting(count) for count in counts])
    header = ["proxy", "clients", "requests that reach the server for a change", "most", "commit to the last client, s"]
    counts, changes = ([50], 2) if quick else ([1_000, 10_000], 10)
    lines = [_proxied(proxy, count, changes) for proxy in PROXIES if has_proxy(proxy) for count in counts]
    yield Table("serve: clients behind a caching proxy", header, lines)


class _Process:
    def __init__(self, folder: Path, log: str, clients: int) -> None:
        self.port = free_port()
        config = folder / "serve.yaml"
        config.write_text(
            f'sink: {{log: "{log}", shapes: "{log}_shapes"}}\n'
            f'http: {{listen: "127.0.0.1:{self.port}", connections: {clients + 10}}}\n'
        )
        command = ["taskset", "-c", "0", sys.executable, "-m", "flushtracker", "serve", "--config", str(config)]
        self._process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        while True:
            try:
                if self.get("/readyz")[0] == 200:
                    return
            except OSError:
                pass
            time.sleep(0.1)

    def get(self, path: str) -> tuple[int, dict[str, str], int, float]:
        """Status, headers, bytes, and when the first byte came."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        connection.request("GET", path)
        response = connection.getresponse()
        first_s = time.monotonic()
        size = 0
        while data := response.read(1 << 20):
            size += len(data)
        headers = {name.lower(): value for name, value in response.getheaders()}
        connection.close()
        return response.status, headers, size, first_s

    @property
    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / 100

    @property
    def resident_kb(self) -> int:
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0])

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()


@contextmanager
def _serving(rows: int, clients: int = 10) -> Iterator[tuple[_Process, str]]:
    with tempfile.TemporaryDirectory() as folder:
        log = str(Path(folder) / "log")
        create_shape_log(log)
        append_rows(log, rows)
        entry = ShapeEntry(SOURCE, ShapeDefinition("users", ("public", "users")), 0, LogOffset(0, 0))
        RegistryTable(f"{log}_shapes", create=True).append([entry.to_json()], datetime.now(timezone.utc))
        process = _Process(Path(folder), log, clients)
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
            assert status == 200
            size, first_s = size + page, first_s or at_s - started_s
            if "electric-up-to-date" in headers:
                break
            path = f"/v1/shape?shape=users&offset={headers['electric-offset']}&handle={headers['electric-handle']}"
        spent_s = time.monotonic() - started_s
        rate = float(f"{rows / spent_s:.3g}")
        cpu_s, resident = server.cpu_s - before_s, server.resident_kb / 1e3
    figures = [f"{rows:,}", f"{size / 1e6:,.0f}", f"{first_s:.2f}", f"{spent_s:.2f}", f"{rate:,.0f}"]
    return [*figures, f"{size / 1e6 / spent_s:.0f}", f"{cpu_s:.1f}", f"{resident:,.0f}"]


def _waiting(count: int) -> list[str]:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with _serving(10, count) as (server, log):
        _, headers, _, _ = server.get("/v1/shape?shape=users&offset=-1")
        query = f"offset={headers['electric-offset']}&handle={headers['electric-handle']}&live=true"
        request = f"GET /v1/shape?shape=users&{query} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode()
        return asyncio.run(_wait(server, log, count, request))


def _proxied(proxy: str, clients: int, changes: int) -> list[str]:
    with served_behind(proxy) as proxied:
        found = asyncio.run(follow(proxied, clients, changes))
    asked, times = zip(*found, strict=True)
    return [proxy, f"{clients:,}", f"{median(asked):.0f}", f"{max(asked)}", f"{median(times):.2f}"]


async def _wait(server: _Process, log: str, count: int, request: bytes) -> list[str]:
    before_kb = server.resident_kb
    answered: list[float] = []
    stopped = False

    async def client(number: int) -> None:
        # Each has an address of its own range: 50,000 connections need more ports than one address has.
        address = f"127.0.{number // 20_000 + 1}.1"
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, local_addr=(address, 0))
        is_waiting = True
        while is_waiting:
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            size = int(head.lower().partition(b"content-length:")[2].split()[0])
            body = await reader.readexactly(size)
            is_waiting = b'"key"' not in body and not stopped
        answered.append(time.monotonic())
        writer.close()

    tasks = []
    for number in range(count):
        tasks.append(asyncio.create_task(client(number)))
        if number % _CLIENTS_AT_ONCE == 0:
            await asyncio.sleep(0.05)
    await asyncio.sleep(5)
    before_s, at_s = server.cpu_s, time.monotonic()
    await asyncio.sleep(10)
    idle = 100 * (server.cpu_s - before_s) / (time.monotonic() - at_s)
    each_kb = (server.resident_kb - before_kb) / count
    committed_s = time.monotonic()
    rows = [item((10_000_000, 0), "insert", "new", {"id": "new"}), commit(10_000_000)]
    await asyncio.to_thread(append, log, rows)
    await asyncio.gather(*tasks)
    stopped = True
    times = [each - committed_s for each in answered]
    return [f"{count:,}", f"{each_kb:.1f}", f"{idle:.0f}", f"{min(times):.2f}", f"{max(times):.2f}"]
