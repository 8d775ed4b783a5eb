"""``SingleFlight``: single-flight reads in threads: concurrent requests for the same key share one, and the queue is
bounded.

A read may show its result before it is complete. Waiting requests get that, and the read continues to its end even
without them, because its result is cached for others.
"""

import asyncio
from collections.abc import Callable, Hashable
from contextlib import suppress
from threading import Event
from traceback import clear_frames
from typing import Any, Final, Generic, TypeVar

from flushtracker.serve.refusals import UnavailableError
from flushtracker.status.http.daemon_pool import DaemonPool

T = TypeVar("T")
WAITING_PER_THREAD: Final = 32


class AbandonedError(Exception):
    """No request waits for the read any more."""


class Flight(Generic[T]):
    """A running read; :meth:`check` and :meth:`show` are for its thread.

    It is never part of a reference cycle, and a failed one keeps no data: that may be a file, whose disk space is freed
    with the last reference.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._take: Callable[[T], None] | None = None
        self.waiting = 0
        self.is_shown = False
        self.abandoned = Event()
        self.future: asyncio.Future[T] = self._loop.create_future()

    def check(self) -> None:
        """Raise ``AbandonedError`` if the read must end."""
        if self.abandoned.is_set():
            raise AbandonedError

    def show(self, result: T) -> None:
        """Give the result to waiting requests, or announce that there is more of it."""
        self.check()
        self.is_shown = True
        with suppress(RuntimeError):  # The loop is closed.
            self._loop.call_soon_threadsafe(self._shown, result)

    # On the event loop.

    def begin(self, take: Callable[[T], None]) -> None:
        """Call ``take`` with each shown result, until the end."""
        self._take = take

    def end(self, error: BaseException | None) -> None:
        """End; nothing is shown any more."""
        self._take = None
        while error is not None:
            # Its frames reference what was read so far.
            clear_frames(error.__traceback__)
            error = error.__cause__ or error.__context__

    def _shown(self, result: T) -> None:
        if self._take is not None:
            self._take(result)


class SingleFlight:
    """Runs ``threads`` reads at once, with up to ``waiting`` more per thread queued; :meth:`share` is for the event
    loop.
    """

    def __init__(self, name: str, threads: int, waiting: int = WAITING_PER_THREAD) -> None:
        self._pool = DaemonPool(threads, name)
        self._limit = threads * (1 + waiting)
        self._flights: dict[Hashable, Flight[Any]] = {}
        self._open: set[Flight[Any]] = set()
        self._running = 0
        self.started = 0
        self.refused = 0

    @property
    def running(self) -> int:
        """Reads that are running or queued."""
        return self._running

    async def share(self, key: Hashable, read: Callable[[Flight[T]], T], done: Callable[[T], None]) -> T:
        """The result of ``read``, shared by all requests for ``key`` until it shows one.

        ``done`` is called on the event loop each time that a result is shown, and at the end, even of a read that
        failed after showing one.

        Raises:
            UnavailableError: too many reads are queued.
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
        """Start nothing more, and abandon running reads."""
        for flight in self._open:
            flight.abandoned.set()
        self._pool.shutdown()

    def _forget(self, key: Hashable, flight: Flight[Any]) -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]

    def _start(self, key: Hashable, read: Callable[[Flight[T]], T], done: Callable[[T], None]) -> Flight[T]:
        if self._running >= self._limit:
            self.refused += 1
            raise UnavailableError("too many reads wait; try again")

        def take(result: T) -> None:
            # Later requests get what was cached of it.
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
                # It is not a program error if nothing waits for it any more.
                flight.future.exception()
            else:
                flight.future.cancel()

        running = asyncio.get_running_loop().run_in_executor(self._pool, run)
        running.add_done_callback(ended)
        self._flights[key] = flight
        self._open.add(flight)
        return flight
