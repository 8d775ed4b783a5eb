"""``ServeApp``: the server as an ASGI application: paths, methods, access, and an answer for every case.

Paths are compared as sent, byte by byte: nothing is decoded, no slash is dropped, and nothing is redirected. So a
gatekeeper in front compares the same paths.
"""

import hmac
import logging
from collections import Counter
from typing import Final

from flushtracker.config.serve_config import HttpConfig
from flushtracker.errors import FlushtrackerError
from flushtracker.serve.beginning import BeginAgainError
from flushtracker.serve.disconnect import DisconnectedError, until_disconnected
from flushtracker.serve.event_stream import send_events
from flushtracker.serve.exchange import Exchange
from flushtracker.serve.follower import Follower
from flushtracker.serve.handle import ClientOffset
from flushtracker.serve.http_answers import (
    Headers,
    StalledError,
    answer_headers,
    begin_again_headers,
    cors_headers,
    is_known,
    message_body,
    next_cursor,
    preflight_headers,
    refusal_headers,
    subset_headers,
    wall_s,
)
from flushtracker.serve.messages import MUST_REFETCH
from flushtracker.serve.poller import MOST_AGE_S, Poller
from flushtracker.serve.query_string import parse_query
from flushtracker.serve.rate_limited_log import RateLimitedLog
from flushtracker.serve.recent_answers import RecentAnswers
from flushtracker.serve.refusals import RefusalError, UnavailableError, refusal_of
from flushtracker.serve.sent_files import SentFiles
from flushtracker.serve.shape_answers import ShapeAnswers
from flushtracker.serve.shape_request import ShapeRequest
from flushtracker.serve.single_flight import AbandonedError
from flushtracker.serve.subset.subset_request import MOST_BODY
from flushtracker.serve.turns import Turns
from flushtracker.status.http.asgi import Receive, Scope, Send
from flushtracker.status.http.http_connection import HEADER_BYTES
from flushtracker.status.http.http_server import is_allowed_host

_log = RateLimitedLog(logging.getLogger(__name__))

SHAPE_PATH: Final = b"/v1/shape"
_HEALTH: Final = b"/healthz"
_READY: Final = b"/readyz"
_METHODS: Final = ("GET", "HEAD")
_SHAPE_METHODS: Final = ("POST", "OPTIONS")


class ServeApp:
    """``answers`` answers shapes' clients; ``poller`` tells whether the server is ready.

    The files of answers being sent have at most ``most_sent_bytes`` together, unless there is only one.
    """

    def __init__(self, config: HttpConfig, answers: ShapeAnswers, poller: Poller, most_sent_bytes: int) -> None:
        self._config = config
        self._answers = answers
        self._poller = poller
        self._secret = None if config.secret is None else config.secret.encode()
        self.answered: Counter[int] = Counter()
        self.recent = RecentAnswers()
        self.sent_bytes = 0
        self.files = SentFiles(most_sent_bytes)
        self._turns = Turns()
        """Those of clients that begin, who need not wait for the ones that continue."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        exchange = Exchange(scope, receive, send, self)
        headers = cors_headers(self._config.allow_origins, exchange.origin)
        try:
            await self._answer(exchange, headers)
        except (DisconnectedError, StalledError, AbandonedError):
            exchange.abort()
        except BeginAgainError as error:
            await exchange.whole(409, headers | begin_again_headers(error.handle), MUST_REFETCH)
        except RefusalError as error:
            await exchange.whole(error.status, headers | refusal_headers(error), message_body(error.message))
        except FlushtrackerError as error:
            refusal = refusal_of(error)
            await exchange.whole(refusal.status, headers | refusal_headers(refusal), message_body(refusal.message))
        except Exception:  # noqa: BLE001  it is logged
            # What the client sent is not logged, because it may contain the secret.
            _log(logging.ERROR, "request failed", exc_info=True)
            refusal = RefusalError(500, "unexpected error; the server's log has it")
            await exchange.whole(500, headers | refusal_headers(refusal), message_body(refusal.message))
        finally:
            exchange.close()

    async def _answer(self, exchange: Exchange, headers: Headers) -> None:
        path, method = self._checked(exchange)
        if path == SHAPE_PATH and method == "OPTIONS":
            await exchange.whole(204, headers | preflight_headers(self._config.allow_headers), b"")
            return
        if path != SHAPE_PATH:
            await self._health(exchange, headers, is_ready_asked=path == _READY)
            return
        given = parse_query(exchange.scope["query_string"])
        self._require_secret(given.get("secret"))
        if exchange.is_one_too_many:
            raise UnavailableError("too many connections", 5)
        is_post = method == "POST"
        request = ShapeRequest.of(given, await exchange.read_body(MOST_BODY) if is_post else None)
        is_begun, gone = isinstance(request.start, ClientOffset), exchange.disconnected
        await (self._answers.turn(request, gone) if is_begun else self._turns.wait(gone))
        if request.subset is not None:
            found = await until_disconnected(self._answers.subsets.answer(request), exchange.disconnected)
            await exchange.subset(headers | subset_headers(found, may_be_kept=not is_post), found.body)
            return
        if request.sse:
            await self._events(exchange, headers, request)
            return
        answering = self._answers.answer(request, exchange.disconnected)
        # A client that waits for a change costs no task: the wait itself watches for the end of the connection.
        answer = await (answering if request.live else until_disconnected(answering, exchange.disconnected))
        told = headers | answer_headers(answer, request, wall_s())
        if is_known(exchange.headers, told):
            del told["content-type"]
            await exchange.whole(304, told, b"")
            return
        await exchange.answer(told, answer)

    def _checked(self, exchange: Exchange) -> tuple[bytes, str]:
        """The host-checked path and the method of a well-formed request."""
        host, path, method = *exchange.target, exchange.scope["method"]
        if not self._is_allowed(host):
            raise RefusalError(421, "this host's name is not served here; see serve.hosts")
        if exchange.size > HEADER_BYTES:
            raise RefusalError(431, f"the address and headers have more than {HEADER_BYTES} bytes")
        if path not in {SHAPE_PATH, _HEALTH, _READY}:
            raise RefusalError(404, "the path is /v1/shape")
        if method not in _METHODS and not (path == SHAPE_PATH and method in _SHAPE_METHODS):
            raise RefusalError(405, "the methods are GET, HEAD, POST and OPTIONS")
        if exchange.has_body and method != "POST":
            raise RefusalError(413, "a request has no body here, unless it is a POST")
        return path, method

    async def _events(self, exchange: Exchange, headers: Headers, request: ShapeRequest) -> None:
        if exchange.scope["method"] == "HEAD":
            raise RefusalError(405, "live_sse=true needs GET")

        def begun(follower: Follower) -> Headers:
            exchange.count(200)
            return {
                **headers,
                "electric-handle": str(follower.handle),
                "electric-offset": f"{follower.sent_lsn}_0",
                "electric-schema": follower.seen.facts.schema,
                "electric-cursor": str(next_cursor(request.cursor, wall_s(), has_moved=True)),
                "x-accel-buffering": "no",
            }

        await send_events(exchange.send, self._answers, request, begun, exchange.disconnected, exchange.sending)

    async def _health(self, exchange: Exchange, headers: Headers, *, is_ready_asked: bool) -> None:
        reason = self.not_ready_because if is_ready_asked else None
        text = "Not ready" if reason else "Ready" if is_ready_asked else "Alive"
        # The reason may name the storage, and anyone can ask here; the status has it.
        plain = {"content-type": "text/plain; charset=utf-8", "cache-control": "no-store"}
        await exchange.whole(503 if reason else 200, headers | plain, f"{text}\n".encode())

    @property
    def not_ready_because(self) -> str | None:
        """Why nothing can be answered; ``None`` if it can."""
        if self._poller.is_closed:
            return "it stops"
        if self._poller.age_s > MOST_AGE_S:
            return self._poller.problem or "the tables have not been looked at in time"
        return None

    def _is_allowed(self, host: str | None) -> bool:
        name = "" if host is None else host.rpartition(":")[0] or host
        return name.lower() in self._config.hosts or is_allowed_host(self._config.listen_host, host)

    def _require_secret(self, given: str | None) -> None:
        if self._secret is not None and not hmac.compare_digest((given or "").encode(), self._secret):
            raise RefusalError(401, "secret is missing or wrong")
