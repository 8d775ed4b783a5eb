"""``Timer``: says when something that happens now and then is due."""


class Timer:
    """Due every ``interval_s`` seconds, never where that is ``None``; time is told to it.

    >>> timer = Timer(5.0, now_s=100.0)
    >>> [timer.is_due(now_s) for now_s in (104.0, 105.0, 106.0, 112.0)]
    [False, True, False, True]
    """

    def __init__(self, interval_s: float | None, now_s: float) -> None:
        self._interval_s = interval_s
        self._next_s = None if interval_s is None else now_s + interval_s

    def is_due(self, now_s: float) -> bool:
        """Whether it is time; then it is not again for an interval."""
        if self._next_s is None or self._interval_s is None or now_s < self._next_s:
            return False
        self._next_s = now_s + self._interval_s
        return True
