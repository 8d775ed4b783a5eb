"""Answers over HTTP: status, headers and cache rules, and sending a body to a client that may be slow."""

import json
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from flushtracker.errors import printable
from flushtracker.serve.answer import Answer
from flushtracker.serve.body import SLICE_BYTES, Body
from flushtracker.serve.handle import ClientOffset, Handle
from flushtracker.serve.messages import SEPARATOR, up_to_date
from flushtracker.serve.refusals import RefusalError
from flushtracker.serve.shape_answers import LIVE_S
from flushtracker.serve.shape_request import ShapeRequest
from flushtracker.serve.subset.subset_answers import SubsetAnswer
from flushtracker.status.http.asgi import Scope, Send

STALLED_S: Final = 30.0
"""A client that reads nothing for this long is disconnected."""

EXPOSED: Final = (
    "electric-handle, electric-offset, electric-schema, electric-cursor, electric-up-to-date, electric-snapshot, "
    "retry-after"
)
_JSON: Final = "application/json"
_NO_STORE: Final = "no-store"
_FIXED: Final = "public, max-age=3600, immutable"
_NEWEST: Final = "public, max-age=5, stale-while-revalidate=5"
_TOLD: Final = "public, max-age=5"
_ALLOWED: Final = "GET, HEAD, POST, OPTIONS"

Headers = dict[str, str]
Directly = Callable[[Body, int], int]
"""Sends of a body what comes after a place, as ``Body.send``; returns how much was taken, 0 if it cannot."""


def not_directly(_body: Body, _place: int) -> int:
    return 0


def answer_headers(answer: Answer, request: ShapeRequest, now_s: float) -> Headers:
    headers = {
        "content-type": _JSON,
        "cache-control": _cache_rule(answer, request),
        "electric-handle": str(answer.handle),
        "electric-offset": str(answer.offset),
        "electric-schema": answer.schema,
    }
    if answer.is_up_to_date:
        headers["electric-up-to-date"] = "true"
    if request.live:
        headers["electric-cursor"] = str(next_cursor(request.cursor, now_s, has_moved=answer.offset != request.start))
    else:
        end = "" if not answer.is_up_to_date else ":end" if answer.lsn is None else f":end:{answer.lsn}"
        headers["etag"] = f'"{answer.handle}:{request.start}:{answer.offset}{end}"'
    return headers


def subset_headers(answer: SubsetAnswer, *, may_be_kept: bool) -> Headers:
    """The headers of a subset; a cache may keep it if the same request always gets the same."""
    return {
        "content-type": _JSON,
        "cache-control": _TOLD if may_be_kept and answer.is_exact else _NO_STORE,
        "electric-handle": answer.handle,
        "electric-offset": answer.offset,
        "electric-schema": answer.schema,
        "electric-snapshot": "true",
    }


def _cache_rule(answer: Answer, request: ShapeRequest) -> str:
    if request.is_returning and not isinstance(request.start, ClientOffset):
        # A cache would give it to a client that was since told to start over, perhaps with the same handle.
        return _NO_STORE
    return _FIXED if answer.is_fixed and not request.live else _NEWEST


def next_cursor(cursor: int | None, now_s: float, *, has_moved: bool) -> int:
    """Equal for all clients within a period, so that they share a cached answer, but different from the one sent if the
    next address would otherwise be the same. It never goes back.

    >>> [next_cursor(sent, 100.0, has_moved=False) for sent in (None, 5, 7)]
    [5, 6, 8]
    >>> [next_cursor(sent, 100.0, has_moved=True) for sent in (None, 4, 5, 7)]
    [5, 5, 5, 7]
    """
    current = int(now_s / LIVE_S)
    if cursor is None or cursor < current:
        return current
    return cursor if has_moved else cursor + 1


def refusal_headers(error: RefusalError) -> Headers:
    # An ended shape stays ended, and all clients that wait in a cache are answered at once.
    headers = {"content-type": _JSON, "cache-control": _TOLD if error.status == 410 else _NO_STORE}
    if error.retry_after_s is not None:
        headers["retry-after"] = str(error.retry_after_s)
    if error.status == 405:
        headers["allow"] = _ALLOWED
    if error.status == 401:
        # HTTP requires a scheme; no browser prompts its user for this one.
        headers["www-authenticate"] = 'secret realm="shapes"'
    return headers


def message_body(message: str) -> bytes:
    return json.dumps({"message": printable(message)}).encode()


def begin_again_headers(handle: Handle) -> Headers:
    # It stays valid for its address, and all clients that wait in a cache are answered at once.
    return {"content-type": _JSON, "cache-control": _TOLD, "electric-handle": str(handle)}


def is_known(request_headers: Mapping[bytes, bytes], headers: Headers) -> bool:
    """Whether the client already has this answer; ``*`` stands for any."""
    given = request_headers.get(b"if-none-match", b"").decode("latin-1")
    known = {each.strip().removeprefix("W/") for each in given.split(",")}
    return "etag" in headers and not known.isdisjoint({headers["etag"], "*"})


class StalledError(Exception):
    """The client is not reading."""


async def send_whole(send: Send, status: int, headers: Headers, body: bytes) -> None:
    # These have no body, and the length of a 304 would be that of the answer not sent.
    length = {} if status in {204, 304} else {"content-length": str(len(body))}
    await _start_answer(send, status, headers | length)
    await send_part(send, body, more=False)


async def send_answer(
    send: Send, headers: Headers, answer: Answer, *, is_head: bool, directly: Directly = not_directly
) -> None:
    end = b""
    if answer.is_up_to_date:
        end = (SEPARATOR if answer.body.length else b"") + up_to_date(answer.lsn)
    await send_body(send, headers, b"[", answer.body, end + b"]", is_head=is_head, directly=directly)


async def send_body(  # noqa: PLR0913  two of them by name
    send: Send,
    headers: Headers,
    begin: bytes,
    body: Body,
    end: bytes,
    *,
    is_head: bool,
    directly: Directly = not_directly,
) -> None:
    """Send an answer with a body between two texts, or its headers.

    What the kernel takes ``directly`` costs far less than slices, and no memory; a slice waits until it takes more.
    """
    length = len(begin) + body.length + len(end)
    await _start_answer(send, 200, {**headers, "content-length": str(length)})
    if is_head:
        await send_part(send, b"", more=False)
        return
    held, place = begin, 0
    while place < body.length:
        data = body.slice(place)
        place += len(data)
        held += data
        # A small answer is one part, and so one packet.
        if len(held) >= SLICE_BYTES:
            await send_part(send, held, more=True)
            held = b""
            while place < body.length and (taken := directly(body, place)):
                place += taken
    await send_part(send, held + end, more=False)


async def _start_answer(send: Send, status: int, headers: Headers) -> None:
    encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": encoded})


async def start_stream(send: Send, headers: Headers) -> None:
    await _start_answer(send, 200, headers)


async def send_part(send: Send, data: bytes, *, more: bool) -> None:
    """Send a part of a body; raises ``StalledError`` and ``DisconnectedError``, as ``send`` does."""
    await send({"type": "http.response.body", "body": data, "more_body": more})


def cors_headers(allowed: Iterable[str], origin: str | None) -> Headers:
    """The headers that let a page of another origin read an answer."""
    origins = tuple(allowed)
    if origins == ("*",):
        return {"access-control-allow-origin": "*", "access-control-expose-headers": EXPOSED}
    if not origins:
        return {}
    found = {"vary": "origin"}
    if origin is not None and origin.lower() in origins:
        found |= {"access-control-allow-origin": origin, "access-control-expose-headers": EXPOSED}
    return found


def preflight_headers(allowed: Iterable[str]) -> Headers:
    """The answer to a browser's preflight request for a cross-origin request with custom headers.

    ``*`` stands for all headers except ``authorization``, which is listed explicitly.
    """
    return {
        "access-control-allow-methods": _ALLOWED,
        "access-control-allow-headers": ", ".join(allowed),
        "access-control-max-age": "86400",
        "cache-control": _NO_STORE,
    }


def headers_of(scope: Scope) -> dict[bytes, bytes]:
    """A request's headers by name; repeated ones are joined as a list."""
    found: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        found[name] = found[name] + b", " + value if name in found else value
    return found


def wall_s() -> float:
    """Seconds since 1970, on which all servers agree."""
    return time.time()
