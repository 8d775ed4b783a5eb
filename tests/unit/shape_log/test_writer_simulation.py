"""Random histories of the writers' job, with crashes and second writers at every step."""

from collections import Counter

import pytest

from tests.support.seeds import seeds
from tests.support.writer_simulation import histories

_HISTORIES = 100


@pytest.mark.parametrize("first", seeds(1, further=9))
def test_every_change_is_in_the_log_once_and_only_what_is_there_is_notified(first: int) -> None:
    """Whatever dies, is fenced, restored, resent, lost or removed; in the end everything is there, and notified."""
    counts: Counter[str] = Counter()
    for simulation in histories(first, first + _HISTORIES):
        counts.update(simulation.counts)
    assert min(counts.values()) > 10, counts
