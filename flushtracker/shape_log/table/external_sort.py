"""Sorts more rows than fit in memory: sorted runs in temporary files, which are then merged.

Rows are buffered up to ``MOST_BYTES``, then sorted and written as a run. Runs are merged by their heads, the next table
of each: all rows up to the least last row of the heads are in the heads. Rows that fit in memory are sorted there
without files.

The files are unnamed, so nothing is left of them however the process ends. They are compressed, and together as large
as the rows, or twice that while many runs are merged into one.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa

from flushtracker.delta.temporary_file import temporary_failed, temporary_file

ROWS: Final = 8192
"""The maximum number of rows in a returned table."""

MOST_BYTES: Final = 32 << 20
"""The size of the rows buffered in memory. Sorting takes about three times as much for a moment."""

_HEAD_BYTES: Final = 1 << 19
_MOST_RUNS: Final = 64

_Place = tuple[Any, ...]
"""A row's values in the sort columns."""


def sort_tables(tables: Iterable[pa.Table], by: Sequence[str]) -> Iterator[pa.Table]:
    """All rows of the ``tables``, in ascending order of the columns ``by``, which must not be null and must be unique.

    All tables are read before the first one is returned. Their columns may differ; the returned tables have all
    columns, with null for missing ones. Raises ``SinkError`` if a file cannot be written or read.
    """
    levels: list[list[_Run]] = [[]]
    held, size = list[pa.Table](), 0
    for table in filter(len, tables):
        held.append(table)
        size += table.nbytes
        if size > MOST_BYTES:
            _add(levels, _run(held, by), by)
            held, size = [], 0
    runs = [run for level in levels for run in level]
    rest = [_sorted(held, by)] if held else []
    held.clear()
    schema = _schema_of_all([run.schema for run in runs] + [table.schema for table in rest])
    for table in _merged([*(run.tables() for run in runs), iter(rest)], by, schema):
        for start in range(0, len(table), ROWS):
            yield table.slice(start, ROWS)


def _add(levels: list[list["_Run"]], run: "_Run", by: Sequence[str]) -> None:
    """Add a run to the first level; a full level is merged into one run of the next, which bounds the heads in
    memory.
    """
    for number, level in enumerate(levels):
        level.append(run)
        if len(level) < _MOST_RUNS:
            return
        schema = _schema_of_all([each.schema for each in level])
        run = _Run(schema, _merged([each.tables() for each in level], by, schema))
        levels[number] = []
    levels.append([run])


class _Run:
    """Sorted tables of one schema in a temporary file. They can be read once."""

    def __init__(self, schema: pa.Schema, tables: Iterable[pa.Table]) -> None:
        self.schema = schema
        self._file = temporary_file()
        try:
            with pa.ipc.new_stream(self._file, schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as stream:
                for table in tables:
                    stream.write_table(table, max(1, len(table) * _HEAD_BYTES // max(1, table.nbytes)))
        except OSError as error:
            raise temporary_failed(error) from error

    def tables(self) -> Iterator[pa.Table]:
        try:
            self._file.seek(0)
            with self._file, pa.ipc.open_stream(self._file) as stream:
                for batch in stream:
                    yield pa.Table.from_batches([batch])
        except OSError as error:
            raise temporary_failed(error) from error


def _run(tables: Sequence[pa.Table], by: Sequence[str]) -> _Run:
    rows = _sorted(tables, by)
    return _Run(rows.schema, [rows])


def _merged(sources: Iterable[Iterator[pa.Table]], by: Sequence[str], schema: pa.Schema) -> Iterator[pa.Table]:
    """The rows of all ``sources``, each of which is sorted, as tables of one ``schema``."""
    heads = [(table, source) for source in sources if (table := next(source, None)) is not None]
    while heads:
        bound = min(_place(table, len(table) - 1, by) for table, _ in heads)
        parts, left = list[pa.Table](), list[tuple[pa.Table, Iterator[pa.Table]]]()
        for table, source in heads:
            end = _end(table, bound, by)
            parts.append(table.slice(0, end))
            rest = table.slice(end) if end < len(table) else next(source, None)
            left += [] if rest is None else [(rest, source)]
        heads = left
        yield _sorted([schema.empty_table(), *parts], by)


def _sorted(tables: Sequence[pa.Table], by: Sequence[str]) -> pa.Table:
    rows = pa.concat_tables(tables, promote_options="default").combine_chunks()
    return rows.sort_by([(name, "ascending") for name in by])


def _end(table: pa.Table, bound: _Place, by: Sequence[str]) -> int:
    """The number of rows at or before the ``bound``."""
    return bisect_right(range(len(table)), bound, key=lambda index: _place(table, index, by))


def _place(table: pa.Table, index: int, by: Sequence[str]) -> _Place:
    return tuple(table[name][index].as_py() for name in by)


def _schema_of_all(schemas: Sequence[pa.Schema]) -> pa.Schema:
    return pa.unify_schemas(schemas) if schemas else pa.schema([])
