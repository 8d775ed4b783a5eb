"""``BrokerRetry``: a broker that is away for a while is waited for, and only for a while."""

import logging
import time
from collections.abc import Callable
from threading import Event
from typing import Final

from flushtracker.errors import BrokerError

logger = logging.getLogger(__name__)

_PAUSE_S: Final = 2.0
_REPORT_EVERY_S: Final = 30.0


class BrokerRetry:
    """Retries after a ``BrokerError``, until ``retry_timeout_ms`` have passed without progress or ``stop`` is set."""

    def __init__(self, retry_timeout_ms: int, stop: Event, now_s: Callable[[], float] = time.monotonic) -> None:
        self._retry_timeout_s = retry_timeout_ms / 1000
        self._stop = stop
        self._now_s = now_s
        self._since_s: float | None = None
        self._reported_s = 0.0

    def call(self, attempt: Callable[[], None]) -> None:
        """Call ``attempt`` until it returns; a ``BrokerError`` is raised once patience has run out."""
        while not self._stop.is_set():
            try:
                attempt()
            except BrokerError as error:  # noqa: PERF203  each round takes seconds
                self._wait(error)
            else:
                return

    def progress(self) -> None:
        """Something was done: the time counts anew."""
        if self._since_s is not None:
            logger.info("broker answers again after_s=%.0f", self._now_s() - self._since_s)
        self._since_s = None

    def _wait(self, error: BrokerError) -> None:
        now_s = self._now_s()
        if self._since_s is None:
            self._since_s, self._reported_s = now_s, now_s - _REPORT_EVERY_S
        waited_s = now_s - self._since_s
        if waited_s >= self._retry_timeout_s:
            raise BrokerError(f"{error}; waited {waited_s:.0f} s in vain (source.patience)") from error
        if now_s - self._reported_s >= _REPORT_EVERY_S:
            logger.warning("%s; waiting up to %.0f s more", error, self._retry_timeout_s - waited_s)
            self._reported_s = now_s
        self._stop.wait(_PAUSE_S)
