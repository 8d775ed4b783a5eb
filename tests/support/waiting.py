"""Waiting, with a deadline, for something that another thread or process does."""

import time
from collections.abc import Callable
from typing import Final, TypeVar

_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 0.5
_SHARE: Final = 4
"""A call takes at most a fifth of the time: what it waits for needs the processor, too."""

_Found = TypeVar("_Found")


def wait_until(
    condition: Callable[[], _Found | None], what: str, timeout_s: float, *, pause_s: float | None = None
) -> _Found:
    """Call ``condition`` until it returns something true, and return that; fail, naming ``what``, after the deadline.

    ``pause_s`` passes between two calls, by default longer after a call that took long; state it where each call
    changes something.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        begun = time.monotonic()
        if found := condition():
            return found
        now = time.monotonic()
        assert now < deadline, f"gave up after {timeout_s:.0f} s: {what}"
        costly_s = min(_SHARE * (now - begun), _LONGEST_PAUSE_S)
        time.sleep(max(_PAUSE_S, costly_s) if pause_s is None else pause_s)
