"""``Precedence``: whoever reads for definitions on demand, or for subsets, stands back while others are about to be
answered.

Only one thread of Python runs at a time, so each step of a look, of a read for others and of their answers would have
to wait for these. Those steps are short, so little is lost; and nobody stands back for more than half of the time, so
that these are answered on a busy server, too.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from flushtracker.serve.turns import Turns

STEP_S: Final = 0.05
"""The longest wait of a read before one step. The read then runs for as long as it has waited."""
TURN_S: Final = 0.5
"""How long a client does at most, before its read begins. Then clients go on for as long."""
_AGAIN_S: Final = 0.002
_SENT: Final = 4
"""Turns of the event loop in which a client that a round has woken asks for a read, or an answer is sent after one."""
_AT_ONCE: Final = 2
"""Clients that go on in one turn of the event loop: fewer than of others, who wait for the turn to end."""


class Precedence:
    """``is_looking``: whether a look at the tables, or a round of answers, is in progress; called in any thread.

    Apart from what :meth:`standing_back` returns, for the event loop.
    """

    def __init__(self, is_looking: Callable[[], bool]) -> None:
        self._is_looking = is_looking
        self._answers = 0
        self._is_free = asyncio.Event()
        self._is_free.set()
        self._has_time = self._is_timed = False
        """Whether those who stand back have their half of the time; and whether it alternates."""
        self._turns = Turns(_AT_ONCE)

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Enter this while a client of a shape waits for its turn, or for a read of the changes after its offset."""
        self._answers += 1
        if not self._is_timed:
            self._alternate()
        self._update()
        try:
            yield
        finally:
            self._answers -= 1
            self._update()

    def _alternate(self) -> None:
        """Every ``TURN_S``, for as long as clients are answered: a short pause does not put off others' time."""
        self._has_time = self._is_timed and self._answers > 0 and not self._has_time
        self._is_timed = self._answers > 0
        if self._is_timed:
            asyncio.get_running_loop().call_later(TURN_S, self._alternate)
        self._update()

    def _update(self) -> None:
        if self._answers and not self._has_time:
            self._is_free.clear()
            self._turns.close()
        else:
            self._is_free.set()
            self._turns.open()

    async def turn(self, disconnected: "asyncio.Future[None] | None" = None) -> None:
        """Wait until the clients of shapes have their turns and reads, and then for those who wait here, too; a few go
        on at once. Raises as ``Turns.wait``.
        """
        await self._turns.wait(disconnected)

    async def others_answered(self) -> None:
        """Wait until the clients of shapes are answered, also those that a round has just woken; before a read."""
        await self._is_free.wait()
        for _ in range(_SENT):
            await asyncio.sleep(0)
        await self._is_free.wait()

    def standing_back(self, check: Callable[[], None]) -> Callable[[], None]:
        """The ``check`` of a read, called between its steps in its thread, which first waits for the others."""
        goes_on_s = 0.0

        def step() -> None:
            nonlocal goes_on_s
            began_s = now_s = time.monotonic()
            if began_s >= goes_on_s:
                while now_s < began_s + STEP_S and (self._answers or self._is_looking()):
                    time.sleep(_AGAIN_S)
                    now_s = time.monotonic()
                goes_on_s = now_s + (now_s - began_s)
            check()

        return step
