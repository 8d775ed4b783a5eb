"""Writes a task's rows to files of a table, in its Python worker."""

from collections.abc import Iterable, Iterator

import pyarrow as pa

from flushtracker.delta.data_file import WrittenFile
from flushtracker.delta.row_files import RowFiles
from flushtracker.errors import SinkError
from flushtracker.spark.workers import is_last_attempt


class Counted:
    """Iterates over batches and counts their ``rows``."""

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._batches = batches
        self.rows = 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self._batches:
            self.rows += len(batch)
            yield batch


def written_in_task(files: RowFiles, blocks: Iterable[pa.Table], attempts: int) -> tuple[list[WrittenFile], str | None]:
    """In a task: write all blocks; return the files, and the reason if not all could be written.

    A task that cannot write fails, and Spark restarts it. The last of its ``attempts`` returns the reason instead, so
    that the driver also gets the other tasks' files, to discard them.
    """
    written = list[WrittenFile]()
    try:
        for file in files.write(blocks):
            written.append(file)
    except SinkError as error:
        if not is_last_attempt(attempts):
            files.discard(written)
            raise
        return written, str(error)
    return written, None
