"""The server of shapes in this process, and a client that follows the protocol.

Requests go to the application itself: there is no socket, and time is the event loop's. ``RemoteServer`` is one of
another process.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import urlopen

from flushtracker.config.secret_options import SecretOptions
from flushtracker.config.serve_config import CacheConfig, HttpConfig, ServeConfig
from flushtracker.config.write_config import LogConfig
from flushtracker.errors import DecodeError
from flushtracker.serve.app import ServeApp
from flushtracker.serve.parts import Parts
from flushtracker.serve.server import Served
from flushtracker.serve.shape_answers import ShapeAnswers
from flushtracker.trials.loop_trial.shape_client import ShapeClient
from flushtracker.wal.changes import TableName

Headers = dict[str, str]
State = dict[str, dict[str, Any]]


@dataclass
class Response:
    """An answer; ``chunks`` are the parts of its body as they were sent."""

    status: int = 0
    headers: Headers = field(default_factory=dict)
    chunks: list[bytes] = field(default_factory=list)

    @property
    def body(self) -> bytes:
        return b"".join(self.chunks)

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Server:
    """A running server over a log."""

    def __init__(self, config: ServeConfig, live_s: float = 5.0) -> None:
        self._config = config
        self.served = Served(config)
        if live_s:
            self.replace(self.served.parts, live_s)

    def replace(self, parts: Parts, live_s: float) -> None:
        """Answer with other parts, and wait so long for changes, or for what a client was shown before."""
        config, self.served.parts = self._config, parts
        self.served.answers = ShapeAnswers(parts, config.source, live_s, begin_s=live_s)
        self.served.app = ServeApp(config.http, self.served.answers, parts.poller, config.cache.disk_bytes)

    async def get(self, params: dict[str, Any], **more: Any) -> Response:
        return await self.request(urlencode(params).encode(), **more)

    async def post(self, params: dict[str, Any], document: Any) -> Response:
        """Send a request with a body of JSON."""
        return await self.request(urlencode(params).encode(), method="POST", body=json.dumps(document).encode())

    async def request(  # noqa: PLR0913  all but the first one by name
        self,
        query: bytes = b"",
        *,
        path: bytes = b"/v1/shape",
        method: str = "GET",
        headers: dict[bytes, bytes] | None = None,
        gone: asyncio.Event | None = None,
        into: Response | None = None,
        body: bytes | None = None,
    ) -> Response:
        """Send a request; the client goes away when ``gone`` is set."""
        found = into or Response()
        headers = {**(headers or {b"host": b"localhost"})}
        if body is not None:
            headers[b"content-length"] = b"%d" % len(body)
        scope = {
            "type": "http",
            "method": method,
            "path": path.decode("latin-1"),
            "raw_path": path,
            "query_string": query,
            "headers": list(headers.items()),
            "state": {},
        }
        left, is_first = gone or asyncio.Event(), True

        async def receive() -> dict[str, Any]:
            nonlocal is_first
            if is_first:
                is_first = False
                return {"type": "http.request", "body": body or b"", "more_body": False}
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            # Between requests on a socket, the loop does what else there is.
            await asyncio.sleep(0)
            if message["type"] == "http.response.start":
                assert not found.status
                found.status = message["status"]
                names = [(name.decode(), value.decode()) for name, value in message["headers"]]
                found.headers = dict(names)
                assert len(found.headers) == len(names)
            else:
                found.chunks.append(message["body"])

        await self.served.app(scope, receive, send)
        if found.status == 200 and method == "GET" and "content-length" in found.headers:
            assert len(found.body) == int(found.headers["content-length"])
        return found


class Answering(Protocol):
    """A server, wherever it runs."""

    async def get(self, params: dict[str, Any]) -> Response: ...


class RemoteServer:
    """The server whose shapes are at ``url``."""

    def __init__(self, url: str, timeout_s: float) -> None:
        self._url, self._timeout_s = url, timeout_s

    async def get(self, params: dict[str, Any]) -> Response:
        return await asyncio.to_thread(self._get, params)

    def _get(self, params: dict[str, Any]) -> Response:
        try:
            answer = urlopen(f"{self._url}?{urlencode(params)}", timeout=self._timeout_s)  # noqa: S310  of this machine
        except HTTPError as error:
            answer = error
        with answer:
            headers = {name.lower(): value for name, value in answer.headers.items()}
            return Response(answer.status, headers, [answer.read()])


def config_of(
    log: str,
    shapes: str | None = None,
    source: str | None = None,
    options: Mapping[str, str] | None = None,
    on_demand: frozenset[TableName] = frozenset(),
    definitions: int = 1_000,
    **http: Any,
) -> ServeConfig:
    sink = LogConfig(log, shapes or f"{log}_shapes", storage_options=SecretOptions(options or {}))
    return ServeConfig(
        sink,
        HttpConfig("127.0.0.1", 0, **http),
        CacheConfig(1_000_000, 100_000_000),
        source,
        poll_ms=50,
        on_demand=on_demand,
        on_demand_definitions=definitions,
    )


@asynccontextmanager
async def serving(log: str, shapes: str | None = None, live_s: float = 5.0, **http: Any) -> AsyncIterator[Server]:
    """A server that looks at the log at ``log``."""
    server = Server(config_of(log, shapes, **http), live_s)
    server.served.parts.poller.start()
    try:
        yield server
    finally:
        server.served.close()


@dataclass
class Client(ShapeClient):
    """A client of any of our servers, whose wrong answers are failed assertions."""

    async def step(self, server: Answering, *, live: bool = False) -> Response:
        """Ask once, and take the answer."""
        response = await server.get(self.query(live=live))
        try:
            self.take(response.status, response.headers, response.body, live=live)
        except DecodeError as error:
            raise AssertionError(str(error)) from error
        return response

    async def sync(self, server: Answering, most: int = 50) -> None:
        """Ask until it is up to date."""
        for _ in range(most):
            response = await self.step(server)
            assert response.status in {200, 409}, response.body
            if self.is_up_to_date:
                return
        raise AssertionError("not up to date")


def run(test: Callable[[], Awaitable[None]]) -> None:
    """Run a test of clients, which fails after ten minutes."""
    asyncio.run(asyncio.wait_for(test(), 600))
