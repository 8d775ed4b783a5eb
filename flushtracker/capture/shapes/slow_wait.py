"""``SlowWait``: one shape's wait, and whether it is still to be logged."""

from dataclasses import dataclass
from typing import Final

SLOW_S: Final = 10.0


@dataclass(slots=True)
class SlowWait:
    """A wait that starts with its first check; times are monotonic, in seconds.

    >>> wait = SlowWait()
    >>> [wait.is_due(now_s) for now_s in (100.0, 110.0, 110.5, 111.0)]
    [False, False, True, False]
    """

    since_s: float | None = None
    is_logged: bool = False

    def is_due(self, now_s: float) -> bool:
        """Whether it has lasted longer than :data:`SLOW_S`; true only once."""
        if self.since_s is None:
            self.since_s = now_s
        if self.is_logged or now_s - self.since_s <= SLOW_S:
            return False
        self.is_logged = True
        return True
