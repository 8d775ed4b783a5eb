"""``HttpServer``: a small HTTP server in its own threads. No client can use it to delay the program.

One thread reads requests and sends answers with uvicorn's protocol, and two others compute the answers. Everything that
clients can occupy is limited: the number of connections, the size of a request, and the time until it has arrived and
until its answer has been read. After each answer its thread sleeps, so that a client in a tight loop leaves the
interpreter to the program.

:func:`is_allowed_host` is the check of the ``Host`` header.
"""

import asyncio
import logging
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from email.utils import formatdate
from functools import lru_cache
from ipaddress import ip_address
from threading import Thread
from typing import Any, Final, NamedTuple, TypeAlias

import uvicorn
from uvicorn.server import ServerState

from flushtracker.config.status_config import StatusConfig
from flushtracker.status.http.asgi import Receive, Scope, Send
from flushtracker.status.http.daemon_pool import DaemonPool
from flushtracker.status.http.http_connection import HttpConnection
from flushtracker.status.http.listener import open_listener

_THREADS: Final = 2
_CONNECTIONS: Final = 256
"""Each takes a file descriptor, and a process may often have only 1024. Others wait in the kernel."""
_BACKLOG: Final = 512
_REQUEST_BYTES: Final = 16_384
_IDLE_S: Final = 10
"""A connection is closed this long after its last answer."""
_ANSWER_S: Final = 15.0
"""A connection is closed if its client has not read the whole answer within this time."""
_STALLED_S: Final = 10.0
"""The kernel closes a connection whose client reads nothing for this long."""
_SLEEP_FACTOR: Final = 4
_SHORTEST_SLEEP_S: Final = 0.005
_LONGEST_SLEEP_S: Final = 0.05
"""A thread sleeps four times as long as an answer took, up to this."""
_RETRY_S: Final = 0.1
_STOP_S: Final = 2.0
_HOST: Final = re.compile(r"(?:\[([^\]]*)\]|([^:]*))(?::[0-9]*)?")
"""The value of a ``Host`` header: an IPv6 address in brackets, or a name; then a port."""


class Response(NamedTuple):
    """A response; ``headers`` include the body's length, even for HEAD, where the body is empty."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


App: TypeAlias = Callable[[str, str, Mapping[str, str]], Response]
"""Computes the response for a method, a path and headers with lower-case names. Called from several threads at once."""


class HttpServer:
    """Serves ``app`` at the address of ``config`` until :meth:`close`.

    Raises:
        ConfigError: nothing can listen at this address; the message names ``status.listen``.
    """

    def __init__(self, config: StatusConfig, app: App) -> None:
        # Its warnings are about clients, for example cut connections, and do not belong in the program's log.
        logging.getLogger("uvicorn").setLevel(logging.CRITICAL)
        self._app = app
        self._listener = open_listener(config, "status.listen", backlog=_BACKLOG, stalled_s=_STALLED_S)
        self._listener.setblocking(False)  # noqa: FBT003  the socket's own interface
        self.port = int(self._listener.getsockname()[1])
        self._answering = DaemonPool(_THREADS, "status-answer")
        self._loop = asyncio.new_event_loop()
        # Nor do its errors: a client may send data that the protocol cannot decode.
        self._loop.set_exception_handler(lambda *_: None)
        self._serving = self._loop.create_task(self._serve())
        self._thread = Thread(target=self._run, name="status", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Close every connection and stop the threads, whatever the clients do."""
        # The loop is already closed if this is called again.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._serving.cancel)
        self._thread.join(_STOP_S)

    def _run(self) -> None:
        with suppress(asyncio.CancelledError):
            self._loop.run_until_complete(self._serving)
        self._listener.close()
        self._answering.shutdown()
        self._loop.close()

    async def _serve(self) -> None:
        state = ServerState()
        protocol: Any = HttpConnection
        config = uvicorn.Config(
            self._answer,
            interface="asgi3",
            http=protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            timeout_keep_alive=_IDLE_S,
            h11_max_incomplete_event_size=_REQUEST_BYTES,
        )
        try:
            while True:
                # Answers are computed even for clients that are gone.
                if max(len(state.connections), len(state.tasks)) < _CONNECTIONS:
                    await self._accept(lambda: protocol(config, state, {}, self._loop))
                else:
                    await asyncio.sleep(_RETRY_S)
        finally:
            for connection in list(state.connections):
                connection.transport.abort()
            for task in state.tasks:
                task.cancel()
            await asyncio.gather(*state.tasks, return_exceptions=True)
            # Aborted connections are closed in the next turn of the loop.
            await asyncio.sleep(0)

    async def _accept(self, connection: Callable[[], asyncio.Protocol]) -> None:
        try:
            client, _ = await self._loop.sock_accept(self._listener)
            await self._loop.connect_accepted_socket(connection, client)
        except OSError:
            # For example too many open files.
            await asyncio.sleep(_RETRY_S)

    async def _answer(self, scope: Scope, _receive: Receive, send: Send) -> None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        response = await self._loop.run_in_executor(
            self._answering, self._throttled, scope["method"], scope["path"], headers
        )
        if "transfer-encoding" in headers or headers.get("content-length", "0") != "0":
            # The body is not read, and may be endless.
            response = response._replace(headers=(*response.headers, ("Connection", "close")))
        try:
            await asyncio.wait_for(_send(send, response), _ANSWER_S)
        except asyncio.TimeoutError:
            scope["state"]["connection"].abort()

    def _throttled(self, method: str, path: str, headers: Mapping[str, str]) -> Response:
        started = time.monotonic()
        try:
            return self._app(method, path, headers)
        finally:
            wanted_s = (time.monotonic() - started) * _SLEEP_FACTOR
            time.sleep(min(max(wanted_s, _SHORTEST_SLEEP_S), _LONGEST_SLEEP_S))


async def _send(send: Send, response: Response) -> None:
    """Return once the kernel has taken all of it."""
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in response.headers]
    date = (b"Date", formatdate(usegmt=True).encode())
    await send({"type": "http.response.start", "status": response.status, "headers": [*headers, date]})
    await send({"type": "http.response.body", "body": response.body, "more_body": True})
    # Each part waits until the previous one has been written.
    await send({"type": "http.response.body"})


def is_allowed_host(listen_host: str, host: str | None) -> bool:
    """Whether a server that listens on ``listen_host`` answers a request with this ``Host`` header.

    This protects against DNS rebinding. Any site may let its name resolve to 127.0.0.1. The browser still considers
    that the same site and lets its page read the response of a server on the loopback address; but it sends the site's
    name as ``Host``. So a server on the loopback address answers only to ``localhost``, to addresses, and to the name
    under which it listens. No browser omits the header.

    >>> [is_allowed_host("127.0.0.1", host) for host in ("localhost:9464", "[::1]:9464", "site.example:9464")]
    [True, True, False]
    >>> is_allowed_host("0.0.0.0", "site.example:9464")
    True
    """
    if host is None or not (listen_host == "localhost" or _is_loopback(listen_host)):
        return True
    found = _HOST.fullmatch(host)
    name = "" if found is None else (found[1] or found[2] or "").lower()
    return name in ("localhost", listen_host.lower()) or _is_address(name)


def _is_loopback(host: str) -> bool:
    return _is_address(host) and ip_address(host).is_loopback


@lru_cache(maxsize=64)
def _is_address(host: str) -> bool:
    with suppress(ValueError):
        return bool(ip_address(host))
    return False
