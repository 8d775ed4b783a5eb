"""A checkpoint whose groups are stored in version 1 of the format, as JSON, is continued."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.state import GroupState

from flushtracker.spark import track_flushes_query
from flushtracker.spark.group_state import GroupSettings, state_function
from flushtracker.tracking.shape_group import ShapeGroup
from tests.support.job_folder import JobFolder
from tests.support.plain_group import group_to_json
from tests.support.sample_source import SampleSource


class _Version1State:
    """A group's state that is stored as version 1."""

    def __init__(self, state: GroupState) -> None:
        self._state = state
        self.exists = state.exists

    @property
    def get(self) -> tuple[Any, ...]:
        return self._state.get

    def update(self, value: tuple[bytes, str, int]) -> None:
        packed, *rest = value
        if packed[0] == 2:
            packed = b"\x01" + json.dumps(group_to_json(ShapeGroup.unpack(packed))).encode()
        self._state.update((packed, *rest))


def _version_1_state_function(settings: GroupSettings) -> Callable[..., Iterator[pd.DataFrame]]:
    handle_group = state_function(settings)
    return lambda key, frames, state: handle_group(key, frames, _Version1State(state))  # type: ignore[arg-type]


def test_checkpoint_of_version_1_is_continued(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was pending in it is pending still, and a group that a batch reaches is written in version 2."""
    job = JobFolder(tmp_path)
    source = SampleSource()
    job.write([source.transaction(2000, "a", "b"), source.transaction(3000, "a")])
    with monkeypatch.context() as old:
        old.setattr(track_flushes_query, "state_function", _version_1_state_function)
        job.run(spark, shape_groups=1)
    assert _group_versions(spark, job) == {1}
    job.write([source.flushed("a", 2000)])
    job.run(spark, shape_groups=1)
    assert _group_versions(spark, job) == {2}
    job.write([source.flushed("b", 2000)])
    job.write([source.flushed("a", 3000)])
    job.run(spark, shape_groups=1)
    assert [ack for _, _, ack in job.acks()] == [1998, 2998, 3000]


def _group_versions(spark: SparkSession, job: JobFolder) -> set[int]:
    state = spark.read.format("statestore").load(str(job.root / "checkpoint"))
    rows = state.where("key.shape_group <> ''").select("value.groupState.packed").collect()
    return {row["packed"][0] for row in rows}
