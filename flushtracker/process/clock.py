"""The time of day. Pure code takes it as an argument and never reads it."""

import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class AgeClock:
    """Dates records, and gives a lower bound of their age, whatever happens to the machine's clock meanwhile.

    The machine's clock may be set, and the monotonic one may stop while the machine sleeps. So since its creation, this
    object has two times. Records are dated by the later one, and their age is judged by the earlier one. So a record
    never looks older than it is, as long as the same object dates and judges. Errors of the clock before its creation
    remain.
    """

    def __init__(
        self, time_ns: Callable[[], int] = time.time_ns, monotonic_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._time_ns, self._monotonic_ns = time_ns, monotonic_ns
        self._offset_ns = time_ns() - monotonic_ns()

    def to_date(self) -> datetime:
        """The time for records written now."""
        return _utc(max(self._time_ns(), self._offset_ns + self._monotonic_ns()))

    def to_judge(self) -> datetime:
        """The time for judging the age of records."""
        return _utc(min(self._time_ns(), self._offset_ns + self._monotonic_ns()))


def _utc(ns: int) -> datetime:
    return _EPOCH + timedelta(microseconds=ns // 1000)
