"""The state of the last committed batch, as a starting driver reads it: each group's newest report."""

from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (the name that Spark's own documentation gives it)

from flushtracker.errors import StateError
from flushtracker.reports import ChainReport
from flushtracker.spark.group_state import GROUP, SOURCE
from flushtracker.spark.rows import CHAIN


def read_reports(spark: SparkSession, checkpoint: str) -> list[Row]:
    """The rows ``(kind, source, shape_group, report)`` of all groups; none where no batch has been committed yet.

    Raises:
        StateError: there is a committed batch, and its state cannot be read.
    """
    if not _has_commits(spark, checkpoint):
        return []
    _ = spark.streams.active  # In a fresh session the reader fails before this (SPARK-58973).
    try:
        state = spark.read.format("statestore").load(checkpoint)
        kind = F.when(F.col("key.shape_group") == CHAIN, F.lit(SOURCE)).otherwise(F.lit(GROUP))
        return state.select(kind.alias("kind"), "key.source", "key.shape_group", "value.groupState.report").collect()
    except PySparkException as error:
        reason = str(error).partition("\n")[0]
        raise StateError(
            f"the state in checkpoint {checkpoint} cannot be read: {reason}; name the checkpoint of this job, or a new "
            f"one and let capture send everything unconfirmed again"
        ) from error


def refuse_other_shape_groups(reports: list[Row], checkpoint: str, shape_groups: int) -> None:
    """Raise ``StateError`` where the state was written with another number: shapes would be looked for elsewhere."""
    for row in reports:
        if row["kind"] == SOURCE:
            written = ChainReport.from_json(row["report"]).shape_groups
            if written != shape_groups:
                raise StateError(
                    f"checkpoint {checkpoint} was written with shape_groups {written}, and state.shape_groups is "
                    f"{shape_groups}; set it back to {written}, or name a new checkpoint and let capture send "
                    f"everything unconfirmed again"
                )


def _has_commits(spark: SparkSession, checkpoint: str) -> bool:
    """Whether any batch is committed; through Hadoop, since a checkpoint may be anywhere that Spark can write."""
    jvm: Any = spark.sparkContext._jvm
    path = jvm.org.apache.hadoop.fs.Path(checkpoint, "commits")
    files = path.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())
    return bool(files.exists(path)) and any(s.getPath().getName().isdigit() for s in files.listStatus(path))
