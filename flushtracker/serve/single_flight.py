"""``SingleFlight``: single-flight reads in threads: concurrent requests for the same key share one, and the queue is
bounded.

A read may show its result before it is complete. Waiting requests get that, and the read continues to its end even
without them, because its result is cached for others.

No request waits longer than ``WAIT_S``; its client retries, and the read goes on for it. A read without progress has
stalled, perhaps because a store does not answer. It keeps its thread, a spare thread takes its place, and later reads
of the same shape are refused.
"""

import asyncio
import time
from collections.abc import Callable, Hashable
from contextlib import suppress
from itertools import islice
from threading import Event
from traceback import clear_frames
from typing import Any, Final, Generic, TypeVar

from flushtracker.serve.refusals import UnavailableError
from flushtracker.status.http.daemon_pool import DaemonPool

T = TypeVar("T")
WAITING_PER_THREAD: Final = 32
WAIT_S: Final = 25.0
"""How long a request waits for a read."""

STALLED_S: Final = 20.0
_STALLS: Final = "a read takes long, perhaps because the store does not answer; try again"


class AbandonedError(Exception):
    """No request waits for the read any more."""


class Flight(Generic[T]):
    """A running read; :meth:`check` and :meth:`show` are for its thread.

    It is never part of a reference cycle, and a failed one keeps no data: that may be a file, whose disk space is freed
    with the last reference.
    """

    def __init__(self, group: Hashable = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._take: Callable[[T], None] | None = None
        self._progress_s = 0.0
        self.group = group
        self.waiting = 0
        self.is_kept = False
        """Whether it goes on even if nobody waits for it."""
        self.abandoned = Event()
        self.future: asyncio.Future[T] = self._loop.create_future()

    def check(self) -> None:
        """Note progress, and raise ``AbandonedError`` if the read must end."""
        self._progress_s = time.monotonic()
        if self.abandoned.is_set():
            raise AbandonedError

    def show(self, result: T) -> None:
        """Give the result to waiting requests, or announce that there is more of it."""
        self.check()
        self.is_kept = True
        with suppress(RuntimeError):  # The loop is closed.
            self._loop.call_soon_threadsafe(self._shown, result)

    # On the event loop.

    def is_stalled(self, stalled_s: float) -> bool:
        """Whether it runs without progress for so long."""
        return 0 < self._progress_s < time.monotonic() - stalled_s

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
    """Runs ``threads`` reads at once, and up to ``spare`` more in place of stalled ones, with up to ``waiting`` per
    thread queued; :meth:`share` is for the event loop.

    ``keep_s``: how long a read goes on whose requests have waited too long, unless others wait for it by then; ``None``
    for to its end, because its result is cached.
    """

    def __init__(
        self, name: str, threads: int, waiting: int = WAITING_PER_THREAD, *, spare: int = 0, keep_s: float | None = None
    ) -> None:
        self._pool = DaemonPool(threads + spare, name)
        self._threads, self._spare = threads, spare
        self._limit = threads * (1 + waiting)
        self.wait_s, self.stalled_s, self.keep_s = WAIT_S, STALLED_S, keep_s
        self._flights: dict[Hashable, Flight[Any]] = {}
        self._running: set[Flight[Any]] = set()
        self._queued: dict[Flight[Any], Callable[[], None]] = {}
        """How to start each, in order."""
        self.started = 0
        self.refused = 0

    @property
    def running(self) -> int:
        return len(self._running) + len(self._queued)

    async def share(
        self, key: Hashable, read: Callable[[Flight[T]], T], done: Callable[[T], None], *, group: Hashable = None
    ) -> T:
        """The result of ``read``, shared by all requests for ``key`` until it shows one.

        ``done`` is called on the event loop each time that a result is shown, and at the end, even of a read that
        failed after showing one. Reads of a ``group`` are expected to stall together.

        Raises:
            UnavailableError: the read takes too long, or too many are queued or stalled.
        """
        stalled = self._stalled()
        flight: Flight[T] | None = self._flights.get(key)
        all_stall = len(stalled) == self._threads + self._spare
        group_stalls = group is not None and group in stalled.values()
        if flight in stalled or (flight is None and (all_stall or group_stalls)):
            self.refused += 1
            raise UnavailableError(_STALLS)
        if flight is None:
            flight = self._enqueue(key, read, done, group)
        self._start_queued(stalled)
        flight.waiting += 1
        try:
            await asyncio.wait({flight.future}, timeout=self.wait_s)
            if not flight.future.done():
                # Its client asks again, and would have to wait as long for another one.
                flight.is_kept = flight in self._running
                if self.keep_s is not None:
                    asyncio.get_running_loop().call_later(self.keep_s, self._keep_no_longer, key, flight)
                raise UnavailableError(_STALLS)
            return flight.future.result()
        finally:
            flight.waiting -= 1
            self._abandon_unwanted(key, flight)
            self._start_queued(self._stalled())

    def close(self) -> None:
        """Start nothing more, and abandon running reads."""
        for flight in self._running:
            flight.abandoned.set()
        for flight in self._queued:
            flight.future.cancel()
        self._queued.clear()
        self._pool.shutdown()

    def _keep_no_longer(self, key: Hashable, flight: Flight[Any]) -> None:
        flight.is_kept = False
        self._abandon_unwanted(key, flight)

    def _abandon_unwanted(self, key: Hashable, flight: Flight[Any]) -> None:
        if not flight.waiting and not flight.is_kept:
            flight.abandoned.set()
            self._forget(key, flight)
            self._queued.pop(flight, None)

    def _forget(self, key: Hashable, flight: Flight[Any]) -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]

    def _enqueue(
        self, key: Hashable, read: Callable[[Flight[T]], T], done: Callable[[T], None], group: Hashable
    ) -> Flight[T]:
        if self.running >= self._limit:
            self.refused += 1
            raise UnavailableError("too many reads wait; try again")

        def take(result: T) -> None:
            # Later requests get what was cached of it.
            self._forget(key, flight)
            done(result)
            if not flight.future.done():
                flight.future.set_result(result)

        flight = Flight[T](group)
        flight.begin(take)
        self.started += 1

        def run() -> T:
            flight.check()
            return read(flight)

        def ended(future: "asyncio.Future[T]") -> None:
            self._running.discard(flight)
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
            self._start_queued(self._stalled())

        def start() -> None:
            self._running.add(flight)
            asyncio.get_running_loop().run_in_executor(self._pool, run).add_done_callback(ended)

        self._flights[key] = flight
        self._queued[flight] = start
        return flight

    def _stalled(self) -> dict[Flight[Any], Hashable]:
        """The stalled reads, with the group of each."""
        return {flight: flight.group for flight in self._running if flight.is_stalled(self.stalled_s)}

    def _start_queued(self, stalled: dict[Flight[Any], Hashable]) -> None:
        """Start queued reads, as far as threads are free; those of a stalled group stay in the queue."""
        free = self._threads + min(len(stalled), self._spare) - len(self._running)
        groups = {*stalled.values()} - {None}
        ready = (flight for flight in self._queued if flight.group not in groups)
        # A thousand definitions on demand may be queued.
        for flight in [*islice(ready, max(free, 0))]:
            self._queued.pop(flight)()
