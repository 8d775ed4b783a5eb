"""``wait_readable``: waits for a connection's socket."""

import select
from math import ceil


def wait_readable(descriptor: int, seconds: float) -> bool:
    """Wait until there is something to read, an error or the end; returns whether there is.

    A process with many files has descriptors above 1,023, which ``select(2)`` does not take. A negative one is that of
    a connection whose socket libpq has closed, maybe in another thread: its next call says why.
    """
    if descriptor < 0:
        return True
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    return bool(waiting.poll(ceil(seconds * 1000)))
