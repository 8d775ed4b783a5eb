"""``Runs``: merges the appended files of a shape log into runs, in memory that does not depend on file sizes.

A merge holds in memory the rows of its appended files, up to ``sorted_bytes``, and a block of each run. A larger file
is divided first. A merge only rearranges: the new files have exactly the rows of those that they replace.
"""

import logging
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.transaction import AddAction

from flushtracker.delta.data_file import BLOCK_BYTES, regrouped
from flushtracker.shape_log.merge_plan import MIB, MergeSettings
from flushtracker.shape_log.table.files import LogFile, LogFiles, by_run

logger = logging.getLogger(__name__)

_MOST_FILES: Final = 1024
"""Appended files in one merge; each takes some memory besides its rows."""
_FILE_BYTES: Final = 128 * MIB
"""The approximate maximum of rows in one file."""
_ANY_ROWS: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Merged:
    """The bytes replaced by a merge, the number of its run, and the number of the previous newest run."""

    replaced_bytes: int
    run: int
    last_run: int


class Runs:
    """The runs of one open shape log. Raises ``DeltaError``, ``OSError`` or ``ArrowException``."""

    def __init__(self, table: DeltaTable, files: LogFiles, settings: MergeSettings) -> None:
        self._table, self._files, self._settings = table, files, settings

    def merge(self) -> Merged | None:
        """Merge once, if due; ``None`` if not, or if another process has replaced one of the files first."""
        files = self._files.current()
        runs = by_run(files)
        sizes = {run: _bytes(parts) for run, parts in runs.items()}
        waiting = sorted((file for file in files if file.run is None), key=lambda file: (file.modified_ms, file.path))
        if not self._settings.is_due([file.bytes for file in waiting], sizes.values()):
            return None
        # A run's number is the version after the one that it is made from.
        number = self._table.version() + 1
        taken, tables = self._read(waiting[:_MOST_FILES])
        if not taken:
            taken = waiting[:1]
            added = self._divide(waiting[0])
        else:
            chosen = [runs[run] for run in sorted(self._settings.runs_to_merge(_bytes(taken), sizes))]
            taken += [file for parts in chosen for file in parts]
            sources = [self._files.read_blocks([file.path for file in parts]) for parts in chosen]
            added = self._write(merged([sorted_blocks(tables, BLOCK_BYTES), *sources]), number, taken)
        if not self._files.replace(taken, added):
            logger.info("shape log not merged: another process was first uri=%s", self._table.table_uri)
            return None
        return Merged(_bytes(taken), number, max(runs, default=0))

    def _read(self, files: Iterable[LogFile]) -> tuple[list[LogFile], list[pa.Table]]:
        """The first files, as many as fit in memory, and their rows; none if the first must be divided."""
        taken, tables, size = list[LogFile](), list[pa.Table](), 0
        for file in files:
            found = list[pa.Table]()
            for block in self._files.read_blocks([file.path]):
                size += block.nbytes
                # A single row may be larger than that.
                if size > self._settings.sorted_bytes and (taken or found):
                    return taken, tables
                found.append(block)
            taken.append(file)
            tables += found
        return taken, tables

    def _divide(self, file: LogFile) -> list[AddAction]:
        parts = cut(self._files.read_blocks([file.path]), _ANY_ROWS, self._settings.sorted_bytes // 2)
        return [self._files.write_blocks(tables, None) for _, tables in _by_file(parts)]

    def _write(self, rows: Iterator[pa.Table], run: int, replaced: Sequence[LogFile]) -> list[AddAction]:
        # A file without statistics, as a crash may leave it, counts as one row; its rows are read anyway.
        total_bytes, total_rows = _bytes(replaced), sum(max(file.rows, 1) for file in replaced)
        rows_per_file = max(1, total_rows * self._settings.file_bytes(total_bytes) // total_bytes)
        parts = cut(regrouped(rows), rows_per_file, _FILE_BYTES)
        return [self._files.write_blocks(tables, (run, part)) for part, tables in _by_file(parts)]


def _bytes(files: Iterable[LogFile]) -> int:
    return sum(file.bytes for file in files)


def _by_file(parts: Iterable[tuple[int, pa.Table]]) -> Iterator[tuple[int, Iterator[pa.Table]]]:
    for number, group in groupby(parts, itemgetter(0)):
        yield number, (table for _, table in group)


ORDER: Final = ("shape_id", "source", "tx_offset", "op_offset")

_Key = tuple[str, str, int, int]


def sort(rows: pa.Table) -> pa.Table:
    return rows.sort_by([(name, "ascending") for name in ORDER]).combine_chunks()


def sorted_blocks(tables: list[pa.Table], block_bytes: int) -> Iterator[pa.Table]:
    """All rows of the tables in order, in tables of about ``block_bytes``; empties the list to free memory."""
    if not tables:
        return
    rows = pa.concat_tables(tables).combine_chunks()
    tables.clear()
    order = pc.sort_indices(rows, [(name, "ascending") for name in ORDER])
    step = max(1, len(rows) * block_bytes // max(1, rows.nbytes))
    for start in range(0, len(rows), step):
        yield rows.take(order.slice(start, step))


def merged(sources: Sequence[Iterator[pa.Table]]) -> Iterator[pa.Table]:
    """All rows of the sources, in order. Each source must yield sorted tables in order."""
    heads: dict[int, pa.Table] = {}
    waiting = set(range(len(sources)))
    while True:
        for number in sorted(waiting):
            if (table := _next(sources[number])) is not None:
                heads[number] = table
        if not heads:
            return
        # All rows up to this one have been yielded by their sources.
        bound = min(_key(table, len(table) - 1) for table in heads.values())
        parts = []
        waiting = set()
        for number, table in list(heads.items()):
            end = _end(table, bound)
            parts.append(table.slice(0, end))
            if end == len(table):
                waiting.add(number)
                del heads[number]
            else:
                heads[number] = table.slice(end)
        filled = [part for part in parts if len(part)]
        yield filled[0] if len(filled) == 1 else sort(pa.concat_tables(filled))


def cut(blocks: Iterable[pa.Table], rows_per_file: int, bytes_per_file: int) -> Iterator[tuple[int, pa.Table]]:
    """Number the file that each row goes to, from 0.

    A file ends at the first shape after ``rows_per_file`` rows, at the latest after a quarter more. It also ends before
    a block that would take it above ``bytes_per_file``.
    """
    number = rows = size = 0
    last_id: str | None = None
    for block in blocks:
        rest = block
        if size and size + block.nbytes > bytes_per_file:
            number, rows, size = number + 1, 0, 0
        while len(rest):
            end = _file_end(rest, last_id, rows_per_file - rows, rows_per_file + rows_per_file // 4 - rows)
            part = rest if end is None else rest.slice(0, end)
            if len(part):
                yield number, part
                last_id = part["shape_id"][-1].as_py()
            rest = rest.slice(len(part))
            rows, size = rows + len(part), size + part.nbytes
            if end is not None:
                number, rows, size = number + 1, 0, 0


def _next(source: Iterator[pa.Table]) -> pa.Table | None:
    return next((table for table in source if len(table)), None)


def _end(table: pa.Table, bound: _Key) -> int:
    return bisect_right(range(len(table)), bound, key=lambda index: _key(table, index))


def _key(table: pa.Table, index: int) -> _Key:
    shape_id, source, tx, op = (table[name][index].as_py() for name in ORDER)
    return shape_id, source, tx, op


def _file_end(rows: pa.Table, last_id: str | None, least: int, most: int) -> int | None:
    """The index at which a file ends in sorted rows that follow those of ``last_id``, after ``least`` rows; ``None`` if
    later.
    """
    if least >= len(rows):
        return None
    shape_ids = rows["shape_id"]
    last_id = shape_ids[least - 1].as_py() if least > 0 else last_id
    end = min(most, bisect_right(range(len(rows)), last_id or "", key=lambda index: shape_ids[index].as_py()))
    return end if end < len(rows) or end == most else None
