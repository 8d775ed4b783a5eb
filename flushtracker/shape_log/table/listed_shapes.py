"""``ListedShape``: what the registry table and the shape log say of a shape, for a list of all of them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from deltalake.exceptions import DeltaError

from flushtracker.delta.storage import literal, query_rows
from flushtracker.errors import ConfigError, SnapshotMissingError
from flushtracker.events.registry_events import BEGUN_AGAIN, ShapeEntry
from flushtracker.shape_log.log_row import COMMIT
from flushtracker.shape_log.table.found_shape import FoundShape
from flushtracker.shape_log.table.log_table import unreadable
from flushtracker.shape_log.table.reader import ShapeLogReader
from flushtracker.wal.lsn import format_lsn
from flushtracker.wal.names import LOG_WRITER
from flushtracker.wal.source_name import successors

LIVE: Final = "live"
_LAST: Final = f"""
SELECT source, shape_id, MAX(commit_timestamp) AS committed_at, MAX(written_at) AS written_at
FROM rows WHERE operation = {literal(COMMIT)} AND tx_offset > 0 GROUP BY source, shape_id
"""  # noqa: S608  a constant


@dataclass(frozen=True, slots=True)
class ListedShape:
    """``state`` is ``live``, or why the shape cannot be read; ``reason`` says more.

    ``rows`` are counted up to ``lsn``, its last transaction in the log, which was committed at ``committed_at`` and
    written ``lag_s`` seconds later. They are ``None`` if there is none, or another writer has the shape.
    """

    source: str
    shape_id: str
    table: str
    state: str
    writer: str
    reason: str | None = None
    rows: int | None = None
    lsn: str | None = None
    committed_at: datetime | None = None
    lag_s: float | None = None


def list_shapes(reader: ShapeLogReader, *, with_removed: bool = False) -> Iterator[ListedShape]:
    """All shapes of the sources that no other has replaced, by source and id; removed ones only ``with_removed``.
    Each shape's rows are counted when it is asked for.

    Raises:
        ConfigError: there is no registry table, which has the shapes.
        DecodeError, SinkError: as for a read of their rows.
    """
    finder = reader.finder
    registry = finder.refresh()
    if finder.registry_table is None:
        raise ConfigError(f"shape log {finder.uri} has no registry table beside it, which has the shapes; name it")
    entries = [entry for entry in registry.entries.values() if isinstance(entry, ShapeEntry)]
    replaced = successors({entry.source for entry in entries})
    times = _last_times(reader)
    finder.look_up({each.definition.id for each in entries if each.removed_at is None})
    for entry in sorted(entries, key=lambda each: (each.source, each.definition.id)):
        is_removed = entry.removed_at is not None and entry.ended_because is None
        if entry.source not in replaced and (with_removed or not is_removed):
            yield _listed(reader, entry, times)


def known_ids(reader: ShapeLogReader) -> list[str]:
    """The ids of the live shapes that the log has, sorted; empty without a registry table."""
    entries = reader.finder.refresh().entries.values()
    live = [each for each in entries if isinstance(each, ShapeEntry) and each.removed_at is None]
    return sorted({each.definition.id for each in live if each.definition.writer == LOG_WRITER})


def _listed(reader: ShapeLogReader, entry: ShapeEntry, times: dict[tuple[str, str], Any]) -> ListedShape:
    definition = entry.definition
    table = "" if entry.is_condensed else ".".join(definition.table)
    state, reason = LIVE, None
    if entry.removed_at is not None:
        state, reason = ("removed" if entry.ended_because is None else "ended"), entry.ended_because
        if entry.ended_because == BEGUN_AGAIN:
            state = "begins again"
        elif entry.evicted_at_ms is not None:
            state = "evicted"
    listed = (entry.source, definition.id, table)
    if state != LIVE or definition.writer != LOG_WRITER:
        return ListedShape(*listed, state, definition.writer, reason)
    found = reader.finder.seen(definition.id, entry.source)
    if (missing := _missing_snapshot(found)) is not None:
        return ListedShape(*listed, "no snapshot yet", definition.writer, missing)
    rows = sum(map(len, reader.row_tables(found)))
    committed_at, written_at = times.get((entry.source, definition.id), (None, None))
    lag_s = None
    if committed_at is not None and written_at is not None:
        lag_s = max(0.0, (written_at - committed_at).total_seconds())
    lsn = None if found.last_commit is None else format_lsn(found.last_commit)
    return ListedShape(*listed, LIVE, definition.writer, None, rows, lsn, committed_at, lag_s)


def _missing_snapshot(found: FoundShape) -> str | None:
    checks: tuple[Callable[[], None], ...] = (found.require_started, found.require_snapshot)
    try:
        for check in checks:
            check()
    except SnapshotMissingError as error:
        return str(error)
    return None


def _last_times(reader: ShapeLogReader) -> dict[tuple[str, str], tuple[datetime | None, datetime | None]]:
    finder = reader.finder
    try:
        found = query_rows(finder.table, _LAST).to_pylist()
    except (DeltaError, OSError) as error:
        raise unreadable(finder.uri, error) from error
    return {(row["source"], row["shape_id"]): (row["committed_at"], row["written_at"]) for row in found}
