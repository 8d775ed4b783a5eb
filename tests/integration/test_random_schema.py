"""Random changes of schemas and rows on real servers: each shape equals its query, or has ended by itself."""

import os
from collections import Counter
from collections.abc import Iterator
from typing import Final

import pytest

from tests.support.brokers import Broker
from tests.support.schema_changes import SURVIVABLE
from tests.support.schema_history import random_history
from tests.support.schema_play import RuleBrokenError
from tests.support.schema_shrink import shrink
from tests.support.schema_stage import Stage, schema_stage
from tests.support.seeds import first_seed, turn
from tests.support.server_versions import runs_here

_OLDER: Final = [(14, 8), (15, 6), (16, 5), (17, 4)]
_STAGES: Final = [
    pytest.param((18, 0), id="18"),
    pytest.param((18, 1), id="18, another", marks=pytest.mark.soak),
    # Another one with another commit; ``soak_schema`` plays on all.
    pytest.param(_OLDER[turn() % 4], id="older"),
]
"""Versions, and the history that is played there, as a number from the first seed on."""
_APART: Final = 100
_MOST_HISTORIES: Final = 5
_REPLAYS: Final = int(os.environ.get("FLUSHTRACKER_SCHEMA_REPLAYS", "60"))

pytestmark = pytest.mark.skipif(not runs_here(), reason="the servers are built for 64-bit x86 Linux")


@pytest.fixture(scope="module", params=_STAGES)
def versioned_stage(request: pytest.FixtureRequest, broker: Broker) -> Iterator[tuple[int, int, Stage]]:
    version, number = request.param
    with schema_stage(version, broker.bootstrap_servers) as stage:
        yield version, number, stage


def test_each_shape_equals_its_query_or_has_ended(versioned_stage: tuple[int, int, Stage]) -> None:
    """Whatever is done to its table, and whether capture runs meanwhile or not. In a history all shapes may end."""
    version, number, stage = versioned_stage
    counts = Counter[str]()
    for seed in range(first_seed() + number, first_seed() + number + _MOST_HISTORIES * _APART, _APART):
        counts += _counts(stage, version, seed)
        survived = counts["shapes with rows after a schema change"]
        ended = counts["shapes"] - counts["shapes live at the end"]
        if survived and ended:
            return
    pytest.fail(f"in {_MOST_HISTORIES} histories {survived} shapes survived a schema change, and {ended} ended")


def test_each_change_that_the_soak_expects_shapes_to_survive_is_counted() -> None:
    """Otherwise it fails after hours, whatever shapes do."""
    assert [change.statements for change in SURVIVABLE if not change.locks_table] == []


def _counts(stage: Stage, version: int, seed: int) -> Counter[str]:
    """What the judge has counted in a history; the test fails if the rule was broken."""
    history = random_history(seed, version)
    try:
        return stage.play(history)
    except RuleBrokenError as broken:
        shortest, what = shrink(history, broken, stage.replay, _REPLAYS)
        pytest.fail(f"seed {seed}: {broken}\n\nThe shortest history found:\n{shortest}\n\n{what}", pytrace=False)
