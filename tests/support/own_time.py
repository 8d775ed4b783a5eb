"""``OwnTime``: how long something took, without the time in which a busy machine let nobody of this process run.

For tests of limits: what waits for a deadline that it should not wait for does so here, too, but a machine that runs
something else meanwhile is no fault of what is tested.
"""

import time
from collections.abc import Callable
from threading import Event, Thread
from typing import Final

_TICK_S: Final = 0.01


class OwnTime:
    """A context manager, which counts from its begin to its end. ``clock`` and ``wait`` are those of a test of it.

    A thread sleeps for a moment again and again: as much later as it wakes, the process did not get a processor.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, wait: Callable[[float], bool] | None = None
    ) -> None:
        self._clock = clock
        self._ended = Event()
        self._wait = wait or self._ended.wait
        self._begun_s = self._end_s = self._delayed_s = 0.0
        self._thread = Thread(target=self._tick, name="own-time", daemon=True)

    @property
    def seconds(self) -> float:
        """After its end."""
        return max(0.0, self._end_s - self._begun_s - self._delayed_s)

    def __enter__(self) -> "OwnTime":
        self._begun_s = self._clock()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end_s = self._clock()
        self._ended.set()
        self._thread.join()

    def _tick(self) -> None:
        slept_at = self._clock()
        while not self._wait(_TICK_S):
            now = self._clock()
            self._delayed_s += max(0.0, now - slept_at - _TICK_S)
            slept_at = self._clock()
