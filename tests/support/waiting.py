"""Waiting, with a deadline, for something that another thread or process does."""

import time
from collections.abc import Callable
from typing import Final, TypeVar

_PAUSE_S: Final = 0.05

_Found = TypeVar("_Found")


def wait_until(
    condition: Callable[[], _Found | None], what: str, timeout_s: float, *, pause_s: float = _PAUSE_S
) -> _Found:
    """Call ``condition`` until it returns something true, and return that; fail, naming ``what``, after the deadline.

    ``pause_s`` passes between two calls; make it longer where each call is costly or changes something.
    """
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"gave up after {timeout_s:.0f} s: {what}"
        time.sleep(pause_s)
    return found
