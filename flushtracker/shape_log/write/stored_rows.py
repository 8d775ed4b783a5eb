"""Stores the rows that the state function returns, in the same task, and passes the rest of its output on.

The rows of a task become files of the shape log. If there are few, the driver writes one file with the rows of all
tasks.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from flushtracker.delta.data_file import WrittenFile
from flushtracker.delta.row_files import RowFiles
from flushtracker.errors import SinkError
from flushtracker.shape_log.spark.task_files import written_in_task
from flushtracker.shape_log.write.group_state import FILE, LOG_ROWS
from flushtracker.shape_log.write.packed_rows import pack_blocks, unpacked
from flushtracker.spark.workers import ERROR, spare_imports

FEW_BYTES: Final = 1 << 20
"""A task with at most this many bytes of rows passes them to the driver, which holds as much for each task."""

_Batches = Iterable[pa.RecordBatch]
_Write = Callable[[Iterable[pa.Table]], tuple[list[WrittenFile], str | None]]


def store_function(
    files: RowFiles, attempts: int, few_bytes: int = FEW_BYTES
) -> Callable[[_Batches], Iterator[pa.RecordBatch]]:
    """The function for ``mapInArrow``; its output has the columns of its input. At most ``few_bytes`` go to the driver.

    ``attempts``: see :func:`~flushtracker.shape_log.spark.task_files.written_in_task`.
    """
    write = partial(written_in_task, files, attempts=attempts)

    def store(batches: _Batches) -> Iterator[pa.RecordBatch]:
        spare_imports()
        reports = list[pa.RecordBatch]()
        blocks = _blocks(batches, reports)
        stored = list(_stored(write, blocks, few_bytes))
        # All input is read, even after an error: the state function must run to its end.
        for _ in blocks:
            pass
        yield from reports
        if stored:
            yield pa.RecordBatch.from_pylist(stored, reports[0].schema)

    return store


def _blocks(batches: _Batches, reports: list[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The log rows in the output of the state function; the rest is added to ``reports``."""
    for batch in batches:
        packed = batch.column("packed")
        reports.append(batch.filter(pc.is_null(packed)))
        yield from unpacked(value.as_buffer() for value in packed.drop_null())


def _stored(write: _Write, blocks: Iterator[pa.Table], few_bytes: int) -> Iterator[dict[str, Any]]:
    few, size = list[pa.Table](), 0
    for block in blocks:
        few.append(block)
        size += block.nbytes
        if size > few_bytes:
            written, reason = write(chain(few, blocks))
            yield from (_row(FILE, value=str(file), rows=file.rows) for file in written)
            if reason is not None:
                yield _row(ERROR, report=SinkError.__name__, reason=reason)
            return
    if few:
        yield _row(LOG_ROWS, packed=pack_blocks(pa.concat_tables(few)))


def _row(kind: str, **columns: object) -> dict[str, Any]:
    return {"kind": kind, "tx_offset": -1, "op_offset": -1, "rows": 0, **columns}
