"""``DeadLetters``: the Delta table of malformed flush notifications."""

import logging
from typing import Final

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (the name that Spark's own documentation gives it)

from flushtracker.delta.commits import LOG_FOLDER
from flushtracker.delta.table_folder import foreign_names, is_ours, not_empty
from flushtracker.errors import SinkError, listed, printable
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


_COLUMNS: Final = ("batch_id", "place", "reason", "value", "written_at")
_KIND: Final = "dead-letter table"
_KEY: Final = "sink.dead_letters"
_MOST_PLACES: Final = 100


class DeadLetters:
    """The Delta table at ``path``; the first dead letter creates it."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._commits: int | None = None
        self._logged: set[str] = set()

    def require_writable(self, spark: SparkSession) -> None:
        """Try the folder, before anything depends on it.

        Raises:
            SinkError: it cannot be written, or has something else than the table.
        """
        try:
            files = HadoopFiles(spark, self._path)
            names = files.names()
            files.try_write()
            is_table = LOG_FOLDER in names and DeltaTable.isDeltaTable(spark, self._path)
            columns = DeltaTable.forPath(spark, self._path).toDF().columns if is_table else None
        except JAVA_ERRORS as error:
            raise SinkError(
                f"sink.dead_letters: {self._path} cannot be written: {java_reason(error)}; name a folder "
                "that Spark can write, and give Spark the jars and settings of its storage"
            ) from error
        if columns is not None:
            if missing := [name for name in _COLUMNS if name not in columns]:
                raise SinkError(
                    f"{self._path} is a Delta table without the columns {', '.join(missing)}, so it is not a {_KIND}; "
                    f"name another folder in {_KEY}"
                )
        elif found := foreign_names(names):
            raise SinkError(not_empty(_KIND, _KEY, self._path, found))

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
            self._store(letters, batch_id)
        except JAVA_ERRORS as error:
            logger.error(  # noqa: TRY400  the reason is in the message
                "unreadable flush notifications not stored batch_id=%d count=%d places=%s dead_letters=%s reason=%s",
                batch_id,
                count,
                _places(letters),
                self._path,
                java_reason(error),
            )
        else:
            logger.warning(
                "unreadable flush notifications batch_id=%d count=%d dead_letters=%s", batch_id, count, self._path
            )

    def _store(self, letters: DataFrame, batch_id: int) -> None:
        spark = letters.sparkSession
        before = self._count_commits(spark) if self._commits is None else self._commits
        if before == 0:
            # Before its data files, or a kill would leave them in a folder without a table.
            empty = spark.createDataFrame([], letters.schema)
            empty.write.format("delta").mode("append").options(**_RETENTION).save(self._path)
            before = 1
        # The query id belongs to the checkpoint: a new checkpoint restarts at batch 0.
        query_id = spark.sparkContext.getLocalProperty("sql.streaming.queryId")
        write = letters.coalesce(1).write.format("delta").mode("append")
        write.option("txnAppId", query_id).option("txnVersion", batch_id).save(self._path)
        self._commits = before + 1
        if self._commits // COMPACT_EVERY > before // COMPACT_EVERY:
            self._compact(spark)

    def _count_commits(self, spark: SparkSession) -> int:
        """The number of commits of the table, from the names of the files in its log."""
        names = HadoopFiles(spark, self._path).names("_delta_log")
        return max((int(name[:20]) + 1 for name in names if name[:20].isdigit() and name.endswith(".json")), default=0)

    def _compact(self, spark: SparkSession) -> None:
        """Merge small files, and delete replaced ones past their retention; a failure only costs time later.

        A vacuum would delete files of others, too, so beside such files there is none.
        """
        try:
            table = DeltaTable.forPath(spark, self._path)
            table.optimize().executeCompaction()
            names = HadoopFiles(spark, self._path).names()
            if foreign := [name for name in foreign_names(names) if not is_ours(name)]:
                self._log_foreign(foreign)
            else:
                table.vacuum()
        except JAVA_ERRORS as error:
            logger.warning("dead letters not compacted path=%s reason=%s", self._path, java_reason(error))

    def _log_foreign(self, foreign: list[str]) -> None:
        if new := [name for name in foreign if name not in self._logged]:
            self._logged.update(new)
            logger.warning(
                "the folder of the %s has files that are not the table's; replaced files are not deleted until these "
                "are moved elsewhere path=%s count=%d files=%s",
                _KIND,
                self._path,
                len(new),
                printable(listed(new)),
            )


def _places(letters: DataFrame) -> str:
    """Where some of the dead letters were read, for the log; what kept them from being stored may keep this, too."""
    try:
        rows = letters.select("place").limit(_MOST_PLACES).collect()
    except JAVA_ERRORS as error:
        return f"unknown, {java_reason(error)}"
    return printable(listed(list(dict.fromkeys(row["place"] for row in rows)), others="others"))
