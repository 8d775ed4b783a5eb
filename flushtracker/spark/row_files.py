"""``write_rows``: rows of a DataFrame as Parquet files of a table, which its executors write."""

from collections.abc import Callable, Iterable, Iterator
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame

from flushtracker.delta.data_file import WrittenFile
from flushtracker.delta.row_files import RowFiles
from flushtracker.errors import SinkError
from flushtracker.spark.java_errors import JAVA_ERRORS, java_reason
from flushtracker.spark.workers import spare_imports

_SCHEMA: Final = "file string, error string"

BlockOf = Callable[[pa.RecordBatch], pa.Table]


def write_rows(rows: DataFrame, files: RowFiles, block_of: BlockOf) -> list[WrittenFile]:
    """Write the rows; ``block_of`` makes a block of the table's rows of a batch of them, on executors.

    Raises:
        SinkError: the storage fails. A Java error of the executors is its cause.
    """

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        spare_imports()
        batches = iter(batches)
        try:
            for file in files.write(map(block_of, batches)):
                yield pa.RecordBatch.from_pydict({"file": [str(file)], "error": pa.nulls(1, pa.string())})
        except SinkError as error:
            yield pa.RecordBatch.from_pydict({"file": pa.nulls(1, pa.string()), "error": [str(error)]})

    try:
        found = rows.mapInArrow(write, _SCHEMA).collect()
    except JAVA_ERRORS as error:
        raise SinkError(f"{files.kind} {files.uri} cannot be written: {java_reason(error)}") from error
    if failed := sorted(row["error"] for row in found if row["error"] is not None):
        raise SinkError(failed[0])
    written = [WrittenFile.parse(row["file"]) for row in found]
    files.require(written)
    return written
