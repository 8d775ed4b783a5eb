"""The size of events as JSON, and how to split events that are too large.

:func:`max_event_bytes`

:func:`max_event_bytes` bounds one :class:`~flushtracker.events.stream_events.ShapeChangesEvent` by the fragment's
:func:`~flushtracker.wal.changes.change_bytes`. The worst case is 24 bytes of JSON for one byte of a row:

- JSON escapes a control character with six bytes (``\\u0001``). Nothing else takes that many for each byte: a double
  quote is escaped, and in a key a slash is doubled, which makes two; most characters take their UTF-8 bytes.
- A value appears at most four times. An update that changes the key is a delete and an insert, each with a key and a
  row; and an unchanged TOAST column of the old row is in both. A column's name appears at most twice, in both rows.
- Around each name and value are at most 13 bytes of quotes, colons, slashes and commas. The byte counted for each
  column beside its name, and the name's own first byte, cover them.
- An item's own numbers, its keys' schema and table (at most 63 bytes each) and its field names take fewer than 900
  bytes, and a change has at most two items. The 80 bytes counted for each change cover them.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Final

from flushtracker.events.event_json import dump_json
from flushtracker.events.stream_events import FragmentShape, ShapeChangesEvent
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.shape_list import listed_at

_JSON_BYTES_PER_BYTE: Final = 24
_HEAD_BYTES: Final = 4_096
"""Everything but the items: source, shape id of at most 200 characters, writer, ``follows``, commit."""
_SHAPE_NUMBERS_BYTES: Final = 160
"""The size of a shape in a fragment's metadata, without its id and its writer."""
_SHAPE_BYTES: Final = 1_280
"""The maximum size of a shape in a fragment's metadata, with its id and its writer."""


def max_event_bytes(fragment_bytes: int) -> int:
    """The maximum size in bytes of one shape's event for a fragment of ``fragment_bytes``.

    >>> max_event_bytes(2 << 20)
    50335744
    """
    return _HEAD_BYTES + _JSON_BYTES_PER_BYTE * fragment_bytes


def fits_within(event_bytes: int, shapes: Sequence[FragmentShape]) -> bool:
    """Whether a fragment's metadata with these shapes fits into ``event_bytes``, whatever else it contains."""
    if _HEAD_BYTES + _SHAPE_BYTES * len(shapes) <= event_bytes:
        return True
    return _HEAD_BYTES + sum(map(_shape_bytes, shapes)) <= event_bytes


def split_list(event_bytes: int, shapes: Iterable[FragmentShape]) -> Iterator[tuple[FragmentShape, ...]]:
    """Split the shapes of a commit into list parts of at most ``event_bytes`` each, in list order.

    Only shapes with the same ``op_offset`` in the list can exceed that; there are never more than a few.
    """
    part: list[FragmentShape] = []
    part_bytes = _HEAD_BYTES
    in_order = sorted(shapes, key=lambda shape: (listed_at(shape.shape_id), shape.shape_id))
    for _, group in groupby(in_order, key=lambda shape: listed_at(shape.shape_id)):
        same = list(group)
        same_bytes = sum(map(_shape_bytes, same))
        if part and part_bytes + same_bytes > event_bytes:
            yield tuple(part)
            part, part_bytes = [], _HEAD_BYTES
        part += same
        part_bytes += same_bytes
    yield tuple(part)


def _shape_bytes(shape: FragmentShape) -> int:
    """Its size in a fragment's metadata, including the comma."""
    names = dump_json((shape.shape_id, shape.writer)).encode()
    return _SHAPE_NUMBERS_BYTES + len(names)


def halves(event: ShapeChangesEvent) -> tuple[ShapeChangesEvent, ShapeChangesEvent] | None:
    """The event split in two, ``None`` if it has only one change.

    The two items of a split update stay together, because ``last_log_offset`` is a change's offset.
    """
    ops = [item.offset.op_offset >> 1 for item in event.items]
    cuts = [index for index in range(1, len(ops)) if ops[index - 1] != ops[index]]
    if not cuts:
        return None
    cut = cuts[len(cuts) // 2]
    last = LogOffset(event.last_log_offset.tx_offset, 2 * ops[cut - 1])
    first = replace(event, last_log_offset=last, commit=None, items=event.items[:cut])
    return first, replace(event, follows=last, start=False, has_begin=False, items=event.items[cut:])
