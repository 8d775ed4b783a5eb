"""What a recovery needs to know of each fragment in the topic: read by Python workers, as all events are."""

from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from flushtracker.errors import DecodeError
from flushtracker.events.stream_events import FragmentEvent

HEAD_SCHEMA: Final = (
    "partition INT, offset BIGINT, timestamp_ms BIGINT, source STRING, lsn BIGINT, start BOOLEAN, follows BIGINT"
)
"""A record's place and time, and its fragment's source, LSN, whether it is a start, and the LSN that it follows.

Where the record cannot be read, the source is null.
"""

_NAMES: Final = [field.split()[0] for field in HEAD_SCHEMA.split(", ")]
_TYPES: Final = (pa.string(), pa.int64(), pa.bool_(), pa.int64())


def parse_heads(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The function for ``mapInArrow``: records ``(partition, offset, timestamp_ms, value)`` into their heads."""
    for batch in batches:
        *place, values = batch.columns
        if len(values):
            heads = zip(*map(_head, values.to_pylist()), strict=True)
            columns = [pa.array(head, kind) for head, kind in zip(heads, _TYPES, strict=True)]
            yield pa.RecordBatch.from_arrays([*place, *columns], _NAMES)


def _head(value: bytes | None) -> tuple[str | None, int | None, bool, int | None]:
    try:
        event = FragmentEvent.from_json(value or b"")
    except DecodeError:
        return None, None, False, None
    return event.source, event.lsn, event.start, event.follows.tx_offset
