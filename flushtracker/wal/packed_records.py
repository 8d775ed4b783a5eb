"""Named records as bytes: how a group of shapes is stored, so that one shape is read without the others."""

from collections.abc import Mapping
from struct import Struct, error
from typing import Final

from flushtracker.errors import StateError

_COUNT: Final = Struct("<I")
_SIZES: Final = Struct("<II")
"""Of a record's name in UTF-8, and of the record; both follow."""


def pack_records(records: Mapping[str, bytes]) -> bytes:
    """The records with their names; the inverse of :func:`unpack_records`."""
    pieces = [_COUNT.pack(len(records))]
    for name, record in records.items():
        encoded = name.encode("utf-8", "surrogatepass")
        pieces += [_SIZES.pack(len(encoded), len(record)), encoded, record]
    return b"".join(pieces)


def unpack_records(packed: bytes, start: int) -> dict[str, bytes]:
    """Read the output of :func:`pack_records`, from ``start`` to the end; raises ``StateError`` if that is not its end.

    >>> unpack_records(pack_records({"users": b"12"}), 0)
    {'users': b'12'}
    """
    records: dict[str, bytes] = {}
    end = start
    try:
        (count,) = _COUNT.unpack_from(packed, start)
        end += _COUNT.size
        for _ in range(count):
            name_size, size = _SIZES.unpack_from(packed, end)
            name_start = end + _SIZES.size
            name_end = name_start + name_size
            end = name_end + size
            records[packed[name_start:name_end].decode("utf-8", "surrogatepass")] = packed[name_end:end]
    except (error, UnicodeDecodeError):
        end = -1
    if end != len(packed):
        raise StateError("the checkpoint's state is cut off; restore it, or start with a new one and a resend")
    return records
