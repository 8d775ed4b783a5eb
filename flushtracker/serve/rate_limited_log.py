"""``RateLimitedLog``: a rate-limited logger for events that clients can cause, so that they cannot fill the log."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

_SPAN_S: Final = 60.0
_MOST: Final = 10
"""The maximum number of lines per event within a span."""


@dataclass(slots=True)
class RateLimitedLog:
    """Logs at most ten lines a minute per event; the next one says how many were suppressed.

    An event is the text of a line without its fields. There must be few, because each is remembered.
    """

    logger: logging.Logger
    now_s: Callable[[], float] = time.monotonic
    _spans: dict[str, tuple[float, int]] = field(default_factory=dict)
    """By event: the start of its span, and its number of lines."""

    def __call__(self, level: int, event: str, *fields: object, exc_info: Any = None) -> None:
        now_s = self.now_s()
        began_s, count = self._spans.get(event, (now_s, 0))
        left_out = max(count - _MOST, 0)
        if now_s - began_s >= _SPAN_S:
            began_s, count = now_s, 0
        self._spans[event] = began_s, count + 1
        if count >= _MOST:
            return
        if count or not left_out:
            self.logger.log(level, event, *fields, exc_info=exc_info)
        else:
            self.logger.log(level, f"{event} left_out=%s", *fields, left_out, exc_info=exc_info)
