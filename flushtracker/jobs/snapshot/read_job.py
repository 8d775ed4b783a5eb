"""``ReadJob``: the Spark job of one step of an attempt, which reads some ranges of a plan into files.

The files are complete once the job has ended, and are part of the log once a commit adds them.
"""

import uuid
from typing import Final

from pyspark import InheritableThread
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from flushtracker.delta.data_file import WrittenFile
from flushtracker.delta.log.table import SCHEMA
from flushtracker.jobs.snapshot.item_rows import SCHEMA as READ_SCHEMA
from flushtracker.jobs.snapshot.read_plan import ReadPlan
from flushtracker.jobs.snapshot.read_ranges import failure_of, range_failures, read_function
from flushtracker.spark.java_errors import JAVA_ERRORS, java_text
from flushtracker.spark.row_files import RowFiles
from flushtracker.wal.log_offset import LogOffset

_TYPES: Final = {"string": "string", "int64": "bigint", "timestamp[us, tz=UTC]": "timestamp"}


class ReadJob:
    """Runs in a thread of its own, with one connection for each of ``connections`` tasks."""

    def __init__(self, spark: SparkSession, files: RowFiles, plan: ReadPlan, numbers: range, connections: int) -> None:
        self._spark, self._files, self._plan = spark, files, plan
        self._numbers, self._connections = numbers, connections
        self._group = f"flushtracker snapshot {plan.attempt}"
        self._written: list[WrittenFile] = []
        self._failure: Exception | None = None
        self._thread = InheritableThread(target=self._run, name="snapshot-read", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wait(self, timeout_s: float) -> bool:
        """Whether the job has ended within this time."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def cancel(self) -> None:
        """End the job."""
        while not self.wait(0.5):
            self._spark.sparkContext.cancelJobGroup(self._group)

    def written(self) -> list[WrittenFile]:
        """The files of a job that has ended, with all rows of its ranges.

        Raises:
            ShapeReadError: ranges cannot be read, for some shapes.
            FlushtrackerError: ranges cannot be read for any shape, or files cannot be written.
            Exception: any other, such as py4j's, if the JVM has gone.
        """
        if self._failure is None:
            return self._written
        cause = self._failure.__cause__
        failures = range_failures(java_text(cause)) if isinstance(cause, JAVA_ERRORS) else {}
        if failures:
            raise failure_of(failures) from self._failure
        raise self._failure

    def _run(self) -> None:
        try:
            self._spark.sparkContext.setJobGroup(self._group, self._group, interruptOnCancel=True)
            written = Observation()
            rows = self._rows().observe(written, F.count(F.lit(1)).alias("rows"))
            # Each try has a folder of its own.
            folder = f"snapshot-{self._plan.attempt:020}-{uuid.uuid4().hex}"
            self._written = self._files.write(rows, folder, lambda: int(written.get["rows"]))
        except Exception as error:  # noqa: BLE001  after any error, nothing counts as written
            self._failure = error

    def _rows(self) -> DataFrame:
        """The rows of all ranges; a connection reads neighbouring ranges, so that rows of a shape stay together."""
        numbers = self._spark.range(
            self._numbers.start, self._numbers.stop, 1, min(self._connections, len(self._numbers))
        )
        read = numbers.mapInArrow(read_function(self._plan), READ_SCHEMA)
        if len(self._plan.shapes) > 1:
            # So that a reader of one shape opens few files.
            read = read.sortWithinPartitions("shape_id", "op_offset")
        tx_offset, _ = LogOffset.last_before_real_offsets()
        constants = {
            "source": F.lit(self._plan.source),
            "tx_offset": F.lit(tx_offset),
            "operation": F.lit("insert"),
            "xid": F.lit(0),
            "chunk": F.lit(self._plan.attempt),
        }
        return _log_rows(read.withColumns(constants))


def _log_rows(rows: DataFrame) -> DataFrame:
    """The columns of the shape log, with their types; columns that ``rows`` lack are null."""
    columns = [
        (F.col(field.name) if field.name in rows.columns else F.lit(None))
        .cast(_TYPES[str(field.type)])
        .alias(field.name)
        for field in SCHEMA
    ]
    return rows.select(*columns)
