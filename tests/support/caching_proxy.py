"""The server of shapes behind a caching proxy, configured as ``examples/caching_proxy`` is but for its ports."""

import asyncio
import http.client
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from flushtracker.events.registry_events import ShapeEntry, TableEntry
from flushtracker.local.free_ports import free_port
from flushtracker.shape_log.table.log_table import create_shape_log
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.key_binding import KeyBinding
from flushtracker.shapes.table_binding import ColumnBinding, TableBinding
from tests.support.sample_registry import register, shape_entry, table_entry
from tests.support.serve_process import configuration
from tests.support.shape_log_rows import SOURCE, append, commit, item
from tests.support.waiting import wait_until

_ROOT: Final = Path(__file__).parents[2]
_CONFIGS: Final = _ROOT / "examples" / "caching_proxy"
PROXIES: Final = ("nginx", "varnish")
PLAIN_PROXIES: Final = ("squid", "haproxy", "apache")
"""Caches of which the example has no gatekeeper, nor HTTP/2."""
WIDE_COLUMNS: Final = 300
_DEADLINE_S: Final = 120.0


@dataclass
class Proxied:
    """The server, and a proxy in front of it: ``port`` for all shapes, ``keeper`` for the one that users may see.

    ``http2`` is as ``port``, for clients that begin with HTTP/2.
    """

    log: str
    port: int
    keeper: int
    direct: int
    status: int
    http2: int

    def get(
        self,
        address: str,
        headers: dict[str, str] | None = None,
        port: int | None = None,
        *,
        method: str = "GET",
        body: bytes = b"",
    ) -> http.client.HTTPResponse:
        """An answer whose body has been read into ``body``; the address is sent as it is."""
        with closing(http.client.HTTPConnection("127.0.0.1", port or self.port, timeout=60)) as connection:
            connection.putrequest(method, address, skip_accept_encoding=True)
            for name, value in (headers or {}).items():
                connection.putheader(name, value)
            connection.endheaders(body or None)
            response = connection.getresponse()
            response.body = response.read()  # type: ignore[attr-defined]
            return response

    def asked(self) -> int:
        """How many requests have reached the server."""
        text = self.get("/metrics", port=self.status).body.decode()  # type: ignore[attr-defined]
        return sum(
            int(float(each)) for each in re.findall(r"^flushtracker_serve_answers_total\{.*\} (\S+)$", text, re.M)
        )

    def waiting(self) -> int:
        """How many wait at the server for a change."""
        text = self.get("/metrics", port=self.status).body.decode()  # type: ignore[attr-defined]
        return int(float(re.findall(r"^flushtracker_serve_waiting_clients\S* (\S+)$", text, re.M)[0]))


def has_proxy(proxy: str) -> bool:
    """Whether the program of one of ``PROXIES`` is installed."""
    return shutil.which({"nginx": "nginx", "varnish": "varnishd"}[proxy]) is not None


@contextmanager
def served_behind(proxy: str) -> Iterator[Proxied]:
    """One of either. All files are in a folder that its workers, of another user, may enter."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        root.chmod(0o755)
        log = str(root / "log")
        create_shape_log(log)
        register(log, shape_entry(), shape_entry("orders"), table_entry(), *_wide())
        append(log, [item((10, 0), "insert", "a", {"id": "1"}), commit(10)])
        append(log, [item((10, 0), "insert", "b", {"id": "2"}, shape_id="orders"), commit(10, shape_id="orders")])
        found = Proxied(log, *(free_port() for _ in range(5)))
        serve = configuration(root, log, found.direct, found.status, poll="100 ms")
        in_front = _COMMANDS[proxy](root, found)
        commands = ([sys.executable, "-m", "flushtracker", "serve", "--config", str(serve)], in_front)
        processes = [subprocess.Popen(command, cwd=_ROOT, stderr=subprocess.DEVNULL) for command in commands]
        try:
            wait_until(lambda: _is_there(found), "the proxy and the server answer", _DEADLINE_S, pause_s=0.2)
            yield found
        finally:
            for process in reversed(processes):
                process.terminate()
                process.wait()


def _wide() -> tuple[ShapeEntry, TableEntry]:
    """A shape of so many columns that their types are 14 KB in a header."""
    columns = tuple(ColumnBinding(number, f"column_{number}", 1043, 204, 0) for number in range(1, WIDE_COLUMNS + 1))
    definition = ShapeDefinition("wide", ("public", "wide"))
    table = TableBinding(8, definition.table, (KeyBinding(1, ("column_1",)),), columns)
    return replace(shape_entry(), definition=definition, table_oid=8), TableEntry(SOURCE, table)


def _nginx(root: Path, found: Proxied) -> list[str]:
    ports = {
        "127.0.0.1:8080": f"127.0.0.1:{found.port}",
        "127.0.0.1:8081": f"127.0.0.1:{found.keeper}",
        "127.0.0.1:9470": f"127.0.0.1:{found.direct}",
    }
    config = _configured(root, "nginx.conf", ports)
    # It speaks HTTP/2 where it is told to, which needs a certificate for browsers.
    given = f"listen 127.0.0.1:{found.port} backlog=4096;"
    assert given in config.read_text()
    config.write_text(config.read_text().replace(given, f"{given} listen 127.0.0.1:{found.http2} http2;"))
    return ["nginx", "-p", str(root), "-c", str(config), "-e", "error.log", "-g", "daemon off; pid nginx.pid;"]


def _varnish(root: Path, found: Proxied) -> list[str]:
    ports = {
        "127.0.0.1:8080": f"127.0.0.1:{found.port}",
        "127.0.0.1:8081": f"127.0.0.1:{found.keeper}",
        '"9470"': f'"{found.direct}"',
    }
    config = _configured(root, "varnish.vcl", ports)
    found.http2 = found.port
    # The command is a comment there, in several lines.
    _, _, command = config.read_text().replace("\\\n#", "").partition("#   varnishd -f varnish.vcl ")
    return ["varnishd", "-F", "-n", str(root / "varnish"), "-f", str(config), *command.partition("\n")[0].split()]


def _squid(root: Path, found: Proxied) -> list[str]:
    ports = {"127.0.0.1:8080": f"127.0.0.1:{found.port}", "parent 9470": f"parent {found.direct}"}
    return ["squid", "-N", "-f", str(_configured(root, "squid.conf", ports))]


def _haproxy(root: Path, found: Proxied) -> list[str]:
    ports = {"127.0.0.1:8080": f"127.0.0.1:{found.port}", "127.0.0.1:9470": f"127.0.0.1:{found.direct}"}
    return ["haproxy", "-f", str(_configured(root, "haproxy.cfg", ports))]


def _apache(root: Path, found: Proxied) -> list[str]:
    for folder in (root / "cache", root / "cache" / "lock"):
        folder.mkdir()
        folder.chmod(0o777)
    changed = {
        "127.0.0.1:8080": f"127.0.0.1:{found.port}",
        "127.0.0.1:9470": f"127.0.0.1:{found.direct}",
        "/var/cache/apache2/mod_cache_disk": str(root / "cache"),
        "/run/flushtracker_cache.pid": str(root / "apache.pid"),
    }
    return ["apache2", "-D", "FOREGROUND", "-f", str(_configured(root, "apache.conf", changed))]


_COMMANDS: Final = {"nginx": _nginx, "varnish": _varnish, "squid": _squid, "haproxy": _haproxy, "apache": _apache}


def _configured(root: Path, name: str, ports: Mapping[str, str]) -> Path:
    """The configuration of the example, with other ports or paths, each of which it has once."""
    text = (_CONFIGS / name).read_text()
    for given, port in ports.items():
        assert text.count(given) == 1, given
        text = text.replace(given, port)
    path = root / name
    path.write_text(text)
    return path


def _is_there(found: Proxied) -> bool:
    try:
        return found.get("/v1/shape?shape=users&offset=now").status == 200
    except OSError:
        return False


async def follow(proxied: Proxied, clients: int, changes: int) -> list[tuple[int, float]]:
    """Let so many clients wait for changes of ``users``; how many requests reach the server for each, and in what time.

    Each client checks that it gets each change, in order.
    """
    seen = [0] * clients
    first = proxied.get("/v1/shape?shape=users&offset=-1")

    async def client(number: int) -> None:
        offset, cursor = first.headers["electric-offset"], ""
        reader, writer = await asyncio.open_connection("127.0.0.1", proxied.port)
        while seen[number] < changes:
            query = f"handle={first.headers['electric-handle']}&offset={offset}&live=true&cursor={cursor}"
            writer.write(f"GET /v1/shape?shape=users&{query} HTTP/1.1\r\nhost: a\r\n\r\n".encode())
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            assert head.startswith("http/1.1 200"), head
            headers = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if line)
            messages = json.loads(await reader.readexactly(int(headers["content-length"])))
            for message in messages[:-1]:
                seen[number] += 1
                assert message["value"]["id"] == str(seen[number])
            offset, cursor = headers["electric-offset"], headers["electric-cursor"]
        writer.close()

    tasks = []
    for number in range(clients):
        tasks.append(asyncio.create_task(client(number)))
        if number % 100 == 0:
            await asyncio.sleep(0.05)
    await asyncio.sleep(3)
    found = []
    for change in range(1, changes + 1):
        before = await asyncio.to_thread(proxied.asked)
        row = item((10 + 10 * change, 0), "update", "a", {"id": str(change)})
        await asyncio.to_thread(append, proxied.log, [row, commit(10 + 10 * change)])
        committed_s = time.monotonic()
        deadline = committed_s + _DEADLINE_S
        while min(seen) < change:
            assert time.monotonic() < deadline, f"{sum(each < change for each in seen)} clients lack change {change}"
            await asyncio.gather(*(task for task in tasks if task.done()))
            await asyncio.sleep(0.05)
        all_have_s = time.monotonic() - committed_s
        # Those who have it wait for the next one by now.
        await asyncio.sleep(1)
        found.append((await asyncio.to_thread(proxied.asked) - before, all_have_s))
    await asyncio.gather(*tasks)
    return found


def check_events(proxied: Proxied, port: int, path: str, shape: str) -> None:
    """An event arrives before the answer ends."""
    first = proxied.get(f"{path}offset=-1", port=port)
    query = f"offset=10_0&live=true&live_sse=true&handle={first.headers['electric-handle']}"
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as connection:
        connection.request("GET", path + query)
        response = connection.getresponse()
        assert (response.status, response.headers["content-type"]) == (200, "text/event-stream")
        append(proxied.log, [item((30, 0), "insert", "e", {"id": "5"}, shape_id=shape), commit(30, shape_id=shape)])
        found = b""
        while b'"id":"5"' not in found:
            line = response.readline()
            assert line, f"the answer ended after {found!r}"
            found += line
