"""``LiveSnapshotStatus``: the status of the snapshots' job, which any thread may read at any time, without a lock."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from flushtracker.process.clock import now_ms
from flushtracker.status.snapshot_status import AttemptStatus, ShapeFailure, SnapshotStatus, TableStatus

_MOST_FAILURES: Final = 100

TableKey = tuple[str, str]
"""Source and table, as documents name it."""


class LiveSnapshotStatus:
    """One thread notes; its notes are replaced, never changed, so that any thread may read."""

    def __init__(self, clock_ms: Callable[[], int] = now_ms) -> None:
        self._clock_ms = clock_ms
        at_ms = clock_ms()
        self._last = SnapshotStatus(at_ms, at_ms)

    def note_due(self, left: Mapping[TableKey, int], waiting: int) -> None:
        """Note how many shapes of each table need a snapshot, and how many are ``waiting`` for capture."""
        known = {(table.source, table.table): table for table in self._last.tables}
        keys = sorted({*left, *(key for key, table in known.items() if table.shapes_taken)})
        tables = tuple(replace(known.get(key, TableStatus(*key, 0)), shapes_left=left.get(key, 0)) for key in keys)
        self._last = replace(self._last, tables=tables, waiting_shapes=waiting, server_error=None)

    def note_attempt(self, attempt: AttemptStatus | None) -> None:
        """Note what is read now."""
        self._last = replace(self._last, attempt=attempt)

    def note_taken(self, key: TableKey, shapes: int, rows: int) -> None:
        """Note that shapes of a table have a snapshot now."""
        tables = tuple(
            replace(
                table,
                shapes_left=max(0, table.shapes_left - shapes),
                shapes_taken=table.shapes_taken + shapes,
                rows=table.rows + rows,
            )
            if (table.source, table.table) == key
            else table
            for table in self._last.tables
        )
        self._last = replace(self._last, tables=tables)

    def note_failures(self, failures: Sequence[ShapeFailure]) -> None:
        """Note which shapes have failed."""
        self._last = replace(self._last, failed_shapes=len(failures), failures=tuple(failures[:_MOST_FAILURES]))

    def note_server_error(self, error: Exception) -> None:
        """Note why it is not known what is due."""
        self._last = replace(self._last, server_error=str(error))

    def read(self) -> SnapshotStatus:
        """The job's status now."""
        return replace(self._last, at_ms=self._clock_ms())
