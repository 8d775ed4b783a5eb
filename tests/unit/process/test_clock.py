"""The clock by which the age of rows is judged: no step of the machine's clock makes one look older than it is."""

from datetime import datetime, timedelta
from random import Random

import pytest

from flushtracker.process.clock import AgeClock

_NS = 1_000_000_000


class Machine:
    """A machine whose clock is set, and whose monotonic clock stops while it sleeps."""

    def __init__(self) -> None:
        self.true_ns = self.wall_ns = 1_700_000_000 * _NS
        self.monotonic_ns = 5 * _NS

    def clock(self) -> AgeClock:
        return AgeClock(lambda: self.wall_ns, lambda: self.monotonic_ns)

    def run(self, ns: int, *, sleeps: bool = False) -> None:
        self.true_ns += ns
        self.wall_ns += ns
        self.monotonic_ns += 0 if sleeps else ns


@pytest.mark.parametrize("seed", range(20))
def test_nothing_looks_older_than_it_is_whatever_the_machines_clock_does(seed: int) -> None:
    """It is set forward and back while the process runs, and stands still for the monotonic clock while it sleeps."""
    rng, machine = Random(seed), Machine()  # noqa: S311  repeatable
    clock, written = machine.clock(), list[tuple[int, datetime]]()
    for _ in range(200):
        machine.run(rng.randrange(100 * _NS), sleeps=rng.random() < 0.1)
        if rng.random() < 0.2:
            machine.wall_ns += rng.choice([-1, 1]) * rng.randrange(3_600 * _NS)
        written.append((machine.true_ns, clock.to_date()))
        judged = clock.to_judge()
        for true_ns, at in written:
            age = timedelta(microseconds=(machine.true_ns - true_ns) // 1000 + 1)
            assert judged - at <= age, "a row looks older than it is"


def test_without_steps_an_age_is_exact() -> None:
    """So that history is not kept longer than it has to be."""
    machine = Machine()
    clock = machine.clock()
    at = clock.to_date()
    machine.run(300 * _NS)
    assert clock.to_judge() - at == timedelta(seconds=300)
