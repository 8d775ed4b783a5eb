"""Turns events into the rows that the stateful operator reads.

Python workers parse each event with :mod:`flushtracker.events.stream_events`, the only reader there is, before the
rows are grouped. A fragment becomes one row for its source's chain and one for each of its shapes; a flush
notification becomes one row, and so does an event that cannot be read. A row's key is ``(source, shape_group)``: the
shape's group, :data:`CHAIN` for the source's chain, and an empty source for an unreadable event.
"""

from collections.abc import Iterator
from typing import Final, TypeAlias

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (the name that Spark's own documentation gives it)
from pyspark.sql import types as T  # noqa: N812 (likewise)

from flushtracker.errors import DecodeError
from flushtracker.events.stream_events import FlushNotification, FragmentEvent
from flushtracker.tracking.source_tracker import CHAIN

FRAGMENTS: Final = "fragments"
FLUSHES: Final = "flushes"

# The kinds of row. For a chain link (tx, op) is `follows`, for a shape's part of a fragment its last offset (op -1:
# none), for a flush or a removal the offset notified.
LINK: Final = 0
SHAPE_FRAGMENT: Final = 1
FLUSHED: Final = 2
REMOVED: Final = 3
UNREADABLE_FRAGMENT: Final = 4
UNREADABLE_FLUSH: Final = 5

_PARSED_SCHEMA: Final = T.StructType(
    [
        T.StructField("source", T.StringType()),
        T.StructField("kind", T.LongType()),
        T.StructField("shape_id", T.StringType()),
        T.StructField("tx", T.LongType()),
        T.StructField("op", T.LongType()),
        T.StructField("last_tx", T.LongType()),
        T.StructField("last_op", T.LongType()),
        T.StructField("start", T.BooleanType()),
        T.StructField("commit", T.BooleanType()),
        T.StructField("place", T.StringType()),
        T.StructField("value", T.StringType()),
        T.StructField("reason", T.StringType()),
    ]
)
"""What the workers return. No number is ever null: pandas would turn the column into floats and round the LSNs."""

ROW_SCHEMA: Final = T.StructType(
    [*_PARSED_SCHEMA.fields, T.StructField("shape_group", T.StringType()), T.StructField("now_ms", T.LongType())]
)
"""The operator's input."""

_ARROW_TYPES: Final = {"string": pa.string(), "bigint": pa.int64(), "boolean": pa.bool_()}
_ARROW_SCHEMA: Final = pa.schema(
    [(field.name, _ARROW_TYPES[field.dataType.simpleString()]) for field in _PARSED_SCHEMA.fields]
)
_MAX_ROWS: Final = 10_000
"""Of one Arrow batch, unless a single event has more."""

Row: TypeAlias = tuple[str, int, str | None, int, int, int, int, bool, bool, str | None, str | None, str | None]
"""What an event becomes, without its group and the time."""


def to_rows(raw: DataFrame, shape_groups: int) -> DataFrame:
    """Turn events ``(stream, value, place)`` into rows of :data:`ROW_SCHEMA`.

    ``stream`` is :data:`FRAGMENTS` or :data:`FLUSHES`, ``value`` the event's bytes, ``place`` names where it was read.
    """
    shape_id = F.col("shape_id")
    group = F.when(shape_id.isNull(), CHAIN).otherwise(shape_group_of(shape_id, shape_groups))
    return (
        raw.select("stream", "value", "place")
        .mapInArrow(parse_events, _PARSED_SCHEMA)
        .withColumn("shape_group", group)
        .withColumn("now_ms", F.unix_millis(F.current_timestamp()))
        .select(*ROW_SCHEMA.fieldNames())
    )


def shape_group_of(shape_id: Column, shape_groups: int) -> Column:
    """A shape's group, which never changes; with 0 ``shape_groups`` every shape is its own group."""
    if shape_groups == 0:
        return shape_id
    return F.pmod(F.xxhash64(shape_id), F.lit(shape_groups)).cast("string")


def parse_events(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The function for ``mapInArrow``: batches of events into batches of rows."""
    for batch in batches:
        rows: list[Row] = []
        for stream, value, place in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            rows += _read(stream, value, place)
            if len(rows) >= _MAX_ROWS:
                yield _arrow_batch(rows)
                rows = []
        if rows:
            yield _arrow_batch(rows)


def _arrow_batch(rows: list[Row]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    return pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, _ARROW_SCHEMA, strict=True)],
        schema=_ARROW_SCHEMA,
    )


def _read(stream: str, value: bytes | None, place: str) -> list[Row]:
    try:
        if stream == FRAGMENTS:
            return fragment_rows(FragmentEvent.from_json(value or b""), place)
        return [flush_row(FlushNotification.from_json(value or b""))]
    except DecodeError as error:
        kind = UNREADABLE_FRAGMENT if stream == FRAGMENTS else UNREADABLE_FLUSH
        text = None if value is None else value.decode(errors="backslashreplace")
        return [unreadable_row(kind, text, place, "it has no value" if value is None else str(error))]


def fragment_rows(event: FragmentEvent, place: str) -> list[Row]:
    """The row of the chain's link, and one for each shape."""
    source, follows, commit = event.source, event.follows, event.commit is not None
    last_tx, last_op = event.last_log_offset
    rows: list[Row] = [
        (source, LINK, None, *follows, last_tx, last_op, event.start, commit, place, None, None),
    ]
    for shape in event.shapes:
        tx, op = (-1, -1) if shape.last_offset is None else shape.last_offset
        rows.append((source, SHAPE_FRAGMENT, shape.shape_id, tx, op, last_tx, last_op, False, commit, None, None, None))
    return rows


def flush_row(event: FlushNotification) -> Row:
    """The row of a flush or of a removal."""
    kind = REMOVED if event.type == "removed" else FLUSHED
    return (event.source, kind, event.shape_id, *event.offset, -1, -1, False, False, None, None, None)


def unreadable_row(kind: int, text: str | None, place: str, reason: str) -> Row:
    """The row of an event that cannot be read; ``text`` is what it has."""
    return ("", kind, None, -1, -1, -1, -1, False, False, place, text, reason)
