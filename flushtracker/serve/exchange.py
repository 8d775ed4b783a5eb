"""``Exchange``: a request and its response."""

import asyncio
import logging
import re
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Final

from flushtracker.serve.answer import Answer
from flushtracker.serve.body import Body
from flushtracker.serve.disconnect import DisconnectedError
from flushtracker.serve.http_answers import (
    STALLED_S,
    Headers,
    StalledError,
    headers_of,
    send_answer,
    send_body,
    send_whole,
)
from flushtracker.serve.rate_limited_log import RateLimitedLog
from flushtracker.serve.recent_answers import FIRST_ERROR
from flushtracker.serve.refusals import RefusalError
from flushtracker.status.http.asgi import Message, Receive, Scope, Send
from flushtracker.status.http.http_connection import Client

if TYPE_CHECKING:
    from flushtracker.serve.app import ServeApp

_log = RateLimitedLog(logging.getLogger(__name__))

_BODY_S: Final = 15.0
_ABSOLUTE: Final = re.compile(rb"https?://([^/?#@]+)(/.*)", re.IGNORECASE)
"""A request target with a host, as sent to proxies, which every server must accept."""


class Exchange:
    def __init__(self, scope: Scope, receive: Receive, send: Send, app: "ServeApp") -> None:
        self.scope = scope
        self.headers = headers_of(scope)
        self._receive = receive
        self._send = send
        self._app = app
        self._disconnected: asyncio.Task[None] | None = None
        self._is_begun = self._is_stalled = self._is_read = False
        self._connection: Client | None = scope.get("state", {}).get("connection")

    @property
    def size(self) -> int:
        """The size of the address and the headers; uvicorn limits it only for a request that arrives in parts."""
        headers = sum(len(name) + len(value) + 4 for name, value in self.scope["headers"])
        return len(self.scope["raw_path"]) + len(self.scope["query_string"]) + headers

    @property
    def has_body(self) -> bool:
        """Whether data follows the headers, which could be read as another request."""
        return b"transfer-encoding" in self.headers or self.headers.get(b"content-length", b"0") != b"0"

    @property
    def target(self) -> tuple[str | None, bytes]:
        """The host and the path; an absolute target in the request line takes precedence over the header."""
        path: bytes = self.scope["raw_path"]
        if (whole := _ABSOLUTE.fullmatch(path)) is not None:
            return whole[1].decode("latin-1"), whole[2]
        hosts = [value for name, value in self.scope["headers"] if name == b"host"]
        return None if not hosts else hosts[-1].decode("latin-1"), path

    @property
    def origin(self) -> str | None:
        found = self.headers.get(b"origin")
        return None if found is None else found.decode("latin-1")

    @property
    def disconnected(self) -> "asyncio.Future[None]":
        """Done when the client has closed the connection."""
        if self._disconnected is None:
            self._disconnected = asyncio.create_task(self._closed())
        return self._disconnected

    @property
    def is_one_too_many(self) -> bool:
        """Whether its connection is over the limit."""
        return self._connection is not None and self._connection.is_over_limit

    async def send(self, message: Message) -> None:
        """Send a part of an answer that is already counted; raises ``StalledError``, or ``DisconnectedError``."""
        connection = self._connection
        # Sending may never wait, and nobody else tells that the client has gone until it does.
        if connection is not None and connection.is_closing:
            raise DisconnectedError
        self._is_begun = True
        self._app.sent_bytes += len(message.get("body", b""))
        if connection is not None and not connection.has_unsent:
            # It is written without a wait.
            await self._send(message)
            return
        # A timer costs far less than the task of a timeout, for each part of each answer.
        stalled = asyncio.get_running_loop().call_later(STALLED_S, self._stall)
        try:
            await self._send(message)
        finally:
            stalled.cancel()
        if self._is_stalled:
            raise StalledError

    def _stall(self) -> None:
        """Close the connection of a client that is not reading, which ends the wait for it."""
        self._is_stalled = True
        self.abort()

    async def whole(self, status: int, headers: Headers, body: bytes) -> None:
        """Send a small answer. If one has already begun, cut the connection, so that the client sees an error."""
        self.count(status)
        if self._is_begun:
            if status >= FIRST_ERROR:
                _log(logging.WARNING, "answer cut off status=%s reason=%s", status, body.decode())
            self.abort()
            return
        with suppress(DisconnectedError, StalledError):
            await send_whole(self.send, status, self._ending(headers), body)

    async def answer(self, headers: Headers, answer: Answer) -> None:
        with self.sending(answer.body):
            self.count(200)
            is_head = self.scope["method"] == "HEAD"
            await send_answer(self.send, headers, answer, is_head=is_head, directly=self._send_directly)

    def _ending(self, headers: Headers) -> Headers:
        """The headers of an answer that ends the connection if a proxy may see another end of the request."""
        return {**headers, "connection": "close"} if self.is_one_too_many or self.has_body else headers

    async def subset(self, headers: Headers, body: Body) -> None:
        with self.sending(body):
            self.count(200)
            is_head, told = self.scope["method"] == "HEAD", self._ending(headers)
            await send_body(self.send, told, b"", body, b"", is_head=is_head, directly=self._send_directly)

    def _send_directly(self, body: Body, place: int) -> int:
        client = self._connection
        taken = 0 if client is None else client.send_directly(lambda socket: body.send(socket, place))
        self._app.sent_bytes += taken
        return taken

    async def read_body(self, most_bytes: int) -> bytes:
        """What follows the headers; only before :attr:`disconnected` is used.

        Raises:
            RefusalError: it is larger, or does not arrive in time. DisconnectedError: the client has gone.
        """
        try:
            return await asyncio.wait_for(self._read_all(most_bytes), _BODY_S)
        except asyncio.TimeoutError:
            raise RefusalError(408, f"the body has not arrived within {_BODY_S:.0f} s") from None

    async def _read_all(self, most_bytes: int) -> bytes:
        parts, size = list[bytes](), 0
        while not self._is_read:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise DisconnectedError
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > most_bytes:
                raise RefusalError(413, f"the body has more than {most_bytes} bytes")
            self._is_read = not message.get("more_body", False)
        return b"".join(parts)

    def sending(self, body: Body) -> AbstractContextManager[None]:
        """Enter this while a body is sent; raises ``UnavailableError`` if there are too many files."""
        return self._app.files.sending(body, self.abort)

    def count(self, status: int) -> None:
        self._app.answered[status] += 1
        self._app.recent.note(status)

    def abort(self) -> None:
        if self._connection is not None:
            self._connection.abort()

    def close(self) -> None:
        if self._disconnected is not None:
            self._disconnected.cancel()

    async def _closed(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
