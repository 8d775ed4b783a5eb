"""``RowFiles``: rows as Parquet files of a Delta table, written by Spark on executors, for a commit by the driver."""

from collections.abc import Callable
from typing import Final

from pyspark.sql import DataFrame

from flushtracker.delta.data_file import WrittenFile
from flushtracker.errors import SinkError
from flushtracker.spark.hadoop_files import HadoopFiles
from flushtracker.spark.java_errors import JAVA_ERRORS, java_reason

ROWS_PER_FILE: Final = 100_000
"""At most, so that upkeep seldom has to divide a file. Small batches leave few files to compact."""

_OPTIONS: Final = {
    "compression": "zstd",
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    "maxRecordsPerFile": str(ROWS_PER_FILE),
}
# Delta knows no other type of timestamp.
_TIMESTAMP_TYPE: Final = ("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")


class RowFiles:
    """Writes files of the ``kind`` of table at ``path``; ``describe`` says of a file there what its commit needs.

    Spark's own Parquet writer writes into a folder below the table's, whose name must be new each time; the files are
    then moved out of it. A kill leaves files that no version of the table names, which upkeep deletes.
    """

    def __init__(self, kind: str, path: str, describe: Callable[[str], WrittenFile]) -> None:
        self._kind = f"{kind} {path}"
        self._path = path
        self._describe = describe

    def write(self, rows: DataFrame, folder: str, count: Callable[[], int]) -> list[WrittenFile]:
        """Write the rows; ``count`` says afterwards how many there are, so that none can be missing unnoticed.

        Raises:
            SinkError: the storage fails, or rows are missing. A Java error of the executors is its cause.
        """
        spark = rows.sparkSession
        try:
            spark.conf.set(*_TIMESTAMP_TYPE)
            rows.write.options(**_OPTIONS).parquet(f"{self._path}/{folder}")
            names = self._move_out(HadoopFiles(spark, self._path), folder)
        except JAVA_ERRORS as error:
            raise SinkError(f"{self._kind} cannot be written: {java_reason(error)}") from error
        found = [self._describe(name) for name in names]
        if (written := sum(file.rows for file in found)) != (expected := count()):
            raise SinkError(
                f"{self._kind}: {written} of {expected} rows of {folder} are there; another program removes its "
                "files: let only flushtracker write there"
            )
        return [file for file in found if file.rows]

    @staticmethod
    def _move_out(files: HadoopFiles, folder: str) -> list[str]:
        names = [name for name in files.names(folder) if name.endswith(".parquet")]
        for name in names:
            files.move(f"{folder}/{name}", name)
        files.delete_folder(folder)
        return names
