"""``Rounds``: wakes waiting clients in rounds, so that a change for thousands of them does not take the event loop.

A round wakes all clients that something new concerns, a few at a time: another one when one has resumed. So the loop
accepts connections, reads requests and answers health checks in between. Those who have asked again since the last
round, and whose ``turns`` have not come, belong to it as well. Changes that arrive during a round are shown in the next
one. That begins once the last client of this round has resumed, or had its turn; a client that asks again meanwhile
waits. So changes are shown at most as fast as all clients can be answered. Each answer has everything since the
client's last one, and all who follow a shape get the same answer.

For the event loop.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from flushtracker.serve.turns import Turns

AT_ONCE: Final = 10
"""Clients that are woken and have not resumed yet."""

LONGEST_S: Final = 30.0
"""What is new is no longer held back in a round that takes longer."""

Waiter = asyncio.Future[None]


class Rounds:
    """``concerned`` is called when a round begins, and returns whom it wakes.

    Call :meth:`resumed` for each of them, also if it was not woken: the round does not end before.
    """

    def __init__(self, concerned: Callable[[], Iterable[Waiter]], now_s: Callable[[], float] = time.monotonic) -> None:
        self._concerned = concerned
        self._now_s = now_s
        self._number = 0
        self._began_s = 0.0
        self._queue: deque[Waiter] = deque()
        self._woken: set[Waiter] = set()
        self.turns = Turns()
        """Those of requests of clients of shapes that continue."""
        self._marker: asyncio.Future[None] | None = None
        """Done when those of this round have had their turns."""
        self._is_due = self._is_scheduled = False

    @property
    def holding(self) -> int | None:
        """The number of the round that holds back what is new; ``None`` if all is shown."""
        is_held = self.is_running or self._is_due
        return self._number if is_held and self._now_s() - self._began_s < LONGEST_S else None

    @property
    def is_running(self) -> bool:
        """Whether clients of the round are yet to be answered; for any thread."""
        return bool(self._queue or self._woken) or self._marker is not None

    def begin(self) -> None:
        """Begin a round, or the next one after the one that is running."""
        self._is_due = True
        if not self.is_running:
            self._continue()

    def resumed(self, waiter: Waiter) -> None:
        """The client no longer waits: it is about to be answered, or has gone."""
        if not waiter.done():
            # It may be in the queue.
            waiter.cancel()
        elif waiter in self._woken:
            self._woken.remove(waiter)
            self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled and (self._queue or self._is_due):
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._continue)

    def _continue(self) -> None:
        self._is_scheduled = False
        self._wake()
        if self._is_due and not self.is_running:
            self._is_due = False
            self._number += 1
            self._began_s = self._now_s()
            self._queue.extend(self._concerned())
            self._mark()
            self._wake()

    def _mark(self) -> None:
        self._marker = self.turns.mark()
        if self._marker is not None:
            self._marker.add_done_callback(self._passed)

    def _passed(self, _: "asyncio.Future[None]") -> None:
        self._marker = None
        self._schedule()

    def _wake(self) -> None:
        while self._queue and len(self._woken) < AT_ONCE:
            waiter = self._queue.popleft()
            if not waiter.done():
                waiter.set_result(None)
                self._woken.add(waiter)
