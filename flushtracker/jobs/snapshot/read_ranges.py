"""Runs on executors: reads the ranges of a plan, and makes rows of the shape log of them.

A Spark task has one connection, on which it reads one range after another. It holds one batch of rows in memory.
"""

import json
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import pyarrow as pa

from flushtracker import errors
from flushtracker.errors import FlushtrackerError
from flushtracker.jobs.snapshot.read_plan import ItemColumns, ReadPlan
from flushtracker.postgres.copy_text import lines_of, values_of
from flushtracker.postgres.range_reader import RangeReader
from flushtracker.shapes.item_key import key_values

SCHEMA: Final = "source string, shape_id string, op_offset bigint, key string, value string"
"""The rows that :func:`read_function` returns; the other columns of the log are the same in all rows."""

APPLICATION_NAME: Final = "flushtracker_snapshot"
_ROWS_PER_BATCH: Final = 10_000
_CHARACTERS_PER_BATCH: Final = 4_000_000
_REPORT_EVERY_S: Final = 1.0
_MARK: Final = "a range could not be read: "

_quoted = json.JSONEncoder(ensure_ascii=False).encode


class RangeError(FlushtrackerError):
    """A range could not be read; :func:`range_failure` recovers the error from the text that reaches the driver."""

    def __init__(self, shape: int | None, error: FlushtrackerError) -> None:
        super().__init__(_MARK + json.dumps([shape, type(error).__name__, str(error)]))


def range_failure(text: str) -> tuple[int | None, FlushtrackerError] | None:
    """The error of a :class:`RangeError` in ``text``, with the shape's index in the plan, if it has one."""
    _, mark, rest = text.partition(_MARK)
    if not mark:
        return None
    (shape, name, message), _ = json.JSONDecoder().raw_decode(rest)
    return shape, getattr(errors, name)(message)


def read_function(plan: ReadPlan, count: Callable[[int], None]) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """The function for ``mapInArrow``: numbers of tasks in, rows out; it passes the number of rows to ``count``."""

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
    """One connection, and the number of ranges and rows read over it."""

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
        """The rows of a task as COPY writes them, in lists of limited size."""
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
        """Report this connection's progress as its application name, to the driver and to the server's operators."""
        if time.monotonic() - self._reported_s >= _REPORT_EVERY_S:
            self._reader.report(f"{APPLICATION_NAME} {self._plan.attempt} {self._ranges} {self.rows}")
            self._reported_s = time.monotonic()

    def close(self) -> None:
        self._reader.close()


class ItemTexts:
    """Key and value of inserts, as :mod:`flushtracker.shapes.log_items` makes them of the stream's rows.

    A faster way to the same texts: no change, item or mapping for each row, and none of the packages that compile a
    condition, which executors lack. The rows have exactly these ``columns``.
    """

    def __init__(self, columns: ItemColumns) -> None:
        names = (_quoted(name).replace("%", "%%") for name in columns.columns)
        self._value = "{" + ",".join(f"{name}:%s" for name in names) + "}"
        self._key_prefix = columns.key_prefix
        self._key = [columns.columns.index(name) for name in columns.key_columns]
        self._is_empty = not columns.columns

    def of(self, lines: Iterable[str]) -> tuple[list[str], list[str]]:
        """The keys and the values of rows in COPY's text format, without line breaks."""
        keys, values = list[str](), list[str]()
        template, prefix, key, quoted = self._value, self._key_prefix, self._key, _quoted
        for line in lines:
            if "\\" in line:
                row = values_of(line)
                values.append(template % tuple(["null" if text is None else quoted(text) for text in row]))
                keys.append(prefix + key_values([row[index] for index in key]))
            else:
                # No value is NULL, and none is escaped.
                texts = [] if self._is_empty else line.split("\t")
                values.append(template % tuple(map(quoted, texts)))
                keys.append(prefix + key_values([texts[index] for index in key]))
        return keys, values


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
