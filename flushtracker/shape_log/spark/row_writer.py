"""``write_rows``: writes rows of a DataFrame as Parquet files of a table, on executors."""

from collections.abc import Callable, Iterable, Iterator
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame

from flushtracker.delta.data_file import WrittenFile
from flushtracker.delta.row_files import RowFiles
from flushtracker.errors import SinkError
from flushtracker.shape_log.spark.task_files import Counted, written_in_task
from flushtracker.spark.java_errors import JAVA_ERRORS, java_reason
from flushtracker.spark.workers import spare_imports, task_attempts

_SCHEMA: Final = "file string, rows bigint, error string"

BlockOf = Callable[[pa.RecordBatch], pa.Table]


def write_rows(rows: DataFrame, files: RowFiles, block_of: BlockOf) -> list[WrittenFile]:
    """Write the rows; ``block_of`` converts a batch to a block of table rows, on executors.

    Raises:
        SinkError: the storage fails, or the files do not have all rows. Its cause may be the executors' Java error.
    """
    attempts = task_attempts(rows.sparkSession)

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        spare_imports()
        counted = Counted(batches)
        written, error = written_in_task(files, map(block_of, counted), attempts)
        texts = [*map(str, written), None]
        # The last row is the task's own.
        counts, errors = [0] * len(written) + [counted.rows], [None] * len(written) + [error]
        columns = [pa.array(texts, pa.string()), pa.array(counts, pa.int64()), pa.array(errors, pa.string())]
        yield pa.RecordBatch.from_arrays(columns, ["file", "rows", "error"])

    try:
        found = rows.mapInArrow(write, _SCHEMA).collect()
    except JAVA_ERRORS as error:
        raise SinkError(f"{files.kind} {files.uri} cannot be written: {java_reason(error)}") from error
    written = [WrittenFile.parse(row["file"]) for row in found if row["file"] is not None]
    if failed := sorted(row["error"] for row in found if row["error"] is not None):
        files.discard(written)
        raise SinkError(failed[0])
    files.require(written)
    files.require_rows(written, sum(row["rows"] for row in found))
    return written
