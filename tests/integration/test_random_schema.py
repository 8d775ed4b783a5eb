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

_OLDER: Final = [(14, [8]), (15, [6]), (16, [5]), (17, [4])]
_STAGES: Final = [
    pytest.param((18, [0]), id="18"),
    pytest.param((18, [1]), id="18, another", marks=pytest.mark.soak),
    # Another one with another commit; ``soak_schema`` plays on all.
    pytest.param(_OLDER[turn() % 4], id="older"),
]
"""Versions, and the histories that are played there, as numbers from the first seed on."""
_REPLAYS: Final = int(os.environ.get("FLUSHTRACKER_SCHEMA_REPLAYS", "60"))

pytestmark = pytest.mark.skipif(not runs_here(), reason="the servers are built for 64-bit x86 Linux")


@pytest.fixture(scope="module", params=_STAGES)
def versioned_stage(request: pytest.FixtureRequest, broker: Broker) -> Iterator[tuple[int, list[int], Stage]]:
    version, histories = request.param
    with schema_stage(version, broker.bootstrap_servers) as stage:
        yield version, histories, stage


def test_each_shape_equals_its_query_or_has_ended(versioned_stage: tuple[int, list[int], Stage]) -> None:
    """Whatever is done to its table, and whether capture runs meanwhile or not."""
    version, histories, stage = versioned_stage
    for number in histories:
        _assert_rule(stage, version, first_seed() + number)


def test_each_change_that_the_soak_expects_shapes_to_survive_is_counted() -> None:
    """Otherwise it fails after hours, whatever shapes do."""
    assert [change.statements for change in SURVIVABLE if not change.locks_table] == []


def _assert_rule(stage: Stage, version: int, seed: int) -> None:
    history = random_history(seed, version)
    try:
        counts: Counter[str] = stage.play(history)
    except RuleBrokenError as broken:
        shortest, what = shrink(history, broken, stage.replay, _REPLAYS)
        pytest.fail(f"seed {seed}: {broken}\n\nThe shortest history found:\n{shortest}\n\n{what}", pytrace=False)
    assert counts["shapes with rows after a schema change"] > 0
    assert counts["shapes live at the end"] < counts["shapes"], "some survive, and some end"
