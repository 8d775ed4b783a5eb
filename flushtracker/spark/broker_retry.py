"""``BrokerRetry``: retries while a broker is unavailable, up to a timeout."""

import logging
import time
from collections.abc import Callable
from threading import Event
from typing import Final

from flushtracker.errors import BrokerError

logger = logging.getLogger(__name__)

_PAUSE_S: Final = 2.0
_LOG_EVERY_S: Final = 30.0


class BrokerRetry:
    """Retries after a ``BrokerError``, until ``retry_timeout_ms`` have passed without progress or ``stop`` is set."""

    def __init__(self, retry_timeout_ms: int, stop: Event, now_s: Callable[[], float] = time.monotonic) -> None:
        self._retry_timeout_s = retry_timeout_ms / 1000
        self._stop = stop
        self._now_s = now_s
        self._failing_since_s: float | None = None
        self._logged_s = 0.0

    def call(self, attempt: Callable[[], None]) -> None:
        """Call ``attempt`` until it returns or ``stop`` is set; raises ``BrokerError`` once the timeout has passed."""
        while not self._stop.is_set():
            try:
                attempt()
            except BrokerError as error:  # noqa: PERF203  each round takes seconds
                self._pause_or_give_up(error)
            else:
                return

    @property
    def is_failing(self) -> bool:
        """Whether an attempt has failed since the last progress."""
        return self._failing_since_s is not None

    def progress(self) -> None:
        """Restart the timeout: the job has read all that it set out to read, so each broker that it needs answers."""
        if self._failing_since_s is not None:
            logger.info("broker available again after_s=%.0f", self._now_s() - self._failing_since_s)
        self._failing_since_s = None

    def _pause_or_give_up(self, error: BrokerError) -> None:
        now_s = self._now_s()
        if self._failing_since_s is None:
            self._failing_since_s, self._logged_s = now_s, now_s - _LOG_EVERY_S
        elapsed_s = now_s - self._failing_since_s
        if elapsed_s >= self._retry_timeout_s:
            raise BrokerError(f"{error}; gave up after {elapsed_s:.0f} s (source.retry_timeout)") from error
        if now_s - self._logged_s >= _LOG_EVERY_S:
            logger.warning("%s; retrying for up to %.0f s more", error, self._retry_timeout_s - elapsed_s)
            self._logged_s = now_s
        self._stop.wait(_PAUSE_S)
