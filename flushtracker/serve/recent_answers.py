"""``RecentAnswers``: the number of answers in the last minute, and of server errors among them."""

import time
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

_SPAN_S: Final = 60.0
_PART_S: Final = 5.0
FIRST_ERROR: Final = 500
"""The lowest status of a server error."""


class Recent(NamedTuple):
    """Sums of the last minute; ``errors`` are the answers with a status from 500 on, also counted in ``answers``."""

    answers: int
    errors: int


class RecentAnswers:
    """One thread records, and any may read. Counts are kept per five seconds, so it stays small."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._parts: deque[tuple[float, Recent]] = deque(maxlen=int(_SPAN_S / _PART_S))

    def note(self, status: int) -> None:
        """Count an answer with this status that has begun now."""
        began_s, parts = self._now_s() // _PART_S * _PART_S, self._parts
        last = parts.pop()[1] if parts and parts[-1][0] == began_s else Recent(0, 0)
        parts.append((began_s, Recent(last.answers + 1, last.errors + (status >= FIRST_ERROR))))

    def last_minute(self) -> Recent:
        least_s = self._now_s() - _SPAN_S
        found = [recent for began_s, recent in tuple(self._parts) if began_s > least_s]
        return Recent(sum(each.answers for each in found), sum(each.errors for each in found))
