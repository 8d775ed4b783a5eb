"""A checkpoint that an earlier release wrote is refused, whole and at the start, with what to do."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.state import GroupState

from flushtracker.errors import StateError
from flushtracker.tracking.job import query as track_flushes_query
from flushtracker.tracking.job.group_state import GroupSettings, state_function
from flushtracker.tracking.source_tracker import CHAIN
from tests.support.job_folder import JobFolder
from tests.support.sample_source import SampleSource


class _OldState:
    """A group's state that gets the version byte of an earlier release."""

    def __init__(self, state: GroupState) -> None:
        self._state = state
        self.exists = state.exists

    @property
    def get(self) -> tuple[Any, ...]:
        return self._state.get

    def getCurrentProcessingTimeMs(self) -> int:  # noqa: N802  pyspark's name
        return self._state.getCurrentProcessingTimeMs()

    def update(self, value: tuple[bytes, str, int]) -> None:
        packed, *rest = value
        self._state.update((b"\x02" + packed[1:], *rest))


def _old_state_function(settings: GroupSettings, *, chains: bool) -> Callable[..., Iterator[pd.DataFrame]]:
    handle_group = state_function(settings)

    def handle(key: tuple[str, str], frames: Any, state: GroupState) -> Iterator[pd.DataFrame]:
        is_old = (key[1] == CHAIN) == chains
        return handle_group(key, frames, _OldState(state) if is_old else state)  # type: ignore[arg-type]

    return handle


@pytest.mark.parametrize("chains", [False, True], ids=["groups", "chains"])
def test_checkpoint_of_an_earlier_release_is_refused_before_anything_is_read(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, chains: bool
) -> None:
    """Its shapes are in other groups, too: where a batch reached only new groups, it would go on without them.

    And a chain would be found only with its source's next fragment, after acks that flushes alone have moved.
    """
    job = JobFolder(tmp_path)
    source = SampleSource()
    job.write([source.transaction(2000, "a", "b")])
    with monkeypatch.context() as old:
        old.setattr(track_flushes_query, "state_function", partial(_old_state_function, chains=chains))
        job.run(spark)
    before = job.acks()
    job.write([source.flushed("c", 2000)])
    message = r"has version 02, this job reads version 01; .* \(with Kafka: --recover\)"
    with pytest.raises(StateError, match=message):
        job.run(spark)
    assert job.acks() == before
