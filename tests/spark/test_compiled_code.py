"""What Spark compiles: a batch must find the code of the batch before."""

import itertools
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tests.support.job_folder import JobFolder
from tests.support.sample_source import SampleSource


def test_no_batch_needs_code_that_the_batch_before_did_not(spark: SparkSession, tmp_path: Path) -> None:
    """A literal with the batch's time made each batch compile a class, and Java compile it again."""
    job, source = JobFolder(tmp_path), SampleSource()
    lsns = itertools.count(2000, 1000)
    compiled: list[int] = []
    for batches in (2, 1, 9):
        for _ in range(batches):
            lsn = next(lsns)
            job.write([source.transaction(lsn, "a", "b"), source.flushed("a", lsn)])
        job.run(spark)
        compiled.append(_compiled(spark))
    first, second, third = compiled
    assert first > 0, "nothing is counted"
    # Spark keeps a hundred classes, and may have dropped one in between.
    assert (third - second) - (second - first) < 8, "eight more batches compiled eight more classes"


def _compiled(spark: SparkSession) -> int:
    jvm: Any = spark.sparkContext._jvm
    return int(jvm.org.apache.spark.metrics.source.CodegenMetrics.METRIC_COMPILATION_TIME().getCount())
