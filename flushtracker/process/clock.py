"""The time of day. Pure code takes it as an argument and never reads it."""

import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)


def now_ms() -> int:
    """The time in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


class AgeClock:
    """Dates what is written, and tells how old it is at least, whatever happens to the machine's clock meanwhile.

    The machine's clock may be set, and the monotonic one may stop while the machine sleeps. From both there are two
    times since this was made. What is written gets the later one; its age is judged by the earlier one. So it never
    looks older than it is, as long as one clock dates and one judges. A clock that was wrong before counts as it was.
    """

    def __init__(
        self, time_ns: Callable[[], int] = time.time_ns, monotonic_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._time_ns, self._monotonic_ns = time_ns, monotonic_ns
        self._offset_ns = time_ns() - monotonic_ns()

    def to_date(self) -> datetime:
        """The time to give to what is written now."""
        return _utc(max(self._time_ns(), self._offset_ns + self._monotonic_ns()))

    def to_judge(self) -> datetime:
        """The time by which to judge how old something is."""
        return _utc(min(self._time_ns(), self._offset_ns + self._monotonic_ns()))


def _utc(ns: int) -> datetime:
    return _EPOCH + timedelta(microseconds=ns // 1000)
