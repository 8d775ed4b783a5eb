"""Reads the state of the last committed batch when a driver starts."""

import logging
from collections.abc import Sequence
from typing import Final, NamedTuple

from pyspark.sql import Row, SparkSession

from flushtracker.errors import StateError
from flushtracker.spark.hadoop_files import HadoopFiles
from flushtracker.spark.java_errors import JAVA_ERRORS, java_reason

logger = logging.getLogger(__name__)

_OPERATOR_STATE: Final = "state/0"
"""The folder of the query's only stateful operator, with a folder for each partition."""


class Remedies(NamedTuple):
    """Remedies for a checkpoint created with other settings, and for an unusable one."""

    change_back: str
    start_over: str


def read_state_rows(
    spark: SparkSession, checkpoint: str, shape_groups: int, fields: Sequence[str], remedies: Remedies
) -> tuple[int, list[Row]]:
    """The last committed batch, -1 if there is none, and a row ``(source, shape_group, *fields)`` for each group.

    ``fields`` are SQL over the columns of the state.

    Raises:
        StateError: the state cannot be read, or was written with another number of shape groups.
    """
    batch_id = last_commit(spark, checkpoint)
    if batch_id < 0:
        return batch_id, []
    try:
        _ = spark.streams.active  # In a fresh session the reader fails before this (SPARK-58973).
        state = spark.read.format("statestore").option("batchId", batch_id).load(checkpoint)
        kept = state.select("key.source", "key.shape_group", "value.groupState.*")
        rows = kept.selectExpr("source", "shape_group", "shape_groups", *fields).collect()
        partitions = sum(name.isdigit() for name in HadoopFiles(spark, checkpoint).names(_OPERATOR_STATE))
    except JAVA_ERRORS as error:
        raise StateError(
            f"the state in checkpoint {checkpoint} cannot be read: {java_reason(error)}; restore it, or "
            f"{remedies.start_over}"
        ) from error
    _refuse_other_shape_groups(rows, checkpoint, shape_groups, remedies)
    wanted = int(spark.conf.get("spark.sql.shuffle.partitions") or partitions)
    if partitions != wanted:
        # Spark uses the checkpoint's number.
        logger.warning(
            "shuffle_partitions stays %d, as in the checkpoint; to change it to %d, %s",
            *(partitions, wanted, remedies.start_over),
        )
    return batch_id, rows


def _refuse_other_shape_groups(rows: list[Row], checkpoint: str, shape_groups: int, remedies: Remedies) -> None:
    """With another number, shapes would be looked up in other groups, and their pending flushes lost."""
    for written in {row["shape_groups"] for row in rows} - {shape_groups}:
        raise StateError(
            f"checkpoint {checkpoint} was written with shape_groups {written}, and the job's shape_groups is "
            f"{shape_groups}; set it back to {written}, or {remedies.start_over}"
        )


def last_commit(spark: SparkSession, checkpoint: str) -> int:
    """The last batch that Spark committed, -1 if none; raises ``StateError`` if the checkpoint cannot be read."""
    try:
        names = HadoopFiles(spark, checkpoint).names("commits")
    except JAVA_ERRORS as error:
        raise StateError(f"checkpoint {checkpoint} cannot be read: {java_reason(error)}") from error
    return max((int(name) for name in names if name.isdigit()), default=-1)
