"""``DeadLetters``: refused flush notifications, which go from a batch's output to a Delta table.

They cannot be read, or another program than the shape's writer has sent them.
"""

import logging
from collections.abc import Mapping
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (the name that Spark's own documentation gives it)

from flushtracker.delta.dead_letter_table import DeadLetterTable
from flushtracker.errors import SinkError, listed, printable
from flushtracker.jobs.track.group_state import DEAD_LETTER
from flushtracker.spark.hadoop_files import spark_path
from flushtracker.spark.java_errors import JAVA_ERRORS, java_reason
from flushtracker.spark.row_files import try_on_executor, write_rows

logger = logging.getLogger(__name__)

_MOST_PLACES: Final = 100


class DeadLetters:
    """The dead letters that go to the table at ``uri``."""

    def __init__(self, uri: str, storage_options: Mapping[str, str] | None = None) -> None:
        self._path = spark_path(uri)
        self._table = DeadLetterTable(self._path, storage_options)

    def require_writable(self, spark: SparkSession) -> None:
        """Try the folder on the driver and on an executor, before anything depends on it.

        Raises:
            SinkError: it cannot be written, or has something else than the table.
        """
        self._table.require_usable()
        try:
            try_on_executor(spark, self._table.require_usable)
        except JAVA_ERRORS as error:
            raise SinkError(
                f"sink.dead_letters: {self._path} cannot be written by an executor: {java_reason(error)}; install the "
                "packages that executors need"
            ) from error

    def append(self, batch: DataFrame, batch_id: int, count: int) -> None:
        """Append the ``count`` dead letters among a batch's output rows; a rerun of the batch adds nothing.

        They delay nothing: if they cannot be stored, that is logged, and the next ones are tried again.
        """
        letters = batch.where(F.col("kind") == DEAD_LETTER).select(
            F.lit(batch_id).cast("bigint").alias("batch_id"),
            "place",
            "reason",
            "value",
            F.current_timestamp().alias("written_at"),
        )
        try:
            self._store(letters, batch_id, count)
        except SinkError as error:
            logger.error(  # noqa: TRY400  the reason is in the message
                "flush notifications refused and not stored batch_id=%d count=%d places=%s dead_letters=%s reason=%s",
                batch_id,
                count,
                _places(letters),
                self._path,
                error,
            )
        else:
            logger.warning(
                "flush notifications refused batch_id=%d count=%d dead_letters=%s", batch_id, count, self._path
            )

    def _store(self, letters: DataFrame, batch_id: int, count: int) -> None:
        # The query id belongs to the checkpoint: a new checkpoint restarts at batch 0.
        query_id = str(letters.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId"))
        if self._table.has(query_id, batch_id):
            return
        # The table is there before its data files, or a kill would leave them in a folder without a table.
        files = self._table.files()
        written = write_rows(letters.coalesce(1), files, lambda batch: pa.table(batch).cast(files.schema))
        files.require_rows(written, count)
        self._table.append(written, query_id, batch_id)


def _places(letters: DataFrame) -> str:
    """Where some of the dead letters were read, for the log; what kept them from being stored may keep this, too."""
    try:
        rows = letters.select("place").limit(_MOST_PLACES).collect()
    except JAVA_ERRORS as error:
        return f"unknown, {java_reason(error)}"
    return printable(listed(list(dict.fromkeys(row["place"] for row in rows)), others="others"))
