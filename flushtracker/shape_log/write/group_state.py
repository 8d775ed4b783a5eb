"""The writers' state function: how an executor handles one group's part of a micro-batch."""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Any, Final, TypeAlias

import pandas as pd
from pyspark.sql import types as T  # noqa: N812 (the name that Spark's own documentation gives it)
from pyspark.sql.streaming.state import GroupState

from flushtracker.config.streams import SHAPE_CHANGES
from flushtracker.errors import DecodeError, FlushtrackerError, NewerEventError
from flushtracker.events.registry_events import ShapeEntry, parse_registry_entry
from flushtracker.process.clock import AgeClock
from flushtracker.shape_log.change_columns import ChangeColumns, read_changes
from flushtracker.shape_log.row_columns import RowColumns
from flushtracker.shape_log.write.packed_rows import PACKED_ROWS, pack_rows
from flushtracker.shape_log.write.rows import NO_SHAPE
from flushtracker.shape_log.writer_group import ShapeBatch, WriterGroup, WriterSettings
from flushtracker.spark.batch_lsns import batch_lsn
from flushtracker.spark.output_frames import output_frame
from flushtracker.spark.workers import ERROR, spare_imports
from flushtracker.wal.log_offset import LogOffset

# The kinds of output row, besides ERROR.
LOG_ROWS: Final = "log_rows"  # `packed` are rows of the log
# A file with rows of the log, `value`, and their number; not of the state function, but of ``stored_rows``.
FILE: Final = "file"
# For one shape: its durable offset (-1 if nothing is notified), its number of rows, and the time of its last commit.
SHAPE: Final = "shape"
ENTRY: Final = "entry"  # `value` is a registry entry
ENDED: Final = "ended"  # a shape was removed, or another writer has taken it over
BEGUN: Final = "begun"  # `value` is the later incarnation of a shape that has begun

OUTPUT_SCHEMA: Final = T.StructType(
    [
        T.StructField("kind", T.StringType()),
        T.StructField("source", T.StringType()),
        T.StructField("shape_id", T.StringType()),
        T.StructField("tx_offset", T.LongType()),
        T.StructField("op_offset", T.LongType()),
        T.StructField("value", T.StringType()),
        T.StructField("commit_timestamp", T.StringType()),
        T.StructField("rows", T.LongType()),
        T.StructField("report", T.StringType()),  # for an error, the name of its class
        T.StructField("reason", T.StringType()),  # the message of an error, or a shape's gap
        T.StructField("packed", T.BinaryType()),
    ]
)
_NAMES: Final = OUTPUT_SCHEMA.names

STATE_SCHEMA: Final = T.StructType(
    [
        T.StructField("packed", T.BinaryType()),
        T.StructField("shape_groups", T.LongType()),  # the setting that the key was made with
    ]
)
_CLOCK: Final = AgeClock()
_FRAME_ROWS: Final = 250
"""The maximum number of rows in a frame."""

_Row: TypeAlias = tuple[Any, ...]
_Frames: TypeAlias = Iterable[pd.DataFrame]


def write_function(
    settings: WriterSettings, shape_groups: int
) -> Callable[[Any, _Frames, GroupState], Iterator[pd.DataFrame]]:
    """The function for ``applyInPandasWithState``, keyed by ``(source, shape_group)``."""

    def handle_group(key: tuple[str, str], frames: _Frames, state: GroupState) -> Iterator[pd.DataFrame]:
        spare_imports()
        source, shape_group = key
        try:
            changes, entries = _read(frames)
            if shape_group == NO_SHAPE:
                output = _handle_others(source, changes, entries)
            else:
                output = _handle_shapes(source, changes, entries, state)
        except FlushtrackerError as error:
            output = _frames([_row(ERROR, source, report=type(error).__name__, reason=str(error))])
        yield from output

    def _handle_shapes(
        source: str, changes: list[ChangeColumns], entries: list[tuple[str, ShapeEntry]], state: GroupState
    ) -> Iterator[pd.DataFrame]:
        if not all(isinstance(entry, ShapeEntry) for _, entry in entries):
            raise _misread(source)
        group = WriterGroup(source, settings, bytes(state.get[0]) if state.exists else None)
        now_ms = state.getCurrentProcessingTimeMs()
        batches = group.handle_batch(changes, [entry for _, entry in entries], now_ms, batch_lsn(source))
        state.update((group.pack(), shape_groups))
        if settings.hold and (due_ms := group.next_due_ms()) is not None:
            state.setTimeoutDuration(max(1, due_ms - now_ms))
        # After this, only frames are created: an error while the caller iterates would be reported without its class.
        reports = [_shape_row(source, batch) for batch in batches]
        reports += [
            _row(BEGUN, source, batch.shape_id, value=str(batch.begun)) for batch in batches if batch.begun is not None
        ]
        reports += [_row(ENDED, source, shape_id) for shape_id in group.ended]
        return _frames(chain(_log_rows(source, batches), _entry_rows(source, entries), reports))

    return handle_group


def _read(frames: _Frames) -> tuple[list[ChangeColumns], list[tuple[str, Any]]]:
    """The events of all frames, entries in the order of their places.

    Raises ``DecodeError`` for the first malformed event by place, ``NewerEventError`` if its version is newer.
    """
    changes: list[ChangeColumns] = []
    entries: list[tuple[str, str, Any]] = []
    failures: list[tuple[str, DecodeError]] = []
    for frame in frames:
        columns = (frame[name].tolist() for name in ("stream", "value", "place"))
        for stream, value, place in zip(*columns, strict=True):
            if value is None and stream != SHAPE_CHANGES:
                continue  # A tombstone: compaction removes the entry.
            try:
                if stream == SHAPE_CHANGES:
                    changes.append(read_changes(value or b""))
                else:
                    entry = parse_registry_entry(value)
                    entries.append((place, value.decode(), entry))
            except DecodeError as error:
                what = "shape changes" if stream == SHAPE_CHANGES else "registry entry"
                failures.append((f"{place}: {what} cannot be read: {error}", error))
    if failures:
        fact, first = min(failures, key=lambda failure: failure[0])
        if isinstance(first, NewerEventError):
            raise NewerEventError(fact) from first
        raise DecodeError(f"{fact}; nothing from this batch on is written or notified") from first
    # The last entry of a key is the current one, but Spark reads files in any order. Within a file or partition, a
    # later place has at least as many characters.
    entries.sort(key=lambda each: (len(each[0]), each[0]))
    return changes, [(text, entry) for _, text, entry in entries]


def _handle_others(source: str, changes: list[ChangeColumns], entries: list[tuple[str, Any]]) -> Iterator[pd.DataFrame]:
    if changes or any(isinstance(entry, ShapeEntry) for _, entry in entries):
        raise _misread(source)
    return _frames(_entry_rows(source, entries))


def _entry_rows(source: str, entries: list[tuple[str, Any]]) -> list[_Row]:
    return [_row(ENTRY, source, value=text) for text, _ in entries]


def _misread(source: str) -> DecodeError:
    return DecodeError(f"source {source}: Spark and this program do not read the same shape_id in an event")


def _shape_row(source: str, batch: ShapeBatch) -> _Row:
    return _row(
        SHAPE,
        source,
        batch.shape_id,
        batch.notified,
        rows=len(batch.rows),
        reason=batch.gap,
        commit_timestamp=batch.rows.last_commit_timestamp,
    )


def _log_rows(source: str, batches: Iterable[ShapeBatch]) -> Iterator[_Row]:
    """The rows of all shapes, without creating an object per row."""
    pending, shape_ids = RowColumns.empty(), list[str]()
    for batch in batches:
        start = 0
        while start < len(batch.rows):
            part = batch.rows.part(start, start + PACKED_ROWS - len(pending))
            pending.extend(part)
            shape_ids += [batch.shape_id] * len(part)
            start += len(part)
            if len(pending) == PACKED_ROWS:
                yield from _packed(source, shape_ids, pending)
                pending, shape_ids = RowColumns.empty(), []
    yield from _packed(source, shape_ids, pending)


def _packed(source: str, shape_ids: list[str], rows: RowColumns) -> Iterator[_Row]:
    if len(rows):
        for packed in pack_rows(source, shape_ids, rows, _CLOCK.to_date()):
            yield _row(LOG_ROWS, source, packed=packed)


def _row(  # noqa: PLR0913  a row has many columns; all but the first by name
    kind: str,
    source: str,
    shape_id: str | None = None,
    offset: LogOffset | None = None,
    *,
    value: str | None = None,
    rows: int = 0,
    report: str | None = None,
    reason: str | None = None,
    commit_timestamp: str | None = None,
    packed: bytes | None = None,
) -> _Row:
    tx_offset, op_offset = (-1, -1) if offset is None else offset
    return (kind, source, shape_id, tx_offset, op_offset, value, commit_timestamp, rows, report, reason, packed)


def _frames(rows: Iterable[_Row]) -> Iterator[pd.DataFrame]:
    rest = iter(rows)
    while some := list(islice(rest, _FRAME_ROWS)):
        yield output_frame(some, _NAMES)
