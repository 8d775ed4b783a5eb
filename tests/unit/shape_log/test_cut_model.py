"""Cuts in a model of all programs, with kills, late reads, compaction and lost state at random."""

from dataclasses import fields

import pytest

from tests.support.cut_world import CutWorld, Faults
from tests.support.seeds import in_turn

_SEEDS = 50
_MOST_SEEDS = 150
"""Until a fault is found."""
_STEPS = 400
_LOSSES = 40


def test_every_read_of_several_shapes_is_as_of_its_cut() -> None:
    """Each has, of every shape, exactly the transactions up to the cut; and at rest the cut is the last transaction."""
    reads = refused = 0
    for seed in range(_SEEDS):
        world = CutWorld(seed)
        try:
            for _ in range(_STEPS):
                world.step()
            world.rest()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        assert world.cut == max(world.history), f"seed {seed}"
        reads += world.reads
        refused += world.refused
    assert min(reads, refused) > 2 * _SEEDS


def test_no_cut_passes_a_removal_that_was_lost() -> None:
    """The topic of shapes loses its beginning, read or unread; then the cut stays."""
    reads = lost = 0
    for seed in range(_LOSSES):
        world = CutWorld(seed, loses_entries=True)
        cut = world.cut
        try:
            for _ in range(_STEPS):
                was_lost, cut = world.begin > 0, world.cut
                world.step()
                assert not was_lost or world.cut is None or cut is None or world.cut <= cut
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        reads += world.reads
        lost += world.begin > 0
    assert min(reads, lost) > _LOSSES / 4


@pytest.mark.parametrize("fault", in_turn([each.name for each in fields(Faults)], 2))
def test_the_model_finds_what_would_be_wrong(fault: str) -> None:
    """One rule left out gives a wrong read in some history."""
    for seed in range(_MOST_SEEDS):
        world = CutWorld(seed, Faults(**{fault: True}), loses_entries=fault == "losses_ignored")
        try:
            for _ in range(_STEPS):
                world.step()
        except AssertionError:
            return
    pytest.fail(f"no read was wrong with {fault}")
