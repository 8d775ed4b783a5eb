"""``TimedCall``: a call with a deadline, in its own thread because it may never return.

A library that waits for a server or a storage cannot be interrupted. So the thread is abandoned at the deadline. Until
it ends, the call is not repeated, and its late result is dropped.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Generic, TypeVar

from flushtracker.errors import FlushtrackerError
from flushtracker.process.clock import now_ms
from flushtracker.status.http.daemon_pool import DaemonPool

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CallResult(Generic[T]):
    """The result at ``at_ms``; ``value`` is ``None`` if there is an ``error``."""

    at_ms: int
    value: T | None = None
    error: FlushtrackerError | None = None


class TimedCall(Generic[T]):
    """Calls ``find``. If it has not returned within ``deadline_s``, the answer is the error ``timeout_error``."""

    def __init__(self, find: Callable[[], T], deadline_s: float, timeout_error: FlushtrackerError) -> None:
        self._find = find
        self._deadline_s = deadline_s
        self._timeout_error = timeout_error
        self._thread = DaemonPool(1, "timed-call")
        self._called: Future[CallResult[T]] | None = None
        self._deadline = 0.0

    def start(self) -> None:
        """Start the call, unless the previous one is still running."""
        self._deadline = time.monotonic() + self._deadline_s
        if not self.is_running:
            self._called = self._thread.submit(self._call)

    def result(self) -> CallResult[T]:
        """Wait for the answer until the deadline; passes on any exception other than ``FlushtrackerError``."""
        if self._called is None:
            raise RuntimeError("nothing was asked")
        wait([self._called], max(0.0, self._deadline - time.monotonic()))
        return CallResult(now_ms(), error=self._timeout_error) if self.is_running else self._called.result()

    @property
    def is_running(self) -> bool:
        return self._called is not None and not self._called.done()

    def _call(self) -> CallResult[T]:
        try:
            value = self._find()
        except FlushtrackerError as error:
            return CallResult(now_ms(), error=error)
        return CallResult(now_ms(), value)
