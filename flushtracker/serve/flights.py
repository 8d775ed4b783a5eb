"""``Flights``: single-flight reads in threads: requests for the same share one, and only so many may wait.

A read may show its result before it is complete. Whoever waits gets that, and the read goes on to its end, even if
nobody waits any more: what it shows is for others, too.
"""

import asyncio
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Event
from traceback import clear_frames
from typing import Any, Final, Generic, TypeVar

from flushtracker.serve.refusals import UnavailableError

T = TypeVar("T")
WAITING_PER_THREAD: Final = 32


class AbandonedError(Exception):
    """Nobody waits for the read any more."""


class Flight(Generic[T]):
    """A read that runs; :meth:`check` and :meth:`show` are for its thread.

    It is part of no cycle of references, and a failed one keeps nothing that was read: what is read may be a file,
    whose place on the disk is free when nobody uses it.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._take: Callable[[T], None] | None = None
        self.waiting = 0
        self.is_shown = False
        self.abandoned = Event()
        self.future: asyncio.Future[T] = self._loop.create_future()

    def check(self) -> None:
        """Raise ``AbandonedError`` if the read is to end."""
        if self.abandoned.is_set():
            raise AbandonedError

    def show(self, result: T) -> None:
        """Give the result to those who wait, or say that there is more of it."""
        self.check()
        self.is_shown = True
        with suppress(RuntimeError):  # The loop is closed.
            self._loop.call_soon_threadsafe(self._shown, result)

    # On the event loop.

    def begin(self, take: Callable[[T], None]) -> None:
        """Call ``take`` with what is shown, until the end."""
        self._take = take

    def end(self, error: BaseException | None) -> None:
        """Nothing is shown any more."""
        self._take = None
        while error is not None:
            # Its frames have what was read until then.
            clear_frames(error.__traceback__)
            error = error.__cause__ or error.__context__

    def _shown(self, result: T) -> None:
        if self._take is not None:
            self._take(result)


class Flights:
    """``threads`` read at once, and ``waiting`` may wait for each; :meth:`share` is for the event loop."""

    def __init__(self, name: str, threads: int, waiting: int = WAITING_PER_THREAD) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._limit = threads * (1 + waiting)
        self._flights: dict[Hashable, Flight[Any]] = {}
        self._open: set[Flight[Any]] = set()
        self._running = 0
        self.started = 0
        self.refused = 0

    @property
    def running(self) -> int:
        """Reads that run or wait for a thread."""
        return self._running

    async def share(self, key: Hashable, read: Callable[[Flight[T]], T], done: Callable[[T], None]) -> T:
        """The result of ``read``, for those who ask for ``key`` before it has any.

        ``done`` is called on the event loop: each time that it is shown, and at the end, also of a read that has failed
        after it has shown it.

        Raises:
            UnavailableError: too many reads wait already.
        """
        flight = self._flights.get(key)
        if flight is None:
            flight = self._start(key, read, done)
        flight.waiting += 1
        try:
            return await asyncio.shield(flight.future)
        finally:
            flight.waiting -= 1
            if not flight.waiting and not flight.is_shown:
                flight.abandoned.set()
                self._forget(key, flight)

    def close(self) -> None:
        """Run nothing more; what runs is abandoned."""
        for flight in self._open:
            flight.abandoned.set()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _forget(self, key: Hashable, flight: Flight[Any]) -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]

    def _start(self, key: Hashable, read: Callable[[Flight[T]], T], done: Callable[[T], None]) -> Flight[T]:
        if self._running >= self._limit:
            self.refused += 1
            raise UnavailableError("too many reads wait; try again")

        def take(result: T) -> None:
            # Who asks from now on is given what was kept of it.
            self._forget(key, flight)
            done(result)
            if not flight.future.done():
                flight.future.set_result(result)

        flight = Flight[T]()
        flight.begin(take)
        self._running += 1
        self.started += 1

        def run() -> T:
            flight.check()
            return read(flight)

        def ended(future: "asyncio.Future[T]") -> None:
            self._running -= 1
            self._open.discard(flight)
            self._forget(key, flight)
            error = None if future.cancelled() else future.exception()
            flight.end(error)
            if not future.cancelled() and error is None:
                take(future.result())
            elif flight.future.done() and not flight.future.cancelled():
                done(flight.future.result())
            elif error is not None:
                flight.future.set_exception(error)
                # It is not an error of the program if nobody waits for it any more.
                flight.future.exception()
            else:
                flight.future.cancel()

        running = asyncio.get_running_loop().run_in_executor(self._pool, run)
        running.add_done_callback(ended)
        self._flights[key] = flight
        self._open.add(flight)
        return flight
