"""Server-sent events: a client that keeps its connection open gets each message as an event, for up to a minute.

A client applies messages only with an ``up-to-date``, which is sent once it has everything found by the last poll. The
connection ends only after one, however long that takes, or when the server stops; the client then reconnects.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from functools import lru_cache
from itertools import chain
from typing import Final

from flushtracker.errors import FlushtrackerError
from flushtracker.serve.body import SLICE_BYTES, Body, Page
from flushtracker.serve.disconnect import until_disconnected
from flushtracker.serve.follower import Follower
from flushtracker.serve.http_answers import Headers, send_part, start_stream
from flushtracker.serve.messages import SEPARATOR, up_to_date
from flushtracker.serve.refusals import RefetchError, RefusalError
from flushtracker.serve.shape_answers import ShapeAnswers, spread_s
from flushtracker.serve.shape_request import ShapeRequest
from flushtracker.status.http.asgi import Send

STREAM_S: Final = 60.0
"""A stream's longest life."""
ALIVE_S: Final = 20.0
"""A comment is sent at least this often, so that no proxy considers the connection dead."""
_ALIVE: Final = b": alive\n\n"


async def send_events(
    send: Send,
    answers: ShapeAnswers,
    request: ShapeRequest,
    begun: Callable[[Follower], Headers],
    disconnected: "asyncio.Future[None]",
    sending: Callable[[Body], AbstractContextManager[None]],
) -> None:
    """Send the first part and later ones; ``begun`` returns the headers, and ``sending`` is entered while a body is
    sent.

    Raises:
        DisconnectedError, StalledError: the client does not read it.
        BeginAgainError, RefusalError, FlushtrackerError: as ``ShapeAnswers.answer``, before anything is sent.
    """
    end_s = time.monotonic() + spread_s(STREAM_S)
    follower, page = await until_disconnected(answers.stream(request), disconnected)
    with sending(page.body):
        headers = {**begun(follower), "content-type": "text/event-stream", "cache-control": "no-store"}
        await start_stream(send, headers)
        lsn = await _send_page(send, page, follower, is_end=answers.is_up_to_date(page, follower))
    tx, told_s = page.tx, time.monotonic()
    # The status has been sent. A client whose log cannot be continued, or is not there, reconnects and gets the error
    # then.
    with suppress(RefetchError, RefusalError, FlushtrackerError):
        while not answers.is_closing and (time.monotonic() < end_s or lsn is None):
            # Its file is not kept while the client waits.
            page = Page(Body(), tx)
            follower = replace(follower, tx=tx, sent_lsn=max(tx, follower.sent_lsn, lsn or 0))
            follower = await answers.more(follower, disconnected, min(end_s, time.monotonic() + ALIVE_S))
            if follower.has_next:
                page = await answers.page_until(follower, disconnected)
                if lsn is None or not answers.shows_nothing(follower, page):
                    with sending(page.body):
                        lsn = await _send_page(send, page, follower, is_end=answers.is_up_to_date(page, follower))
                elif time.monotonic() < told_s + ALIVE_S:
                    tx = max(tx, page.tx)
                    continue
                else:
                    await send_part(send, _ALIVE, more=True)
            elif lsn is None or follower.has_update:
                lsn = await _send_page(send, Page(Body(), follower.tx), follower, is_end=True)
            else:
                await send_part(send, _ALIVE, more=True)
            tx, told_s = max(page.tx, follower.tx), time.monotonic()
    await send_part(send, b"", more=False)


async def _send_page(send: Send, page: Page, follower: Follower, *, is_end: bool) -> int | None:
    """Send a page; if it ``is_end``, also send and return the LSN up to which the client has everything.

    The client continues there, so it is never below the page's last transaction, unlike in other answers.
    """
    lsn = max(page.tx, follower.sent_lsn, follower.seen.lsn(page.tx) or 0) if is_end else None
    held = b""
    for part in chain(_events(page.body), [] if lsn is None else _events(Body.of(up_to_date(lsn)))):
        held += part
        # While the client is not reading, keep only one copy of the data.
        del part
        if len(held) >= SLICE_BYTES:
            await send_part(send, held, more=True)
            held = b""
    if held:
        await send_part(send, held, more=True)
    return lsn


def _events(body: Body) -> Iterator[bytes]:
    """Messages as events, in parts not much longer than a slice, however long a message is."""
    if body.file is None:
        yield from Body.of(_small_events(body.data)).slices()
        return
    before, rest = b"data: ", b""
    for data in body.slices():
        data = rest + data  # noqa: PLW2901  one copy
        # A separator may be split in two.
        rest = data[-1:] if data.endswith(SEPARATOR[:1]) else b""
        data = before + data.removesuffix(rest).replace(SEPARATOR, b"\n\ndata: ")  # noqa: PLW2901  likewise
        yield data
        before = b""
    if body.length:
        yield rest + b"\n\n"


@lru_cache(maxsize=16)
def _small_events(data: bytes) -> bytes:
    """A body in memory as events, which is made once for all clients that get it."""
    return b"data: " + data.replace(SEPARATOR, b"\n\ndata: ") + b"\n\n" if data else b""
