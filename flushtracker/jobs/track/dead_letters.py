"""``DeadLetters``: the Delta table of malformed flush notifications."""

import logging
from typing import Final

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (the name that Spark's own documentation gives it)

from flushtracker.errors import SinkError
from flushtracker.jobs.track.group_state import DEAD_LETTER
from flushtracker.spark.hadoop_files import HadoopFiles
from flushtracker.spark.java_errors import JAVA_ERRORS, java_reason

logger = logging.getLogger(__name__)

COMPACT_EVERY: Final = 100
"""Commits of the table between two compactions, which take seconds."""

_RETENTION: Final = {
    "delta.logRetentionDuration": "interval 1 days",
    "delta.deletedFileRetentionDuration": "interval 1 hours",
}
"""Properties of a new table; with Delta's defaults, the log of each batch would be kept for a month."""


class DeadLetters:
    """The Delta table at ``path``, which need not exist yet."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._commits: int | None = None

    def append(self, batch: DataFrame, batch_id: int, count: int) -> None:
        """Append the ``count`` dead letters among a batch's output rows; a rerun of the batch adds nothing.

        Raises:
            SinkError: the table cannot be written.
        """
        spark = batch.sparkSession
        letters = batch.where(F.col("kind") == DEAD_LETTER).select(
            F.lit(batch_id).cast("bigint").alias("batch_id"),
            "place",
            "reason",
            "value",
            F.current_timestamp().alias("written_at"),
        )
        # The query id belongs to the checkpoint: a new checkpoint restarts at batch 0.
        query_id = spark.sparkContext.getLocalProperty("sql.streaming.queryId")
        write = letters.coalesce(1).write.format("delta").mode("append").options(**_RETENTION)
        try:
            before = self._count_commits(spark) if self._commits is None else self._commits
            write.option("txnAppId", query_id).option("txnVersion", batch_id).save(self._path)
        except JAVA_ERRORS as error:
            raise SinkError(f"dead letters cannot be written to {self._path}: {java_reason(error)}") from error
        logger.warning(
            "unreadable flush notifications batch_id=%d count=%d dead_letters=%s", batch_id, count, self._path
        )
        self._commits = before + 1
        if self._commits // COMPACT_EVERY > before // COMPACT_EVERY:
            self._compact(spark)

    def _count_commits(self, spark: SparkSession) -> int:
        """The number of commits of the table, from the names of the files in its log."""
        names = HadoopFiles(spark, self._path).names("_delta_log")
        return max((int(name[:20]) + 1 for name in names if name[:20].isdigit() and name.endswith(".json")), default=0)

    def _compact(self, spark: SparkSession) -> None:
        """Merge small files, and delete replaced ones past their retention; a failure only costs time later."""
        try:
            table = DeltaTable.forPath(spark, self._path)
            table.optimize().executeCompaction()
            table.vacuum()
        except JAVA_ERRORS as error:
            logger.warning("dead letters not compacted path=%s reason=%s", self._path, java_reason(error))
