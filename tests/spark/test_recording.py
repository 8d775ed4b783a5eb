"""The recorded PostgreSQL workload, replayed with the shapes of ``conf/shapes.yaml`` through the query."""

from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import SparkSession

from flushtracker.files.recording import read_recording
from flushtracker.replay.replay import Replay
from flushtracker.shapes.shapes_file import load_shapes
from tests.support.in_memory_job import AckTable, Event, InMemoryJob
from tests.support.job_folder import JobFolder

_ROOT: Final = Path(__file__).parents[2]
_SOURCE: Final = "recording/1/shapes"
_TICKS_PER_BATCH: Final = 4


@pytest.fixture(scope="module")
def replayed(tmp_path_factory: pytest.TempPathFactory) -> tuple[JobFolder, list[int]]:
    """The recording's streams, and the acks of the core alone for the same batches."""
    job = JobFolder(tmp_path_factory.mktemp("recording"))
    in_memory = InMemoryJob(AckTable())
    replay = Replay(_SOURCE, load_shapes(_ROOT / "conf" / "shapes.yaml"))
    ticks = list(replay.ticks(read_recording(_ROOT / "tests" / "recording")))
    for first in range(0, len(ticks), _TICKS_PER_BATCH):
        batch: list[Event] = []
        for tick in ticks[first : first + _TICKS_PER_BATCH]:
            batch += [*tick.fragments, *tick.flushes]
        job.write(batch)
        in_memory.run_batch(batch)
    assert replay.counts.last_commit is not None
    assert in_memory.ack_lsn(_SOURCE) == replay.counts.last_commit.tx_offset
    return job, in_memory.table.acks(_SOURCE)


@pytest.mark.parametrize("shape_groups", [0, 1, 16])
def test_every_number_of_shape_groups_gives_the_acks_of_the_core_alone(
    spark: SparkSession, replayed: tuple[JobFolder, list[int]], tmp_path: Path, shape_groups: int
) -> None:
    """All acks are equal, up to the last commit."""
    streams, expected = replayed
    job = streams.twin(tmp_path / "job")
    job.run(spark, shape_groups=shape_groups)
    assert len(expected) > 5
    assert [ack_lsn for *_, ack_lsn in job.acks(_SOURCE)] == expected
