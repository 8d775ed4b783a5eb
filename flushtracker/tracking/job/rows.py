"""Reads events in Python workers: into the rows of the stateful operator, or into heads for a recovery.

Python workers parse the events before Spark groups them. Each row has the events that one task has read for one group,
packed into columns (:mod:`flushtracker.tracking.job.event_columns`), so the JVM moves only a few rows of bytes. A row's
key is ``(source, shape_group)``: the shapes' group, or :data:`CHAIN` for the source's chain. A malformed event is a row
of its own, with an empty source.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import chain
from typing import Final, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import types as T  # noqa: N812 (the name that Spark's own documentation gives it)

from flushtracker.config.streams import FRAGMENTS
from flushtracker.errors import DecodeError, NewerEventError
from flushtracker.events.stream_events import FragmentEvent
from flushtracker.spark.workers import spare_imports
from flushtracker.tracking.job.event_columns import EventColumns, GroupPart

ROW_SCHEMA: Final = T.StructType(
    [
        T.StructField("source", T.StringType()),
        T.StructField("shape_group", T.StringType()),
        T.StructField("packed", T.BinaryType()),
    ]
)
"""The operator's input."""

HEAD_SCHEMA: Final = (
    "partition INT, offset BIGINT, timestamp_ms BIGINT, source STRING, lsn BIGINT, start BOOLEAN, follows BIGINT"
)
"""Where and when a record was written, and its fragment's source, LSN, ``start``, and the LSN that it follows.

The source of a malformed record is null.
"""

_ARROW_SCHEMA: Final = pa.schema([("source", pa.string()), ("shape_group", pa.string()), ("packed", pa.binary())])
_HEAD_NAMES: Final = [field.split()[0] for field in HEAD_SCHEMA.split(", ")]
_HEAD_TYPES: Final = (pa.string(), pa.int64(), pa.bool_(), pa.int64())
_MAX_SIZE: Final = 200_000
"""The number of flushes and shapes of fragments that a task collects before it creates rows."""
_MAX_BYTES: Final = 64 << 20
"""The number of bytes of events packed at once, including malformed events."""
_MOST_TEXT_BYTES: Final = 10_000
"""The part of a malformed event that is kept; Kafka has the rest."""


class Unreadable(NamedTuple):
    """A malformed event of ``stream``: its ``text``, where it was read, and the reason.

    With ``is_newer`` only a newer release can read it.
    """

    stream: str
    text: str | None
    place: str
    reason: str
    is_newer: bool = False

    def part(self) -> GroupPart:
        return GroupPart("", "", json.dumps(self).encode())

    @classmethod
    def unpack(cls, packed: bytes) -> "Unreadable":
        return cls(*json.loads(packed))


def to_rows(raw: DataFrame, shape_groups: int) -> DataFrame:
    """Turn events ``(stream, value, place)`` into rows of :data:`ROW_SCHEMA`.

    ``stream`` is ``fragments`` or ``flushes``, ``value`` the event's bytes, ``place`` names where it was read. For a
    deleted flush, ``value`` is null and ``place`` is the key. With 0 ``shape_groups`` every shape is its own group.
    """
    return raw.select("stream", "value", "place").mapInArrow(event_parser(shape_groups), ROW_SCHEMA)


def event_parser(shape_groups: int) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for ``mapInArrow``: converts batches of events to batches of rows."""

    def parse(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        spare_imports()
        for parts in read_parts(map(_events, batches), shape_groups):
            columns = zip(*parts, strict=True)
            yield pa.RecordBatch.from_arrays(
                [pa.array(column, field.type) for column, field in zip(columns, _ARROW_SCHEMA, strict=True)],
                schema=_ARROW_SCHEMA,
            )

    return parse


def read_parts(
    batches: Iterable[Iterable[tuple[str, bytes | None, str]]], shape_groups: int
) -> Iterator[list[GroupPart]]:
    """The groups' parts of batches of events ``(stream, value, place)``, in non-empty lists."""
    columns, unreadable, read_bytes = EventColumns(), list[GroupPart](), 0
    for event in chain.from_iterable(batches):
        read_bytes += len(event[1] or b"")
        failure = _read(columns, *event)
        if failure is not None:
            unreadable.append(failure.part())
        if columns.size + len(unreadable) >= _MAX_SIZE or read_bytes >= _MAX_BYTES:
            yield [*columns.parts(shape_groups), *unreadable]
            columns, unreadable, read_bytes = EventColumns(), [], 0
    if parts := [*columns.parts(shape_groups), *unreadable]:
        yield parts


def _read(columns: EventColumns, stream: str, value: bytes | None, place: str) -> Unreadable | None:
    """Add an event to the columns, or return it if it is malformed.

    A flush without a value is a tombstone, with which compaction removes the flushes of a shape; its key may be
    arbitrary.
    """
    if value is None and stream == FRAGMENTS:
        return Unreadable(stream, None, place, "it has no value")
    if value is None:
        with suppress(DecodeError):
            columns.add_deleted_flush(place)
        return None
    try:
        if stream == FRAGMENTS:
            columns.add_fragment(value, place)
        else:
            columns.add_flush(value)
    except DecodeError as error:
        return Unreadable(stream, _text(value), place, str(error), isinstance(error, NewerEventError))
    return None


def _text(value: bytes) -> str:
    cut = "" if len(value) <= _MOST_TEXT_BYTES else f"… ({len(value):,} bytes)"
    return value[:_MOST_TEXT_BYTES].decode(errors="backslashreplace") + cut


def _events(batch: pa.RecordBatch) -> Iterator[tuple[str, bytes | None, str]]:
    return zip(*(column.to_pylist() for column in batch.columns), strict=True)


def parse_heads(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The function for ``mapInArrow``: converts records ``(partition, offset, timestamp_ms, value)`` to their heads."""
    for batch in batches:
        *place, values = batch.columns
        if len(values):
            heads = zip(*map(_head, values.to_pylist()), strict=True)
            columns = [pa.array(head, kind) for head, kind in zip(heads, _HEAD_TYPES, strict=True)]
            yield pa.RecordBatch.from_arrays([*place, *columns], _HEAD_NAMES)


def _head(value: bytes | None) -> tuple[str | None, int | None, bool, int | None]:
    try:
        event = FragmentEvent.from_json(value or b"")
    except DecodeError:
        return None, None, False, None
    return event.source, event.lsn, event.start, event.follows.tx_offset
