"""Faults of an object store, of every kind: at each kind of request that a job makes, or at random."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from tests.support.faulty_proxy import HALF, HELD, RESET, Fault, FaultyProxy

WAYS: Final = {
    "reset before": Fault("", RESET),
    "reset after": Fault("", RESET, takes_effect=True),
    "half": Fault("", HALF),
    "500": Fault("", 500),
    "500 after, so that the retry meets one's own": Fault("", 500, takes_effect=True),
    "503": Fault("", 503, times=2),
    "late": Fault("", HELD),
    "lost": Fault("", HELD, takes_effect=True),
}
"""The ways in which a request may fail."""

_REQUESTS: Final = ("PUT .*_delta_log", "PUT .*parquet", "GET .*list-type", "GET .*json", "GET", "PUT", "DELETE")


@contextmanager
def failing(proxy: FaultyProxy, request: str, way: str) -> Iterator[None]:
    """The next ``request`` in the block fails in this way; what is held back of it arrives after the block."""
    proxy.left()
    proxy.add(replace(WAYS[way], request=request))
    yield
    assert proxy.left() == 0, f"{request} was not sent"
    proxy.release()


def store_faults(name: str, tables: str) -> list[Fault]:
    """For a job with everything below ``name``, which neither stops nor differs.

    ``tables`` is a pattern of the folders of its tables. Each is created, and they have three further commits at least.
    """
    tables, checkpoint = f"{name}(/|%2F)({tables})", f"{name}(/|%2F)checkpoint"
    return [
        Fault(rf"PUT .*{tables}/_delta_log/0{{20}}\.json", RESET, takes_effect=True, times=2),
        Fault(rf"PUT .*{tables}/_delta_log/\d{{19}}[1-9]\.json", 500, takes_effect=True, times=2),
        Fault(rf"PUT .*{tables}/_delta_log/\d{{19}}[1-9]\.json", RESET, takes_effect=True),
        Fault(rf"PUT .*{tables}/_delta_log/\d{{19}}[1-9]\.json", RESET),
        Fault(rf"PUT .*{tables}/part-", RESET),
        Fault(rf"PUT .*{tables}/part-", 503, takes_effect=True, times=2),
        Fault(rf"GET .*{tables}", 503, times=4),
        Fault(rf"GET .*list-type.*{tables}", RESET),
        Fault(rf"GET .*list-type.*{tables}", HALF),
        Fault(rf"PUT .*{checkpoint}", 503, times=5),
        Fault(rf"PUT .*{checkpoint}", 500, takes_effect=True, times=3),
        Fault(rf"PUT .*{checkpoint}/commits", RESET, takes_effect=True),
        Fault(rf"PUT .*{checkpoint}/state", RESET, times=2),
        Fault(rf"(GET|HEAD) .*{checkpoint}", 503, times=5),
        Fault(rf"HEAD .*{checkpoint}", delay_s=1.0),
        Fault(r"DELETE .*checkpoint", 500, takes_effect=True, times=2),
    ]


def random_fault(rng: random.Random) -> Fault:
    """Errors, throttling, resets, lost answers, a delay, or a request that arrives late, or is never answered."""
    request, times, takes_effect = rng.choice(_REQUESTS), rng.choice([1, 1, 1, 5]), rng.random() < 0.5
    chance = rng.random()
    if chance < 0.1:
        return Fault(request, delay_s=0.3)
    if chance < 0.2:
        return Fault(request, HELD, takes_effect=takes_effect)
    return Fault(request, rng.choice([500, 503, RESET]), takes_effect=takes_effect, times=times)
