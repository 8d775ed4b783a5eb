"""The largest JSON that a fragment's changes can become, whatever their values contain.

``max_event_bytes`` bounds one :class:`~flushtracker.events.stream_events.ShapeChangesEvent` by the fragment's
:func:`~flushtracker.wal.changes.change_bytes`. The worst case is 24 bytes of JSON for one byte of a row:

- JSON escapes a control character with six bytes (``\\u0001``). Nothing else takes that many for each byte: in a key, a
  double quote is doubled and both are escaped, which makes four; most characters take their UTF-8 bytes.
- A value appears at most four times. An update that changes the key is a delete and an insert, each with a key and a
  row; and an unchanged TOAST column of the old row is in both. A column's name appears at most twice, in both rows.
- Around each name and value are at most 13 bytes of quotes, colons, slashes and commas. The byte counted for each
  column beside its name, and the name's own first byte, cover them.
- An item's own numbers, its keys' schema and table (at most 63 bytes each) and its field names take fewer than 900
  bytes, and a change has at most two items. The 80 bytes counted for each change cover them.
"""

from typing import Final

_JSON_BYTES_PER_BYTE: Final = 24
_HEAD_BYTES: Final = 4_096
"""Everything but the items: the source, the shape's id of at most 200 characters, what it follows, and the commit."""


def max_event_bytes(fragment_bytes: int) -> int:
    """The most bytes that the changes of one fragment, of ``fragment_bytes``, can have as one shape's event.

    >>> max_event_bytes(2 << 20)
    50335744
    """
    return _HEAD_BYTES + _JSON_BYTES_PER_BYTE * fragment_bytes


def fragment_bytes_within(event_bytes: int) -> int:
    """The largest fragment whose changes cannot become more than ``event_bytes``.

    >>> max_event_bytes(fragment_bytes_within(64 << 20)) <= 64 << 20
    True
    """
    return (event_bytes - _HEAD_BYTES) // _JSON_BYTES_PER_BYTE
