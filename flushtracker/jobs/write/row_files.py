"""``RowFiles``: writes the rows of a batch as files of the shape log, on the executors; committing them comes after.

Spark's own Parquet writer does it, into a folder of the batch below the log's; the files are then moved out of it. A
kill leaves files that no version of the table names: upkeep deletes them.
"""

from typing import Final

from pyspark.sql import DataFrame

from flushtracker.delta.log.shape_log_files import LogFiles, WrittenFile
from flushtracker.errors import SinkError
from flushtracker.spark.hadoop_files import HadoopFiles
from flushtracker.spark.java_errors import JAVA_ERRORS, java_reason

_ROWS_PER_FILE: Final = 100_000
"""A batch has one file for each of as many rows, so that small batches leave few files to compact."""

_OPTIONS: Final = {
    "compression": "zstd",
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
}


class RowFiles:
    """The files of the log at ``path``. Every failure is a ``SinkError``."""

    def __init__(self, path: str, files: LogFiles) -> None:
        self._path = path
        self._files = files

    def write(self, rows: DataFrame, count: int, version: int) -> list[WrittenFile]:
        """Write ``count`` rows; ``version`` is that of the batch's append. They are durable when this returns."""
        folder = f"append-{version:020}"
        write = rows.coalesce(-(-count // _ROWS_PER_FILE)).write.options(**_OPTIONS)
        try:
            write.parquet(f"{self._path}/{folder}")
            names = self._move_out(HadoopFiles(rows.sparkSession, self._path), folder)
        except JAVA_ERRORS as error:
            raise SinkError(f"shape log {self._path} cannot be written: {java_reason(error)}") from error
        found = [self._files.written(name) for name in names]
        if (written := sum(file.rows for file in found)) != count:
            raise SinkError(
                f"shape log {self._path}: {written} of {count} rows of {folder} are there; another program removes its "
                "files: let none but flushtracker write there"
            )
        return found

    @staticmethod
    def _move_out(files: HadoopFiles, folder: str) -> list[str]:
        names = [name for name in files.names(folder) if name.endswith(".parquet")]
        for name in names:
            files.move(f"{folder}/{name}", name)
        files.delete_folder(folder)
        return names
