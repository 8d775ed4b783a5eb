"""``TimedCall``: a call with a deadline, in its own thread because it may never return.

A library that waits for a server or a storage cannot be interrupted. So the thread is abandoned at the deadline. Until
it ends, the call is not repeated, and its late result is dropped.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Thread
from typing import Generic, TypeVar

from flushtracker.errors import FlushtrackerError
from flushtracker.process.clock import now_ms

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
        self._running: _RunningCall[T] | None = None
        self._deadline = 0.0

    def start(self) -> None:
        """Start the call, unless the previous one is still running."""
        self._deadline = time.monotonic() + self._deadline_s
        if not self.is_running:
            self._running = _RunningCall(self._find)
            self._running.start()

    def result(self) -> CallResult[T]:
        """Wait for the answer until the deadline; passes on any exception other than ``FlushtrackerError``."""
        if self._running is None:
            raise RuntimeError("nothing was asked")
        self._running.join(max(0.0, self._deadline - time.monotonic()))
        if self._running.is_alive():
            return CallResult(now_ms(), error=self._timeout_error)
        if isinstance(self._running.failure, FlushtrackerError):
            return CallResult(self._running.ended_at_ms, error=self._running.failure)
        if self._running.failure is not None:
            raise self._running.failure
        return CallResult(self._running.ended_at_ms, self._running.value)

    @property
    def is_running(self) -> bool:
        return self._running is not None and self._running.is_alive()


class _RunningCall(Thread, Generic[T]):
    """One call of ``find``; ``value`` or ``failure`` once it has ended. Does not keep the process alive."""

    def __init__(self, find: Callable[[], T]) -> None:
        super().__init__(daemon=True)
        self._find = find
        self.value: T | None = None
        self.failure: BaseException | None = None
        self.ended_at_ms = 0

    def run(self) -> None:
        try:
            self.value = self._find()
        except BaseException as error:  # noqa: BLE001  raised again in the waiting thread
            self.failure = error
        self.ended_at_ms = now_ms()
