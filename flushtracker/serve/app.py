"""``ServeApp``: the server as an ASGI application: paths, methods, access, and an answer for whatever happens.

A path counts as it was sent, byte by byte: nothing is decoded, no slash is dropped, and nothing is redirected. So a
gatekeeper in front that compares paths sees what this compares.
"""

import asyncio
import hmac
import logging
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from flushtracker.config.serve_config import HttpConfig
from flushtracker.errors import FlushtrackerError
from flushtracker.monitoring.http_server import is_meant_for
from flushtracker.serve.answer import Answer
from flushtracker.serve.asgi import Message, Receive, Scope, Send
from flushtracker.serve.body import Body, PageFile
from flushtracker.serve.event_stream import send_events
from flushtracker.serve.flights import AbandonedError
from flushtracker.serve.gone import GoneError, until_gone
from flushtracker.serve.http_answers import (
    PREFLIGHT,
    Headers,
    StalledError,
    answer_headers,
    begin_again_headers,
    cors_headers,
    headers_of,
    is_known,
    message_body,
    next_cursor,
    refusal_headers,
    send_answer,
    send_whole,
    wall_s,
)
from flushtracker.serve.messages import MUST_REFETCH
from flushtracker.serve.query_string import parse_query
from flushtracker.serve.recent_answers import FIRST_ERROR, RecentAnswers
from flushtracker.serve.refusals import RefusalError, UnavailableError, refusal_of
from flushtracker.serve.shape_answers import BeginAgainError, ShapeAnswers
from flushtracker.serve.shape_request import ShapeRequest
from flushtracker.serve.watch import MOST_AGE_S, Watch

logger = logging.getLogger(__name__)

SHAPE_PATH: Final = b"/v1/shape"
_HEALTH: Final = b"/healthz"
_READY: Final = b"/readyz"
_METHODS: Final = ("GET", "HEAD")
_ABSOLUTE: Final = re.compile(rb"https?://([^/?#@]+)(/.*)", re.IGNORECASE)
"""A request's target that names its host, as those for proxies do, and which every server must take."""
HEADER_BYTES: Final = 32 << 10
"""The most of an address and headers."""

_MOST_SENT_FILES: Final = 400
"""Files of answers that are being sent, each to any number of clients."""


class ServeApp:
    """``answers`` has what shapes' clients get, ``watch`` whether the server is ready.

    Files of answers that are being sent have at most ``most_sent_bytes``, or are one alone.
    """

    def __init__(self, config: HttpConfig, answers: ShapeAnswers, watch: Watch, most_sent_bytes: int) -> None:
        self._config = config
        self._answers = answers
        self._watch = watch
        self._secret = None if config.secret is None else config.secret.encode()
        self.answered: Counter[int] = Counter()
        self.recent = RecentAnswers()
        self.sent_bytes = 0
        self._sent: Counter[PageFile] = Counter()
        self._most_sent_bytes = most_sent_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, whatever it is."""
        if scope["type"] != "http":
            return
        exchange = _Exchange(scope, receive, send, self)
        headers = cors_headers(self._config.allow_origins, exchange.origin)
        try:
            await self._answer(exchange, headers)
        except (GoneError, StalledError, AbandonedError):
            exchange.abort()
        except BeginAgainError as error:
            await exchange.whole(409, headers | begin_again_headers(error.handle), MUST_REFETCH)
        except RefusalError as error:
            await exchange.whole(error.status, headers | refusal_headers(error), message_body(error.message))
        except FlushtrackerError as error:
            refusal = refusal_of(error)
            await exchange.whole(refusal.status, headers | refusal_headers(refusal), message_body(refusal.message))
        except Exception:
            # What the client has sent is not logged: it may have the secret.
            logger.exception("request failed")
            refusal = RefusalError(500, "unexpected error; the server's log has it")
            await exchange.whole(500, headers | refusal_headers(refusal), message_body(refusal.message))
        finally:
            exchange.close()

    async def _answer(self, exchange: "_Exchange", headers: Headers) -> None:
        path, method = self._checked(exchange)
        if path == SHAPE_PATH and method == "OPTIONS":
            await exchange.whole(204, {**headers, **PREFLIGHT}, b"")
            return
        if path != SHAPE_PATH:
            await self._health(exchange, headers, is_ready_asked=path == _READY)
            return
        given = parse_query(exchange.scope["query_string"])
        self._require_secret(given.get("secret"))
        if exchange.is_one_too_many:
            raise UnavailableError("too many connections", 5)
        request = ShapeRequest.of(given)
        if request.sse:
            await self._events(exchange, headers, request)
            return
        answering = self._answers.answer(request, exchange.gone)
        # Whoever waits for a change costs no task; what it waits for then watches for its end.
        answer = await (answering if request.live else until_gone(answering, exchange.gone))
        found = headers | answer_headers(answer, request, wall_s())
        if is_known(exchange.headers, found):
            del found["content-type"]
            await exchange.whole(304, found, b"")
            return
        await exchange.answer(found, answer)

    def _checked(self, exchange: "_Exchange") -> tuple[bytes, str]:
        """The path and the method of a request that is well-formed and meant for this server."""
        host, path, method = *exchange.target, exchange.scope["method"]
        if not self._is_meant(host):
            raise RefusalError(421, "this host's name is not served here; see http.hosts")
        if exchange.size > HEADER_BYTES:
            raise RefusalError(431, f"the address and headers have more than {HEADER_BYTES} bytes")
        if exchange.has_body:
            raise RefusalError(413, "a request has no body here")
        if path not in {SHAPE_PATH, _HEALTH, _READY}:
            raise RefusalError(404, "the path is /v1/shape")
        if method not in _METHODS and not (path == SHAPE_PATH and method == "OPTIONS"):
            raise RefusalError(405, "the methods are GET, HEAD and OPTIONS")
        return path, method

    async def _events(self, exchange: "_Exchange", headers: Headers, request: ShapeRequest) -> None:
        if exchange.scope["method"] == "HEAD":
            raise RefusalError(405, "live_sse=true needs GET")
        begun = await until_gone(self._answers.stream(request), exchange.gone)
        follower = begun[0]
        exchange.count(200)
        facts = {
            "electric-handle": str(follower.handle),
            "electric-offset": f"{follower.told}_0",
            "electric-schema": follower.seen.facts.schema,
            "electric-cursor": str(next_cursor(request.cursor, wall_s(), has_moved=True)),
            "x-accel-buffering": "no",
        }
        await send_events(exchange.send, self._answers, begun, headers | facts, exchange.gone)

    async def _health(self, exchange: "_Exchange", headers: Headers, *, is_ready_asked: bool) -> None:
        reason = self.not_ready_because if is_ready_asked else None
        text = "Not ready" if reason else "Ready" if is_ready_asked else "Alive"
        # The reason may name the storage, and anybody can ask here; the status has it.
        plain = {"content-type": "text/plain; charset=utf-8", "cache-control": "no-store"}
        await exchange.whole(503 if reason else 200, headers | plain, f"{text}\n".encode())

    @contextmanager
    def sending(self, body: Body) -> Iterator[None]:
        """While an answer is sent: its file is open that long; raises ``UnavailableError`` for too many files."""
        file = body.file
        if file is None:
            yield
            return
        if file not in self._sent and not self._has_room(file.length):
            raise UnavailableError("too many answers are being sent; try again", 5)
        self._sent[file] += 1
        try:
            yield
        finally:
            self._sent[file] -= 1
            if not self._sent[file]:
                del self._sent[file]

    def _has_room(self, length: int) -> bool:
        """Whether another file may be sent."""
        sent_bytes = sum(each.length for each in self._sent)
        return len(self._sent) < _MOST_SENT_FILES and (not self._sent or sent_bytes + length <= self._most_sent_bytes)

    @property
    def not_ready_because(self) -> str | None:
        """Why nothing can be answered; ``None`` if it can."""
        if self._watch.is_closed:
            return "it stops"
        if self._watch.age_s > MOST_AGE_S:
            return self._watch.problem or "the tables have not been looked at in time"
        return None

    def _is_meant(self, host: str | None) -> bool:
        name = "" if host is None else host.rpartition(":")[0] or host
        return name.lower() in self._config.hosts or is_meant_for(self._config.listen_host, host)

    def _require_secret(self, given: str | None) -> None:
        if self._secret is not None and not hmac.compare_digest((given or "").encode(), self._secret):
            raise RefusalError(401, "secret is missing or wrong")


class _Exchange:
    """A request, and what is sent for it."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, app: ServeApp) -> None:
        self.scope = scope
        self.headers = headers_of(scope)
        self._receive = receive
        self._send = send
        self._app = app
        self._gone: asyncio.Task[None] | None = None
        self._is_begun = False

    @property
    def size(self) -> int:
        """Bytes of the address and the headers; uvicorn limits only those of a request that arrives in parts."""
        headers = sum(len(name) + len(value) + 4 for name, value in self.scope["headers"])
        return len(self.scope["raw_path"]) + len(self.scope["query_string"]) + headers

    @property
    def has_body(self) -> bool:
        """Whether something follows the headers, which could be read as another request."""
        return b"transfer-encoding" in self.headers or self.headers.get(b"content-length", b"0") != b"0"

    @property
    def target(self) -> tuple[str | None, bytes]:
        """The host and the path: of a whole address in the request line, in which case the header does not count."""
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
    def gone(self) -> "asyncio.Future[None]":
        """Done when the client has closed the connection."""
        if self._gone is None:
            self._gone = asyncio.create_task(self._closed())
        return self._gone

    @property
    def is_one_too_many(self) -> bool:
        """Whether its connection is over the limit."""
        connection = self.scope.get("state", {}).get("connection")
        return connection is not None and connection.is_over_limit

    async def send(self, message: Message) -> None:
        """Send a part of an answer that is counted already."""
        self._is_begun = True
        self._app.sent_bytes += len(message.get("body", b""))
        await self._send(message)

    async def whole(self, status: int, headers: Headers, body: bytes) -> None:
        """Send a small answer; if one has begun already, the connection is cut, so that the client sees an error."""
        self.count(status)
        if self._is_begun:
            if status >= FIRST_ERROR:
                logger.warning("answer cut off status=%s reason=%s", status, body.decode())
            self.abort()
            return
        if self.is_one_too_many:
            headers = {**headers, "connection": "close"}
        with suppress(StalledError):
            await send_whole(self.send, status, headers, body)

    async def answer(self, headers: Headers, answer: Answer) -> None:
        with self._app.sending(answer.body):
            self.count(200)
            await send_answer(self.send, headers, answer, is_head=self.scope["method"] == "HEAD")

    def count(self, status: int) -> None:
        self._app.answered[status] += 1
        self._app.recent.note(status)

    def abort(self) -> None:
        """Cut the connection."""
        connection = self.scope.get("state", {}).get("connection")
        if connection is not None:
            connection.abort()

    def close(self) -> None:
        if self._gone is not None:
            self._gone.cancel()

    async def _closed(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
