"""Server-sent events: a client that keeps its connection gets each message as an event, for a minute.

A client takes what it got only with an ``up-to-date``, which is sent once it has all that the last look has found. The
connection ends only after one, however long that takes, or when the server stops, and the client makes another.
"""

import asyncio
import time
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import Final

from flushtracker.errors import FlushtrackerError
from flushtracker.serve.asgi import Send
from flushtracker.serve.body import SLICE_BYTES, Body, Page
from flushtracker.serve.follower import Follower
from flushtracker.serve.gone import until_gone
from flushtracker.serve.http_answers import Headers, send_part, start_stream
from flushtracker.serve.messages import up_to_date
from flushtracker.serve.refusals import RefetchError, RefusalError
from flushtracker.serve.shape_answers import ShapeAnswers

STREAM_S: Final = 60.0
ALIVE_S: Final = 20.0
"""A comment is sent at least this often, so that nothing in between takes the connection for dead."""


async def send_events(
    send: Send, answers: ShapeAnswers, begun: tuple[Follower, Page], headers: Headers, gone: "asyncio.Future[None]"
) -> None:
    """Send the first part and what follows; raises ``GoneError`` or ``StalledError``."""
    end_s = time.monotonic() + STREAM_S
    await start_stream(send, {**headers, "content-type": "text/event-stream", "cache-control": "no-store"})
    follower, page = begun
    lsn = await _send_page(send, page, follower, is_end=answers.is_up_to_date(page, follower))
    # The status has been sent. A client whose log cannot be continued, or is not there now, asks again, and is told.
    with suppress(RefetchError, RefusalError, FlushtrackerError):
        while not answers.is_closing and (time.monotonic() < end_s or lsn is None):
            follower = replace(follower, tx=page.tx, told=max(page.tx, follower.told, lsn or 0))
            follower = await answers.more(follower, gone, min(end_s, time.monotonic() + ALIVE_S))
            if follower.has_more:
                page = await until_gone(answers.page(follower), gone)
                lsn = await _send_page(send, page, follower, is_end=answers.is_up_to_date(page, follower))
            elif lsn is None or follower.has_news:
                lsn = await _send_page(send, Page(Body(), follower.tx), follower, is_end=True)
            else:
                await send_part(send, b": alive\n\n", more=True)
    await send_part(send, b"", more=False)


async def _send_page(send: Send, page: Page, follower: Follower, *, is_end: bool) -> int | None:
    """Send a page, and if it ``is_end``, up to which LSN the client has everything, which is returned.

    The client goes on there, so it is never below the page's last transaction, as it may be in other answers.
    """
    held, size = list[bytes](), 0
    lsn = max(page.tx, follower.told, follower.seen.lsn(page.tx) or 0) if is_end else None
    for message in chain(page.body.messages(), [] if lsn is None else [up_to_date(lsn)]):
        held += [b"data: ", message, b"\n\n"]
        size += len(message)
        if size > SLICE_BYTES:
            await send_part(send, b"".join(held), more=True)
            held, size = [], 0
    if held:
        await send_part(send, b"".join(held), more=True)
    return lsn
