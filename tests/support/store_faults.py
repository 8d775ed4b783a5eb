"""Random faults of an object store, of every kind."""

import random
from typing import Final

from tests.support.faulty_proxy import HELD, RESET, Fault

_REQUESTS: Final = ("PUT .*_delta_log", "PUT .*parquet", "GET .*list-type", "GET .*json", "GET", "PUT", "DELETE")


def random_fault(rng: random.Random) -> Fault:
    """Errors, throttling, resets, lost answers, a delay, or a request that arrives late, or is never answered."""
    request, times, takes_effect = rng.choice(_REQUESTS), rng.choice([1, 1, 1, 5]), rng.random() < 0.5
    chance = rng.random()
    if chance < 0.1:
        return Fault(request, delay_s=0.3)
    if chance < 0.2:
        return Fault(request, HELD, takes_effect=takes_effect)
    return Fault(request, rng.choice([500, 503, RESET]), takes_effect=takes_effect, times=times)
