"""``LiveSnapshotStatus``: the status of the snapshots' job, readable from any thread without a lock."""

from collections.abc import Callable, Mapping, Sequence
from heapq import nlargest
from typing import Final

from flushtracker.process.clock import now_ms
from flushtracker.status.document import bounded, replace
from flushtracker.status.snapshot_status import (
    MOST_SHAPES,
    AttemptStatus,
    ShapeFailure,
    SnapshotSource,
    SnapshotStatus,
    TableStatus,
)

_MOST_TAKEN: Final = 1_000
"""The maximum number of tables kept although they need no snapshot now."""

TableKey = tuple[str, str]
"""Source and table, as named in documents."""


class LiveSnapshotStatus:
    """One thread records; values are replaced, never modified, so that any thread may read."""

    def __init__(self, clock_ms: Callable[[], int] = now_ms) -> None:
        self._clock_ms = clock_ms
        at_ms = clock_ms()
        self._last = SnapshotStatus(at_ms, at_ms)
        self._tables: dict[TableKey, TableStatus] = {}
        """The tables that need snapshots, and those that got some last; used only by the recording thread."""
        self._gone: dict[str, SnapshotSource] = {}
        """The sums of other tables."""

    def note_looking(self) -> None:
        """Record that the job checks which snapshots are due, or takes them."""
        self._last = replace(self._last, next_look_at_ms=None)

    def note_looked(self) -> None:
        self._last = replace(self._last, server_error=None, progress_at_ms=self._clock_ms())

    def note_pause(self, next_look_at_ms: int) -> None:
        self._last = replace(self._last, next_look_at_ms=next_look_at_ms)

    def note_due(self, left: Mapping[TableKey, int], waiting: int) -> None:
        """Record how many shapes of each table need a snapshot, and how many are ``waiting`` for capture."""
        taken = [key for key, table in self._tables.items() if table.shapes_taken and key not in left]
        for key in taken[_MOST_TAKEN:]:
            _add(self._gone, replace(self._tables[key], shapes_left=0))
        keys = sorted({*left, *taken[:_MOST_TAKEN]})
        self._tables = {
            key: replace(self._tables.get(key, TableStatus(*key, 0)), shapes_left=left.get(key, 0)) for key in keys
        }
        self._last = replace(self._last, waiting_shapes=waiting)
        self._note_tables()
        self.note_looked()

    def note_attempt(self, attempt: AttemptStatus | None) -> None:
        last = self._last
        if attempt is not None and attempt != last.attempt:
            before = last.attempt
            has_moved = before is None or (attempt.ranges_done, attempt.rows) != (before.ranges_done, before.rows)
            last = replace(last, progress_at_ms=self._clock_ms()) if has_moved else last
        self._last = replace(last, attempt=attempt)

    def note_taken(self, key: TableKey, shapes: int, rows: int) -> None:
        before = self._tables.get(key)
        if before is None:
            return
        table = replace(
            before,
            shapes_left=max(0, before.shapes_left - shapes),
            shapes_taken=before.shapes_taken + shapes,
            rows=before.rows + rows,
        )
        self._tables[key] = table
        # The tables are not all summed again, because there may be as many attempts as tables.
        source = SnapshotSource(key[0], table.shapes_left - before.shapes_left, shapes, rows)
        sources = (each.with_more(source) if each.source == source.source else each for each in self._last.sources)
        tables = (table if (each.source, each.table) == key else each for each in self._last.tables)
        self._last = replace(self._last, sources=tuple(sources), tables=tuple(tables))
        self.note_looked()

    def _note_tables(self) -> None:
        sources = dict(self._gone)
        for table in self._tables.values():
            _add(sources, table)
        listed = nlargest(MOST_SHAPES, self._tables.values(), key=lambda table: table.shapes_left)
        self._last = replace(self._last, sources=tuple(sources.values()), tables=tuple(listed))

    def note_failures(self, failures: Sequence[ShapeFailure]) -> None:
        listed = (replace(failure, reason=bounded(failure.reason)) for failure in failures[:MOST_SHAPES])
        self._last = replace(self._last, failed_shapes=len(failures), failures=tuple(listed))

    def note_server_error(self, error: Exception) -> None:
        """Record why it is unknown which snapshots are due."""
        self._last = replace(self._last, attempt=None, server_error=bounded(str(error)))

    def read(self) -> SnapshotStatus:
        return replace(self._last, at_ms=self._clock_ms())


def _add(sources: dict[str, SnapshotSource], table: TableStatus) -> None:
    more = SnapshotSource(table.source, table.shapes_left, table.shapes_taken, table.rows)
    sources[table.source] = sources.get(table.source, SnapshotSource(table.source)).with_more(more)
