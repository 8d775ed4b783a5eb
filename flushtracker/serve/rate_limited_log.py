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
class _Span:
    """The lines of an event since ``began_s``; the next line has the number of those that were ``left_out``."""

    began_s: float
    lines: list[str] = field(default_factory=list)
    left_out: int = 0


@dataclass(slots=True)
class RateLimitedLog:
    """Logs at most ten lines a minute per event, and each text once; the next one says how many were suppressed.

    An event is the text of a line without its fields. There must be few, because each is remembered.
    """

    logger: logging.Logger
    now_s: Callable[[], float] = time.monotonic
    _spans: dict[str, _Span] = field(default_factory=dict)

    def __call__(self, level: int, event: str, *fields: object, exc_info: Any = None) -> None:
        now_s = self.now_s()
        span = self._spans.get(event) or _Span(now_s)
        if now_s - span.began_s >= _SPAN_S:
            span = _Span(now_s, left_out=span.left_out)
        self._spans[event] = span
        line = event % fields if fields else event
        # An error that many clients share is one line; tracebacks may differ.
        if len(span.lines) == _MOST or (exc_info is None and line in span.lines):
            span.left_out += 1
            return
        if not span.lines and span.left_out:
            line, span.left_out = f"{line} left_out={span.left_out}", 0
        span.lines.append(line)
        self.logger.log(level, "%s", line, exc_info=exc_info)
