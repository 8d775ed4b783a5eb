"""``Flights``: reads in threads, of which those who ask for the same share one, and of which only so many may wait."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any, Final, Generic, TypeVar

from flushtracker.serve.reads import Check
from flushtracker.serve.refusals import UnavailableError

T = TypeVar("T")
WAITING_PER_THREAD: Final = 32


class AbandonedError(Exception):
    """Nobody waits for the read any more."""


class _Flight(Generic[T]):
    def __init__(self) -> None:
        self.waiting = 0
        self.abandoned = Event()
        self.future: asyncio.Future[T] | None = None

    def check(self) -> None:
        if self.abandoned.is_set():
            raise AbandonedError


class Flights:
    """``threads`` read at once, and ``waiting`` may wait for each; :meth:`share` is for the event loop."""

    def __init__(self, name: str, threads: int, waiting: int = WAITING_PER_THREAD) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._limit = threads * (1 + waiting)
        self._flights: dict[Hashable, _Flight[Any]] = {}
        self._running = 0
        self.started = 0
        self.refused = 0

    @property
    def running(self) -> int:
        """Reads that run or wait for a thread."""
        return self._running

    async def share(self, key: Hashable, read: Callable[[Check], T], done: Callable[[T], None]) -> T:
        """The result of ``read``, of those who ask for ``key`` while it runs; ``done`` gets it once.

        Raises:
            UnavailableError: too many reads wait already.
        """
        flight = self._flights.get(key)
        if flight is None:
            flight = self._start(key, read, done)
        flight.waiting += 1
        try:
            return await asyncio.shield(_future(flight))
        finally:
            flight.waiting -= 1
            if not flight.waiting:
                flight.abandoned.set()
                if self._flights.get(key) is flight:
                    del self._flights[key]

    def close(self) -> None:
        """Run nothing more; what runs is abandoned."""
        for flight in self._flights.values():
            flight.abandoned.set()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _start(self, key: Hashable, read: Callable[[Check], T], done: Callable[[T], None]) -> _Flight[T]:
        if self._running >= self._limit:
            self.refused += 1
            raise UnavailableError("too many reads wait; try again")
        flight = _Flight[T]()
        self._running += 1
        self.started += 1

        def run() -> T:
            flight.check()
            return read(flight.check)

        def ended(future: "asyncio.Future[T]") -> None:
            self._running -= 1
            if self._flights.get(key) is flight:
                del self._flights[key]
            if not future.cancelled() and future.exception() is None:
                done(future.result())

        flight.future = asyncio.get_running_loop().run_in_executor(self._pool, run)
        flight.future.add_done_callback(ended)
        self._flights[key] = flight
        return flight


def _future(flight: _Flight[T]) -> Awaitable[T]:
    if flight.future is None:  # It is set before anybody gets the flight.
        raise AbandonedError
    return flight.future
