"""The recorded PostgreSQL workload, replayed with the shapes of ``conf/shapes.yaml`` through the query."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.job_folder import JobFolder
from tests.support.recorded_workload import SOURCE, write_recorded_workload
from tests.support.seeds import in_turn


@pytest.fixture(scope="module")
def replayed(tmp_path_factory: pytest.TempPathFactory) -> tuple[JobFolder, list[int]]:
    """The recording's streams, and the acks of the core alone for the same batches."""
    job = JobFolder(tmp_path_factory.mktemp("recording"))
    return job, write_recorded_workload(job, ticks_per_batch=4)


@pytest.mark.parametrize("shape_groups", in_turn([16, 0, 1]))
def test_every_number_of_shape_groups_gives_the_acks_of_the_core_alone(
    spark: SparkSession, replayed: tuple[JobFolder, list[int]], tmp_path: Path, shape_groups: int
) -> None:
    """All acks are equal, up to the last commit."""
    streams, expected = replayed
    job = streams.twin(tmp_path / "job")
    job.run(spark, shape_groups=shape_groups)
    assert len(expected) > 5
    assert [ack_lsn for *_, ack_lsn in job.acks(SOURCE)] == expected
