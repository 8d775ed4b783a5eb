"""``make soak``: random histories of the whole tracker, with crashes at every step, on all cores.

``python -m tests.integration.soak_simulation [--histories 1000000] [--minutes M] [--seed N]`` prints how many
histories, batches and events were played, and for the first one that fails the smallest history that fails likewise.
Histories begin at the seed ``N``, by default one that no run has had.
"""

import argparse
import multiprocessing
import sys
import time

from tests.support.failing_scenario import described, shrunk
from tests.support.scenario import Scenario
from tests.support.simulation import Simulation

_PART = 50


def play(seed: int) -> tuple[int, int, str | None]:
    """The batches and the events of a part of the histories, and how the first that fails does."""
    batches = events = 0
    for number in range(seed, seed + _PART):
        simulation = Simulation(Scenario.of(number))
        try:
            simulation.run()
        except Exception:  # noqa: BLE001  any is a failure
            return batches, events, described(shrunk(simulation.scenario))
        batches += simulation.batches
        events += simulation.events
    return batches, events, None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--histories", type=int, default=1_000_000)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop after this time")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**32)
    arguments = parser.parse_args()
    started = time.monotonic()
    histories = batches = events = 0
    failure = None
    with multiprocessing.get_context("spawn").Pool() as pool:
        seeds = range(arguments.seed, arguments.seed + arguments.histories, _PART)
        for part_batches, part_events, failure in pool.imap_unordered(play, seeds):
            histories, batches, events = histories + _PART, batches + part_batches, events + part_events
            if failure is not None or time.monotonic() - started > arguments.minutes * 60:
                break
    took_s = time.monotonic() - started
    print(f"seed {arguments.seed}: {histories} histories, {batches} batches, {events} events in {took_s:.0f} s")  # noqa: T201  a program prints
    if failure is not None:
        print(failure)  # noqa: T201
    return 0 if failure is None else 1


if __name__ == "__main__":
    sys.exit(main())
