"""Runs on executors: reads the ranges of a plan, and makes the rows of the shape log that are specific to each.

A task has one connection, on which it reads one range after another. What is in memory is a batch of rows.
"""

import json
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import pyarrow as pa

from flushtracker import errors
from flushtracker.errors import FlushtrackerError
from flushtracker.jobs.snapshot.item_texts import ItemTexts
from flushtracker.jobs.snapshot.read_plan import ReadPlan
from flushtracker.postgres.copy_text import lines_of
from flushtracker.postgres.range_reader import RangeReader

SCHEMA: Final = "source string, shape_id string, op_offset bigint, key string, value string"
"""What :func:`read_function` returns; the other columns of the log are the same in all rows."""

APPLICATION_NAME: Final = "flushtracker_snapshot"
_ROWS_PER_BATCH: Final = 10_000
_CHARACTERS_PER_BATCH: Final = 4_000_000
_REPORT_EVERY_S: Final = 1.0
_MARK: Final = "a range could not be read: "


class RangeError(FlushtrackerError):
    """A range could not be read, in a form that survives the way to the driver as text."""

    def __init__(self, shape: int | None, error: FlushtrackerError) -> None:
        super().__init__(_MARK + json.dumps([shape, type(error).__name__, str(error)]))


def range_failure(text: str) -> tuple[int | None, FlushtrackerError] | None:
    """The shape's place in the plan, if it was read for one, and the error, of a :class:`RangeError` in ``text``."""
    _, mark, rest = text.partition(_MARK)
    if not mark:
        return None
    (shape, name, message), _ = json.JSONDecoder().raw_decode(rest)
    return shape, getattr(errors, name)(message)


def read_function(plan: ReadPlan, count: Callable[[int], None]) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """The function for ``mapInArrow``: numbers of tasks in, rows out; ``count`` gets the number of rows."""

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        numbers = (number for batch in batches for number in batch.column(0).to_pylist())
        first = next(numbers, None)
        if first is None:
            return
        worker = _Worker(plan)
        try:
            yield from worker.read(first)
            for number in numbers:
                yield from worker.read(number)
        finally:
            worker.close()
        count(worker.rows)

    return read


class _Worker:
    """One connection, and what was read over it."""

    def __init__(self, plan: ReadPlan) -> None:
        self._plan = plan
        self._ranges = self.rows = 0
        self._reported_s = time.monotonic()
        try:
            self._reader = RangeReader(plan.options, plan.snapshot_id, plan.tables, plan.statement_timeout_ms)
        except FlushtrackerError as error:
            raise RangeError(None, error) from error

    def read(self, number: int) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        task = self._plan.task(number)
        shape = self._plan.shapes[task.shape]
        reads, op_offset = shape.tables[task.table], task.first_op_offset
        texts = ItemTexts(reads.items)
        try:
            for lines in self._lines(number):
                keys, values = texts.of(lines)
                yield _batch(shape.source, shape.shape_id, op_offset, keys, values)
                op_offset += len(keys)
                self.rows += len(keys)
            self._ranges += 1
            self._report()
        except FlushtrackerError as error:
            raise RangeError(task.shape, error) from error

    def _lines(self, number: int) -> Iterator[list[str]]:
        """The rows of a task as COPY writes them, in lists that are neither small nor large."""
        task = self._plan.task(number)
        reads = self._plan.shapes[task.shape].tables[task.table]
        held, characters = list[str](), 0
        for rows in self._reader.read(self._plan.tables[task.table], reads.items.columns, reads.where, task.pages):
            held += lines_of(rows)
            characters += sum(map(len, rows))
            if len(held) >= _ROWS_PER_BATCH or characters >= _CHARACTERS_PER_BATCH:
                yield held
                held, characters = [], 0
        if held:
            yield held

    def _report(self) -> None:
        """Show how far this connection is, for the driver, and for whoever looks at the server."""
        if time.monotonic() - self._reported_s >= _REPORT_EVERY_S:
            self._reader.report(f"{APPLICATION_NAME} {self._plan.attempt} {self._ranges} {self.rows}")
            self._reported_s = time.monotonic()

    def close(self) -> None:
        self._reader.close()


def _batch(source: str, shape_id: str, op_offset: int, keys: list[str], values: list[str]) -> pa.RecordBatch:
    count = len(keys)
    arrays = [
        pa.repeat(source, count),
        pa.repeat(shape_id, count),
        pa.array(range(op_offset, op_offset + count), pa.int64()),
        pa.array(keys, pa.string()),
        pa.array(values, pa.string()),
    ]
    return pa.RecordBatch.from_arrays(arrays, names=["source", "shape_id", "op_offset", "key", "value"])
