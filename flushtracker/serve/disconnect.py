"""``until_disconnected``: work for a client until it closes the connection."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class DisconnectedError(Exception):
    """The client has closed the connection."""


async def until_disconnected(work: Coroutine[Any, Any, T], disconnected: "asyncio.Future[None]") -> T:
    """The result of ``work``, which is cancelled once the client is gone; raises ``DisconnectedError`` then."""
    task = asyncio.ensure_future(work)
    try:
        either: set[asyncio.Future[Any]] = {task, disconnected}
        await asyncio.wait(either, return_when="FIRST_COMPLETED")
        if not task.done():
            raise DisconnectedError
        return task.result()
    finally:
        # An exception at that moment is dropped, and is not a program error.
        task.add_done_callback(_drop)
        task.cancel()


def _drop(task: "asyncio.Future[Any]") -> None:
    if not task.cancelled():
        task.exception()
