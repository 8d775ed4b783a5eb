"""``AppendJob``: the Spark job of one attempt, which appends all rows of a plan to the shape log in one commit.

Executors write files, into a folder of the attempt. Once all are written, the driver adds them to the log.
"""

import logging
import uuid
from datetime import datetime, timezone
from typing import Final

from pyspark import InheritableThread
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from flushtracker.delta.log.files import LogFiles
from flushtracker.delta.log.table import SCHEMA
from flushtracker.errors import FlushtrackerError
from flushtracker.jobs.snapshot.read_plan import ReadPlan
from flushtracker.jobs.snapshot.read_ranges import SCHEMA as READ_SCHEMA
from flushtracker.jobs.snapshot.read_ranges import range_failure, read_function
from flushtracker.shape_log.shape_snapshot import SNAPSHOT, ShapeSnapshot
from flushtracker.spark.java_errors import JAVA_ERRORS, java_text
from flushtracker.spark.row_files import RowFiles
from flushtracker.wal.log_offset import LogOffset

logger = logging.getLogger(__name__)

_TYPES: Final = {"string": "string", "int64": "bigint", "timestamp[us, tz=UTC]": "timestamp"}


class ShapeReadError(Exception):
    """The rows of the shape with this index in the plan cannot be read; those of others may be."""

    def __init__(self, shape: int, reason: FlushtrackerError) -> None:
        super().__init__(str(reason))
        self.shape, self.reason = shape, reason


class AppendJob:
    """Runs in a thread of its own; ``rows`` is the number of rows, once it has ended."""

    def __init__(
        self,
        spark: SparkSession,
        log: LogFiles,
        files: RowFiles,
        plan: ReadPlan,
        snapshot: ShapeSnapshot,
        connections: int,
    ) -> None:
        self._spark, self._plan, self._snapshot = spark, plan, snapshot
        self._log, self._files = log, files
        self._connections = connections
        self._group = f"flushtracker snapshot {plan.attempt}"
        self._count = spark.sparkContext.accumulator(0)
        self._failure: Exception | None = None
        self._thread = InheritableThread(target=self._run, name="snapshot-append", daemon=True)

    @property
    def rows(self) -> int:
        return int(self._count.value)

    def start(self) -> None:
        self._thread.start()

    def wait(self, timeout_s: float) -> bool:
        """Whether the job has ended within this time."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def cancel(self) -> None:
        """End the job; it appends nothing, unless it has already appended everything."""
        while not self.wait(0.5):
            self._spark.sparkContext.cancelJobGroup(self._group)

    def require_done(self) -> None:
        """Raise the error of a job that has ended without appending anything.

        Raises:
            ShapeReadError: ranges cannot be read, for one shape.
            FlushtrackerError: ranges cannot be read for any shape, or the log cannot be written.
            Exception: any other, such as py4j's, if the JVM has gone.
        """
        if self._failure is None:
            return
        cause = self._failure.__cause__
        failure = range_failure(java_text(cause)) if isinstance(cause, JAVA_ERRORS) else None
        if failure is None:
            raise self._failure
        shape, error = failure
        if shape is None:
            raise error from self._failure
        raise ShapeReadError(shape, error) from self._failure

    def _run(self) -> None:
        try:
            self._spark.sparkContext.setJobGroup(self._group, self._group, interruptOnCancel=True)
            written = Observation()
            rows = self._items().unionByName(self._ends()).observe(written, F.count(F.lit(1)).alias("rows"))
            # Each try of an attempt has a folder of its own.
            folder = f"snapshot-{self._plan.attempt:020}-{uuid.uuid4().hex}"
            files = self._files.write(rows, folder, lambda: int(written.get["rows"]))
            keys = [(shape.source, shape.shape_id) for shape in self._plan.shapes]
            self._log.append_snapshot(files, keys, self._snapshot)
        except Exception as error:  # noqa: BLE001  after any error, nothing counts as appended
            self._failure = error

    def _items(self) -> DataFrame:
        """The rows of all ranges; a connection reads neighbouring ranges, so that rows of a shape stay together."""
        tx_offset, _ = LogOffset.last_before_real_offsets()
        tasks = self._plan.tasks
        numbers = self._spark.range(0, tasks, 1, min(self._connections, max(1, tasks)))
        read = numbers.mapInArrow(read_function(self._plan, self._count.add), READ_SCHEMA)
        constants = {
            "tx_offset": F.lit(tx_offset),
            "operation": F.lit("insert"),
            "xid": F.lit(0),
            "chunk": F.lit(self._plan.attempt),
        }
        return _log_rows(read.withColumns(constants))

    def _ends(self) -> DataFrame:
        """The row that ends each shape's snapshot."""
        shapes = [(shape.source, shape.shape_id) for shape in self._plan.shapes]
        tx_offset, op_offset = LogOffset.last_before_real_offsets()
        constants = {
            "tx_offset": F.lit(tx_offset),
            "op_offset": F.lit(op_offset),
            "operation": F.lit(SNAPSHOT),
            "value": F.lit(self._snapshot.to_json()),
            "xid": F.lit(0),
            "commit_timestamp": F.lit(datetime.now(timezone.utc)),
            "chunk": F.lit(self._plan.attempt),
        }
        ends = self._spark.createDataFrame(shapes, "source string, shape_id string").coalesce(1)
        return _log_rows(ends.withColumns(constants))


def _log_rows(rows: DataFrame) -> DataFrame:
    """The columns of the shape log, with their types; columns that ``rows`` lack are null."""
    columns = [
        (F.col(field.name) if field.name in rows.columns else F.lit(None))
        .cast(_TYPES[str(field.type)])
        .alias(field.name)
        for field in SCHEMA
    ]
    return rows.select(*columns)
