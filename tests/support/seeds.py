"""What differs from run to run: seeds of random histories, and what is tried in turn of things that are alike.

Both follow from the commit, so that each commit plays new histories. ``FLUSHTRACKER_SEED`` and ``FLUSHTRACKER_TURN``
choose other numbers, and the head of a test run prints them.
"""

import os
import subprocess
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Final

import pytest
from _pytest.mark.structures import ParameterSet

_APART: Final = 1000
"""How many histories a test may play from one seed on."""
_MOST_HISTORIES: Final = 40
"""A thing that happens in one of five is then missed once in 7,500 commits."""


def first_seed() -> int:
    return int(os.environ.get("FLUSHTRACKER_SEED") or turn())


@cache
def turn() -> int:
    """The beginning of the commit's hash; 0 without a commit."""
    if chosen := os.environ.get("FLUSHTRACKER_TURN"):
        return int(chosen)
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short=8", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return int(done.stdout.strip()[:8], 16) if done.returncode == 0 else 0


def seeds(count: int, further: int = 0) -> list[ParameterSet]:
    """So many seeds, and ``further`` ones for the soak."""
    return [
        pytest.param(first_seed() + _APART * n, id=f"seed {n}", marks=[pytest.mark.soak] * (n >= count))
        for n in range(count + further)
    ]


def in_turn(options: Sequence[object], count: int = 1) -> list[ParameterSet]:
    """So many of these with each commit, others with another; the rest is for the soak."""
    first = turn() % len(options)
    chosen = {(first + n) % len(options) for n in range(count)}
    return [
        pytest.param(each, id=str(each), marks=[pytest.mark.soak] * (n not in chosen)) for n, each in enumerate(options)
    ]


def every(count: int, nth: int) -> pytest.MarkDecorator:
    """For a test that every ``count``-th commit tries; with the others it is for the soak.

    Options of such a test that are ``in_turn``, too, are all tried only if their number has no factor in common.
    """
    return pytest.mark.in_turn if turn() % count == nth else pytest.mark.soak


def play_until(play: Callable[[int], Mapping[str, int]], seed: int, *names: str) -> None:
    """Play histories from a seed on until each of these has happened in one."""
    counts: Counter[str] = Counter()
    for number in range(_MOST_HISTORIES):
        counts.update(play(seed + number))
        if all(counts[name] > 0 for name in names):
            return
    raise AssertionError(f"{_MOST_HISTORIES} histories from seed {seed} on had only {counts}, of {', '.join(names)}")
