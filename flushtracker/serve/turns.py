"""``Turns``: lets a few requests through in each turn of the event loop, first come first served.

Without it, all that have arrived meanwhile would be answered in one turn, which takes seconds for ten thousand clients
that catch up, and then another ten thousand have arrived.

Who goes first on the event loop, from first to last:

1. What arrives is read, and health checks are answered, in each turn of the loop.
2. Clients that begin, ten in a turn, and clients that continue, ten in a turn (``ServeApp``, ``Rounds.turns``). Clients
  that a round has woken come while fewer than ten of them have to resume (``Rounds``).
3. Clients that continue with a definition on demand, or with one that was not looked up yet, two in a turn
   (``Precedence``). They stand back while others wait for their turns or reads, but for at most half of the time. So do
   the reads of definitions on demand, also during a look and a round.
"""

import asyncio
from collections import deque
from typing import Final

from flushtracker.serve.disconnect import DisconnectedError

AT_ONCE: Final = 10
"""Requests in one turn."""


class Turns:
    """For the event loop; lets ``at_once`` through in one turn."""

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self._at_once = self._left = at_once
        self._queue: deque[asyncio.Future[None]] = deque()
        self._is_scheduled, self._is_open = False, True

    async def wait(self, disconnected: "asyncio.Future[None] | None" = None) -> None:
        """Wait for the turn of a request; not at all if few have come in this one.

        Raises:
            DisconnectedError: its client was ``disconnected`` meanwhile. That costs the others no turn.
        """
        self._schedule()
        if self._left:
            # No request waits, because one that does leaves nothing of a turn.
            self._left -= 1
            return
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        self._queue.append(turn)
        gone: asyncio.Future[None] = loop.create_future() if disconnected is None else disconnected

        def leave(_: "asyncio.Future[None]") -> None:
            if not turn.done():
                turn.set_result(None)

        # A task or `asyncio.wait` would resume the request in a later turn of the loop, after the marker of `mark`.
        gone.add_done_callback(leave)
        try:
            await turn
        finally:
            gone.remove_done_callback(leave)
        if gone.done():
            raise DisconnectedError

    def close(self) -> None:
        """Let nobody through until :meth:`open`, whoever waits already."""
        self._is_open, self._left = False, 0

    def open(self) -> None:
        if not self._is_open:
            self._is_open = True
            self._schedule()

    def mark(self) -> "asyncio.Future[None] | None":
        """Done once all that wait now have been let through, and go on; ``None`` if none of them has to."""
        if not self._queue and self._left == self._at_once:
            return None
        self._schedule()
        marker: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(marker)
        return marker

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        self._is_scheduled = False
        if not self._is_open:
            return
        self._left = self._at_once
        while self._queue and self._left:
            turn = self._queue.popleft()
            if not turn.done():
                turn.set_result(None)
                self._left -= 1
        if self._left < self._at_once:
            # For those who wait, or to begin a turn with none.
            self._schedule()
