"""``make soak``: random histories of the whole tracker, with crashes at every step.

``python -m tests.integration.soak_simulation [--histories 1000000] [--minutes M] [--jobs N] [--seed N]`` ends with the
numbers of histories, batches, events and acks that were played, and before that, for the first history that fails, with
the smallest that fails likewise. Histories begin at the seed, by default one that no run has had.
"""

import logging
import sys

from tests.support.failing_scenario import described, play, shrunk
from tests.support.scenario import Scenario
from tests.support.soak_run import Part, Soak

_PART = 50


def play_part(seed: int) -> Part:
    """Play a part of the histories, up to the first that fails."""
    logging.disable()  # sources that are set aside, many times a second
    part = Part()
    for number in range(seed, seed + _PART):
        scenario = Scenario.of(number)
        try:
            simulation = play(scenario)
        except Exception:  # noqa: BLE001  any is a failure
            part.failures.append(described(shrunk(scenario)))
            break
        part.counts["histories"] += 1
        part.counts["batches"] += simulation.batches
        part.counts["events"] += simulation.events
        part.counts["acks"] += simulation.acks
        part.counts["with pandas"] += scenario.with_pandas
        part.counts["on Delta tables"] += scenario.on_delta
    return part


SOAK = Soak(__doc__, "histories", 1_000_000, _PART, 1, play_part)

if __name__ == "__main__":
    sys.exit(SOAK.main())
