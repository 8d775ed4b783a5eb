"""Mutated inputs for everything that reads bytes from outside; ``make soak`` tries ten million, and measures them."""

from pathlib import Path
from random import Random

import pytest

from tests.support.fuzz_targets import targets
from tests.support.fuzzing import check, mutated

_INPUTS = {"pgoutput": 4000, "configuration": 60, "shapes.yaml": 60}


@pytest.mark.parametrize("number", range(11))
def test_readers_raise_nothing_but_their_own_errors(tmp_path: Path, number: int) -> None:
    """The seed is fixed, so that a failure is one of this change."""
    target = targets(tmp_path)[number]
    rng = Random(7)  # noqa: S311  reproducible inputs
    count = next((count for part, count in _INPUTS.items() if part in target.name), 2000)
    findings = [found for _ in range(count) if (found := check(target, mutated(rng, target)))]
    assert not findings, "\n".join(map(str, findings[:3]))


def test_every_sample_is_readable(tmp_path: Path) -> None:
    """Inputs that are refused at their first byte would test nothing."""
    for target in targets(tmp_path):
        for sample in target.samples[:50]:
            target.read(sample)
