"""nginx in front of the server, with the configuration of ``examples/caching_proxy`` as it is, except for its ports."""

import asyncio
import http.client
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from flushtracker.delta.log.table import create_shape_log
from flushtracker.local.postgres import free_port
from tests.support.shape_log_rows import append, commit, item
from tests.support.waiting import wait_until
from tests.unit.test_shape_log_reader import register, shape_entry, table_entry

_ROOT: Final = Path(__file__).parents[2]
_CONFIG: Final = _ROOT / "examples" / "caching_proxy" / "nginx.conf"
_CLIENTS: Final = 1_000
_CHANGES: Final = 5
_DEADLINE_S: Final = 120.0


@dataclass
class _Proxied:
    """The server, and nginx in front of it: ``port`` for all shapes, ``keeper`` for the one that users may see."""

    log: str
    port: int
    keeper: int
    direct: int
    status: int

    def get(
        self, address: str, headers: dict[str, str] | None = None, port: int | None = None
    ) -> http.client.HTTPResponse:
        """An answer whose body has been read into ``body``; the address is sent as it is."""
        with closing(http.client.HTTPConnection("127.0.0.1", port or self.port, timeout=60)) as connection:
            connection.putrequest("GET", address, skip_accept_encoding=True)
            for name, value in (headers or {}).items():
                connection.putheader(name, value)
            connection.endheaders()
            response = connection.getresponse()
            response.body = response.read()  # type: ignore[attr-defined]
            return response

    def asked(self) -> int:
        """How many requests have reached the server."""
        text = self.get("/metrics", port=self.status).body.decode()  # type: ignore[attr-defined]
        return sum(
            int(float(each)) for each in re.findall(r"^flushtracker_serve_answers_total\{.*\} (\S+)$", text, re.M)
        )


@contextmanager
def _proxied() -> Iterator[_Proxied]:
    """All files are in a folder that nginx' workers, of another user, may enter."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        root.chmod(0o755)
        log = str(root / "log")
        create_shape_log(log)
        register(log, shape_entry(), shape_entry("orders"), table_entry())
        append(log, [item((10, 0), "insert", "a", {"id": "1"}), commit(10)])
        append(log, [item((10, 0), "insert", "b", {"id": "2"}, shape_id="orders"), commit(10, shape_id="orders")])
        found = _Proxied(log, *(free_port() for _ in range(4)))
        text = _CONFIG.read_text()
        for given, port in (("127.0.0.1:8080", found.port), ("127.0.0.1:8081", found.keeper)):
            assert text.count(given) == 1
            text = text.replace(given, f"127.0.0.1:{port}")
        config = root / "nginx.conf"
        config.write_text(text.replace("127.0.0.1:9470", f"127.0.0.1:{found.direct}"))
        serve = root / "serve.yaml"
        serve.write_text(
            f'sink: {{log: "{log}", shapes: "{log}_shapes"}}\nhttp: {{listen: "127.0.0.1:{found.direct}"}}\n'
            f'poll: "100 ms"\nstatus: {{listen: "127.0.0.1:{found.status}"}}\n'
        )
        nginx = ["nginx", "-p", folder, "-c", str(config), "-e", "error.log", "-g", "daemon off; pid nginx.pid;"]
        commands = ([sys.executable, "-m", "flushtracker", "serve", "--config", str(serve)], nginx)
        processes = [subprocess.Popen(command, cwd=_ROOT, stderr=subprocess.DEVNULL) for command in commands]
        try:
            wait_until(lambda: _is_there(found), "the proxy and the server answer", _DEADLINE_S, pause_s=0.2)
            yield found
        finally:
            for process in reversed(processes):
                process.terminate()
                process.wait()


@pytest.fixture
def proxied() -> Iterator[_Proxied]:
    with _proxied() as found:
        yield found


@pytest.fixture(scope="module")
def unchanged() -> Iterator[_Proxied]:
    """For tests that write nothing."""
    with _proxied() as found:
        yield found


def _is_there(found: _Proxied) -> bool:
    try:
        return found.get("/v1/shape?shape=users&offset=now").status == 200
    except OSError:
        return False


def test_thousand_live_clients_are_a_handful_of_requests_for_each_change(proxied: _Proxied) -> None:
    """Each gets each change, in order, and the server is asked a few times for all of them."""
    counts = asyncio.run(_follow(proxied))
    assert max(counts) <= 8, f"requests that reached the server for each change: {counts}"


async def _follow(proxied: _Proxied) -> list[int]:
    seen = [0] * _CLIENTS
    first = proxied.get("/v1/shape?shape=users&offset=-1")

    async def client(number: int) -> None:
        offset, cursor = first.headers["electric-offset"], ""
        reader, writer = await asyncio.open_connection("127.0.0.1", proxied.port)
        while seen[number] < _CHANGES:
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
    for number in range(_CLIENTS):
        tasks.append(asyncio.create_task(client(number)))
        if number % 100 == 0:
            await asyncio.sleep(0.05)
    await asyncio.sleep(3)
    counts = []
    for change in range(1, _CHANGES + 1):
        before = await asyncio.to_thread(proxied.asked)
        row = item((10 + 10 * change, 0), "update", "a", {"id": str(change)})
        await asyncio.to_thread(append, proxied.log, [row, commit(10 + 10 * change)])
        deadline = time.monotonic() + _DEADLINE_S
        while min(seen) < change:
            assert time.monotonic() < deadline, f"{sum(each < change for each in seen)} clients lack change {change}"
            await asyncio.gather(*(task for task in tasks if task.done()))
            await asyncio.sleep(0.05)
        # Those who have it wait for the next one by now.
        await asyncio.sleep(1)
        counts.append(await asyncio.to_thread(proxied.asked) - before)
    await asyncio.gather(*tasks)
    return counts


def test_rows_are_asked_for_once_and_known_ones_not_sent(proxied: _Proxied) -> None:
    """The proxy keeps what the server says may be kept, and answers 304 by its etag."""
    first = proxied.get("/v1/shape?shape=users&offset=-1")
    before = proxied.asked()
    again = [proxied.get("/v1/shape?shape=users&offset=-1") for _ in range(5)]
    known = proxied.get("/v1/shape?shape=users&offset=-1", {"if-none-match": first.headers["etag"]})
    assert {each.body for each in again} == {first.body}  # type: ignore[attr-defined]
    assert (known.status, known.body) == (304, b"")  # type: ignore[attr-defined]
    assert proxied.asked() == before
    other = proxied.get("/v1/shape?shape=users&offset=-1", {"if-none-match": '"other"'})
    assert (other.status, other.headers["etag"]) == (200, first.headers["etag"])


def test_all_who_must_begin_again_are_told_at_once(proxied: _Proxied) -> None:
    """The 409 after a truncate is kept for a moment, so that nobody waits for those before; then each gets the rows."""
    first = proxied.get("/v1/shape?shape=users&offset=-1")
    old = first.headers["electric-handle"]
    live = f"/v1/shape?shape=users&offset=10_0&live=true&handle={old}"

    async def ask(address: str) -> tuple[int, dict[str, str]]:
        response = await asyncio.to_thread(proxied.get, address)
        return response.status, {name.lower(): value for name, value in response.getheaders()}

    async def test() -> None:
        waiting = [asyncio.create_task(ask(live)) for _ in range(25)]
        await asyncio.sleep(1)
        append(proxied.log, [item((20, 0), "truncate"), item((20, 2), "insert", "c", {"id": "3"}), commit(20)])
        began = time.monotonic()
        answers = await asyncio.gather(*waiting)
        assert {status for status, _ in answers} == {409}
        new = {headers["electric-handle"] for _, headers in answers}
        assert len(new) == 1
        assert old not in new
        (handle,) = new
        start = f"/v1/shape?shape=users&offset=-1&handle={handle}&expired_handle={old}"
        rows = await asyncio.gather(*(ask(start) for _ in range(25)))
        assert {(status, headers["electric-handle"]) for status, headers in rows} == {(200, handle)}
        assert time.monotonic() - began < 15

    asyncio.run(test())


def test_events_are_passed_on_as_they_come(proxied: _Proxied) -> None:
    first = proxied.get("/v1/shape?shape=users&offset=-1")
    query = f"offset=10_0&live=true&live_sse=true&handle={first.headers['electric-handle']}"
    for port, path in ((proxied.port, "/v1/shape?shape=users&"), (proxied.keeper, "/orders?")):
        if port == proxied.keeper:
            handle = proxied.get("/orders?offset=-1", port=port).headers["electric-handle"]
            query = f"offset=10_0&live=true&live_sse=true&handle={handle}"
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as connection:
            connection.request("GET", path + query)
            response = connection.getresponse()
            assert (response.status, response.headers["content-type"]) == (200, "text/event-stream")
            shape = "users" if port == proxied.port else "orders"
            rows = [item((30, 0), "insert", "e", {"id": "5"}, shape_id=shape), commit(30, shape_id=shape)]
            append(proxied.log, rows)
            assert b'"id":"5"' in _until(response, b'"id":"5"')


def _until(response: http.client.HTTPResponse, wanted: bytes) -> bytes:
    found = b""
    while wanted not in found:
        found += response.readline()
    return found


@pytest.mark.parametrize(
    "address",
    [
        "//v1/shape?shape=users&offset=-1",
        "/v1//shape?shape=users&offset=-1",
        "/v1/%73hape?shape=users&offset=-1",
        "/v1%2Fshape?shape=users&offset=-1",
        "/./v1/shape?shape=users&offset=-1",
        "/x/../v1/shape?shape=users&offset=-1",
        "/v1/shape/?shape=users&offset=-1",
        "/v1/shape;a?shape=users&offset=-1",
        "/V1/shape?shape=users&offset=-1",
        "/metrics",
        "/readyz",
    ],
)
def test_only_the_path_as_it_is_written_is_passed_on(unchanged: _Proxied, address: str) -> None:
    """nginx compares a path that it has decoded and shortened, but sends the one it got; the server takes one only."""
    assert unchanged.get(address).status in {400, 404}


@pytest.mark.parametrize(
    "address",
    [
        "/orders?offset=-1&shape=users",
        "/orders?shape=users&offset=-1",
        "/orders?offset=-1&table=public.users",
        "/orders?offset=-1&handle=x%26shape%3Dusers",
        "/orders?offset=-1%26shape=users",
        "/orders?offset=-1&offset=now&shape=users",
        "/orders?offset=-1&log=full%23&shape=users",
        "/orders?offset=-1;shape=users",
        "/orders?offset=-1&cursor=1%0d%0aGET%20/v1/shape",
        "/orders?&&offset=-1&sHape=users&live%5Fsse=true",
        "//orders?offset=-1&shape=users",
        "/%6frders?offset=-1&shape=users",
        "/orders/../v1/shape?shape=users&offset=-1",
        "/v1/shape?shape=users&offset=-1",
        "/?/v1/shape?shape=users&offset=-1",
    ],
)
def test_no_spelling_leads_around_the_gatekeeper(unchanged: _Proxied, address: str) -> None:
    """Whatever a user sends, it is the one shape that is answered, or an error."""
    response: Any = unchanged.get(address, port=unchanged.keeper)
    assert response.status in {200, 400, 404}
    if response.status == 200:
        assert [message.get("key") for message in json.loads(response.body)] == ["b", None]


def test_gatekeeper_lets_a_client_follow(proxied: _Proxied) -> None:
    """It passes on all that a client needs, and what several ask for is asked for once."""
    first: Any = proxied.get("/orders?offset=-1", port=proxied.keeper)
    assert [message.get("key") for message in json.loads(first.body)] == ["b", None]
    query = f"offset={first.headers['electric-offset']}&handle={first.headers['electric-handle']}"
    append(proxied.log, [item((20, 0), "delete", "b", shape_id="orders"), commit(20, shape_id="orders")])
    live: Any = proxied.get(f"/orders?{query}&live=true&cursor=1", port=proxied.keeper)
    assert json.loads(live.body)[0]["headers"]["operation"] == "delete"
    before = proxied.asked()
    assert proxied.get(f"/orders?x=1&{query}&live=true&cursor=1", port=proxied.keeper).status == 200
    assert proxied.asked() == before
