"""Insert, Update and Delete messages as the server writes them, with any values."""

from collections.abc import Sequence
from enum import Enum
from struct import pack
from typing import Final, Literal, TypeAlias

from flushtracker.wal.pgoutput import RowMessage


class Unchanged(Enum):
    """The type of ``UNCHANGED``, a TOAST value that an update did not change."""

    UNCHANGED = "u"


UNCHANGED: Final = Unchanged.UNCHANGED
Values: TypeAlias = Sequence[str | bytes | Unchanged | None]
"""One value for each column: text, binary, unchanged, or NULL."""


def row(*values: str | bytes | Unchanged | None) -> bytes:
    parts = [pack(">h", len(values))]
    for value in values:
        if value is None:
            parts.append(b"n")
        elif isinstance(value, Unchanged):
            parts.append(b"u")
        elif isinstance(value, bytes):
            parts.append(b"b" + pack(">i", len(value)) + value)
        else:
            text = value.encode()
            parts.append(b"t" + pack(">i", len(text)) + text)
    return b"".join(parts)


def insert(relation_id: int, new: Values) -> RowMessage:
    return RowMessage("Insert", relation_id, b"I" + pack(">I", relation_id) + b"N" + row(*new))


def update(relation_id: int, new: Values, *, key: Values | None = None, old: Values | None = None) -> RowMessage:
    """``key`` is an old row of the key alone, ``old`` a whole one."""
    before = b"" if key is None else _old("K", key)
    before += b"" if old is None else _old("O", old)
    return RowMessage("Update", relation_id, b"U" + pack(">I", relation_id) + before + b"N" + row(*new))


def delete(relation_id: int, *, key: Values | None = None, old: Values | None = None) -> RowMessage:
    before = _old("K", key or ()) if old is None else _old("O", old)
    return RowMessage("Delete", relation_id, b"D" + pack(">I", relation_id) + before)


def _old(kind: Literal["K", "O"], values: Values) -> bytes:
    return kind.encode() + row(*values)
