"""Runs on executors: reads each range of a plan once for all shapes, and converts it to rows of the shape log.

A Spark task has one connection, over which it reads its ranges in turn. It holds one batch of lines in memory.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import pyarrow as pa

from flushtracker import errors
from flushtracker.errors import FlushtrackerError, PostgresError, PostgresUnavailableError
from flushtracker.postgres.range_query import RowSelection
from flushtracker.postgres.range_reader import RangeReader
from flushtracker.shape_log.snapshot.item_rows import CHARACTERS_PER_BATCH, ROWS_PER_BATCH, ItemRows
from flushtracker.shape_log.snapshot.read_plan import ReadPlan, ReadRange, ShapeReads

APPLICATION_NAME: Final = "flushtracker_snapshot"
_REPORT_EVERY_S: Final = 1.0
_MARK: Final = "a range could not be read: "
_FIND_S: Final = 60.0
"""How long to search one range for failing shapes, at some twenty queries each; others are found later."""

Failures: TypeAlias = dict[str | None, FlushtrackerError]
"""The errors of shapes by their ids; ``None`` is for an error of all of them."""


class RangeError(FlushtrackerError):
    """A range could not be read; :func:`range_failures` recovers the errors from the text that reaches the driver."""

    def __init__(self, failures: Failures) -> None:
        texts = [[shape_id, type(error).__name__, str(error)] for shape_id, error in failures.items()]
        super().__init__(_MARK + json.dumps(texts))


def range_failures(text: str) -> Failures:
    """The errors of a :class:`RangeError` in ``text``; empty if there is none."""
    _, mark, rest = text.partition(_MARK)
    found = json.JSONDecoder().raw_decode(rest)[0] if mark else []
    return {shape_id: getattr(errors, name)(message) for shape_id, name, message in found}


class ShapeReadError(Exception):
    """The rows of these shapes cannot be read, each for its reason; those of other shapes may be readable."""

    def __init__(self, reasons: Mapping[str, FlushtrackerError]) -> None:
        super().__init__(f"shapes cannot be read: {', '.join(reasons)}")
        self.reasons = reasons


def failure_of(failures: Failures) -> FlushtrackerError | ShapeReadError:
    if None in failures:
        return failures[None]
    return ShapeReadError({shape_id: error for shape_id, error in failures.items() if shape_id is not None})


def read_function(plan: ReadPlan) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """The function for ``mapInArrow``: takes numbers of ranges and returns rows."""

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

    return read


class _Worker:
    """One connection, and the number of ranges and rows read over it."""

    def __init__(self, plan: ReadPlan) -> None:
        self._plan = plan
        self._ranges = self._rows = 0
        self._reported_s = time.monotonic()
        self._item_rows: dict[int, ItemRows] = {}
        try:
            self._reader = RangeReader(plan.options, plan.snapshot_id, plan.tables, plan.statement_timeout_ms)
        except FlushtrackerError as error:
            raise RangeError({None: error}) from error

    def read(self, number: int) -> Iterator[pa.RecordBatch]:
        found = self._plan.range(number)
        if (items := self._item_rows.get(found.table)) is None:
            items = self._item_rows[found.table] = ItemRows(self._plan.shapes, found.table)
        op_offset = found.first_op_offset
        try:
            for lines in self._lines(found, items.selection):
                for batch in items.batches(lines, op_offset):
                    yield batch
                    self._rows += batch.num_rows
                op_offset += len(lines)
            if items.failures:
                raise RangeError(items.failures)
            self._ranges += 1
            self._report()
        except PostgresUnavailableError as error:
            raise RangeError({None: error}) from error
        except PostgresError as error:
            raise RangeError(self._failures(found, error)) from error

    def _lines(self, found: ReadRange, selection: RowSelection) -> Iterator[list[str]]:
        """The rows of a range as written by COPY, in lists of limited size."""
        held, characters = list[str](), 0
        for lines in self._reader.read(self._plan.tables[found.table], selection, found.pages):
            held += lines
            characters += sum(map(len, lines))
            if len(held) >= ROWS_PER_BATCH or characters >= CHARACTERS_PER_BATCH:
                yield held
                held, characters = [], 0
        if held:
            yield held

    def _failures(self, found: ReadRange, error: FlushtrackerError) -> Failures:
        """The shapes for which the range cannot be read; ``error`` is that of all of them together."""
        failed, until_s = Failures(), time.monotonic() + _FIND_S
        try:
            for shape_id, reason in failing(self._plan.shapes, lambda shapes: self._probe(found, shapes)):
                failed[shape_id] = reason
                if time.monotonic() > until_s:
                    break
        except PostgresUnavailableError as lost:
            return {None: lost}
        return failed or {None: error}

    def _probe(self, found: ReadRange, shapes: Sequence[ShapeReads]) -> None:
        selection = ItemRows(shapes, found.table).selection
        for _ in self._reader.read(self._plan.tables[found.table], selection, found.pages):
            pass

    def _report(self) -> None:
        """Report this connection's progress as its application name, to the driver and to the server's operators."""
        if time.monotonic() - self._reported_s >= _REPORT_EVERY_S:
            self._reader.report(f"{APPLICATION_NAME} {self._plan.attempt} {self._ranges} {self._rows}")
            self._reported_s = time.monotonic()

    def close(self) -> None:
        self._reader.close()


def failing(
    shapes: Sequence[ShapeReads], probe: Callable[[Sequence[ShapeReads]], None]
) -> Iterator[tuple[str, FlushtrackerError]]:
    """The shapes for which ``probe`` raises, with its errors, by halving.

    If ``probe`` raises ``PostgresUnavailableError``, the shapes are unknown and it is passed on.
    """
    try:
        probe(shapes)
    except PostgresUnavailableError:
        raise
    except PostgresError as error:
        if len(shapes) == 1:
            yield shapes[0].shape_id, error
            return
        middle = len(shapes) // 2
        yield from failing(shapes[:middle], probe)
        yield from failing(shapes[middle:], probe)
