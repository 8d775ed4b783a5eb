"""``Runs``: merges the appended files of a shape log into runs, in memory that does not depend on file sizes.

A merge holds in memory the rows of its appended files, up to ``sorted_bytes``, and a block of each run. A larger file
is divided first. A merge only rearranges: the new files have exactly the rows of those that they replace.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Final

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.transaction import AddAction

from flushtracker.delta.data_file import BLOCK_BYTES, regrouped
from flushtracker.shape_log.merge_plan import MIB, MergeSettings
from flushtracker.shape_log.table.files import LogFile, LogFiles, by_run
from flushtracker.shape_log.table.merge import cut, merged, sorted_blocks

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
