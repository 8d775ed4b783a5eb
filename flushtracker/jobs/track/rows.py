"""Turns events into the rows that the stateful operator reads.

Python workers parse the events before they are grouped, and divide them: each row has what one task has read for one
group, packed into columns (:mod:`flushtracker.jobs.track.event_columns`). So the JVM moves a few rows of bytes,
however many events there are. A row's key is ``(source, shape_group)``: the shapes' group, or :data:`CHAIN` for the
source's chain. An event that cannot be read is a row of its own, with an empty source.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Final, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import types as T  # noqa: N812 (the name that Spark's own documentation gives it)

from flushtracker.config.streams import FRAGMENTS
from flushtracker.errors import DecodeError
from flushtracker.jobs.track.event_columns import EventColumns, GroupPart
from flushtracker.spark.worker_garbage import spare_imports

ROW_SCHEMA: Final = T.StructType(
    [
        T.StructField("source", T.StringType()),
        T.StructField("shape_group", T.StringType()),
        T.StructField("packed", T.BinaryType()),
    ]
)
"""What the workers return: the operator's input."""

_ARROW_SCHEMA: Final = pa.schema(
    [("source", pa.string()), ("shape_group", pa.string()), ("packed", pa.binary())],
)
_MAX_SIZE: Final = 200_000
"""Of what a task keeps until it makes rows of it: flushes and parts of fragments."""


class Unreadable(NamedTuple):
    """An event that cannot be read, of the stream named, and where it was read; ``text`` is what it has."""

    stream: str
    text: str | None
    place: str
    reason: str

    def part(self) -> GroupPart:
        """Its row; the inverse of :meth:`unpack`."""
        return GroupPart("", "", json.dumps(self).encode())

    @classmethod
    def unpack(cls, packed: bytes) -> "Unreadable":
        """Read what :meth:`part` packed."""
        return cls(*json.loads(packed))


def to_rows(raw: DataFrame, shape_groups: int) -> DataFrame:
    """Turn events ``(stream, value, place)`` into rows of :data:`ROW_SCHEMA`.

    ``stream`` is ``fragments`` or ``flushes``, ``value`` the event's bytes, ``place`` names where it was read.
    With 0 ``shape_groups`` every shape is its own group.
    """
    return raw.select("stream", "value", "place").mapInArrow(event_parser(shape_groups), ROW_SCHEMA)


def event_parser(shape_groups: int) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for ``mapInArrow``: batches of events into batches of rows."""

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
    """What the groups get of batches of events ``(stream, value, place)``: lists that are not empty."""
    columns = EventColumns()
    unreadable: list[GroupPart] = []
    for event in chain.from_iterable(batches):
        failure = _read(columns, *event)
        if failure is not None:
            unreadable.append(failure.part())
        if columns.size + len(unreadable) >= _MAX_SIZE:
            yield [*columns.parts(shape_groups), *unreadable]
            columns, unreadable = EventColumns(), []
    if parts := [*columns.parts(shape_groups), *unreadable]:
        yield parts


def _read(columns: EventColumns, stream: str, value: bytes | None, place: str) -> Unreadable | None:
    """Add an event to the columns, or return why it cannot be read."""
    if value is None:
        return Unreadable(stream, None, place, "it has no value")
    try:
        if stream == FRAGMENTS:
            columns.add_fragment(value, place)
        else:
            columns.add_flush(value)
    except DecodeError as error:
        return Unreadable(stream, value.decode(errors="backslashreplace"), place, str(error))
    return None


def _events(batch: pa.RecordBatch) -> Iterator[tuple[str, bytes | None, str]]:
    return zip(*(column.to_pylist() for column in batch.columns), strict=True)
