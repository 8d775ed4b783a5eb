"""``OwnTime`` counts what a test waits for, and not what a busy machine takes."""

import time
from threading import Event

from tests.support.own_time import OwnTime


def test_a_wait_counts() -> None:
    """Nothing that waits looks faster than it is, but for what the machine takes."""
    started = time.monotonic()
    with OwnTime() as own:
        time.sleep(0.3)
    assert 0.1 < own.seconds <= time.monotonic() - started


def test_the_time_in_which_nobody_ran_does_not() -> None:
    """A clock by which the first of three moments took ten seconds; the whole took eleven."""
    times = iter([0.0, 0.0, 10.0, 10.0, 10.01, 10.01, 10.02, 10.02])
    waits = iter([False, False, False])
    slept = Event()

    def wait(_: float) -> bool:
        is_over = next(waits, True)
        if is_over:
            slept.set()
        return is_over

    with OwnTime(lambda: next(times, 11.0), wait) as own:
        assert slept.wait(10)
    assert 0.9 < own.seconds < 1.1
