"""``ReadJob``: the Spark job for one step of an attempt, which reads some ranges of a plan into files.

The files are complete once the job has ended, and are part of the log once a commit adds them.
"""

from collections.abc import Callable

import pyarrow as pa
from pyspark import InheritableThread
from pyspark.sql import DataFrame, SparkSession

from flushtracker.delta.data_file import WrittenFile
from flushtracker.delta.row_files import RowFiles
from flushtracker.shape_log.snapshot.item_rows import SCHEMA as READ_SCHEMA
from flushtracker.shape_log.snapshot.read_plan import ReadPlan
from flushtracker.shape_log.snapshot.read_ranges import failure_of, range_failures, read_function
from flushtracker.shape_log.spark.row_writer import write_rows
from flushtracker.shape_log.table.columns import filled_rows
from flushtracker.spark.java_errors import JAVA_ERRORS, java_text
from flushtracker.wal.log_offset import LogOffset


class ReadJob:
    """Runs in its own thread, with one connection for each of ``connections`` tasks."""

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
        """Whether the job has ended within ``timeout_s``."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def cancel(self) -> None:
        while not self.wait(0.5):
            self._spark.sparkContext.cancelJobGroup(self._group)

    def written(self) -> list[WrittenFile]:
        """The files of an ended job, with all rows of its ranges.

        Raises:
            ShapeReadError: ranges cannot be read, for some shapes.
            FlushtrackerError: ranges cannot be read for any shape, or files cannot be written.
            Exception: any other, such as py4j's, if the JVM has exited.
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
            self._written = write_rows(self._rows(), self._files, to_log_rows(self._plan.source, self._plan.attempt))
        except Exception as error:  # noqa: BLE001  after any error, nothing counts as written
            self._failure = error

    def _rows(self) -> DataFrame:
        """The rows of all ranges; a connection reads adjacent ranges, so that rows of a shape stay together."""
        numbers = self._spark.range(
            self._numbers.start, self._numbers.stop, 1, min(self._connections, len(self._numbers))
        )
        read = numbers.mapInArrow(read_function(self._plan), READ_SCHEMA)
        if len(self._plan.shapes) > 1:
            # So that a reader of one shape opens few files.
            read = read.sortWithinPartitions("shape_id", "op_offset")
        return read


def to_log_rows(source: str, attempt: int) -> Callable[[pa.RecordBatch], pa.Table]:
    """Returns the function that converts read rows to rows of the shape log; columns missing in both are null."""

    def rows_of(read: pa.RecordBatch) -> pa.Table:
        tx_offset, _ = LogOffset.last_before_real_offsets()
        same = {"source": source, "tx_offset": tx_offset, "operation": "insert", "xid": 0, "chunk": attempt}
        return filled_rows(dict(zip(read.schema.names, read.columns, strict=True)), same, len(read))

    return rows_of
