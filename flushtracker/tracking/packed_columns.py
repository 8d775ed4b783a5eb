"""Columns of numbers and of texts as bytes, the format of a group's state and of its part of a micro-batch.

All numbers are little-endian. A column of numbers is stored as its least value and each number's distance from it,
in as many bytes as the greatest distance needs: 0, 1, 2, 4 or 8. So 7, 9, 8 takes three bytes and a head, and a column
of equal numbers takes only the head::

    count (4 bytes), then for each column: least (8), width (1), count distances (width)

Texts are stored as their count, the size in bytes, and the texts joined by NUL.
"""

from collections.abc import Sequence
from struct import Struct, error
from typing import ClassVar, Final, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from flushtracker.errors import StateError
from flushtracker.tracking.packed_state import START_OVER

Ints: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]
_T = TypeVar("_T", bound="LabelledColumns")

_COUNT: Final = Struct("<I")
_COLUMN: Final = Struct("<qB")
"""The least value, and the bytes per distance."""

_TEXTS: Final = Struct("<II")
"""The number of texts, and of bytes."""

_WIDTHS: Final = (0, 1, 2, 4, 8)
_END: Final = "\0"
"""Separates texts; names, paths and topics never contain it."""


def pack_ints(columns: Sequence[Ints] | Ints) -> bytes:
    """Columns of one length, one after the other; the inverse of :func:`unpack_ints`.

    >>> packed = pack_ints([np.array([7, 9, 8]), np.array([5, 5, 5])])
    >>> columns, end = unpack_ints(packed, 0, 2, most=3)
    >>> columns.tolist(), end == len(packed) == 4 + (9 + 3) + 9
    ([[7, 9, 8], [5, 5, 5]], True)
    """
    count = len(columns[0])
    pieces = [_COUNT.pack(count)]
    for column in columns if count else ():
        least, most = int(column.min()), int(column.max())
        width = next(width for width in _WIDTHS if most - least < 1 << 8 * width)
        pieces.append(_COLUMN.pack(least, width))
        if width:
            # A distance of more than 63 bits wraps around, here and when it is added again.
            pieces.append((column - np.int64(least)).astype(f"<u{width}").tobytes())
    return b"".join(pieces)


def unpack_ints(packed: bytes, start: int, columns: int, *, most: int) -> tuple[Ints, int]:
    """The ``columns`` as the rows of an array, and where they end.

    Equal numbers take no bytes, so a damaged count cannot be detected from the size: ``most`` bounds it. Without a
    bound, the process may run out of memory.

    Raises:
        StateError: the bytes are cut off or damaged.
    """
    try:
        (count,) = _COUNT.unpack_from(packed, start)
        if count > most:
            raise cut_off()
        start += _COUNT.size
        found = np.empty((columns, count), np.int64)
        for column in found if count else ():
            least, width = _COLUMN.unpack_from(packed, start)
            start += _COLUMN.size
            if width not in _WIDTHS:
                raise cut_off()
            column.fill(least)
            if width:
                np.add(column, np.frombuffer(packed, f"<u{width}", count, start).astype(np.int64), out=column)
            start += count * width
    except (error, ValueError) as cause:
        raise cut_off() from cause
    return found, start


def pack_texts(texts: Sequence[str]) -> bytes:
    """Texts without NUL; the inverse of :func:`unpack_texts`.

    >>> unpack_texts(pack_texts(["users", "naïve"]), 0)
    (['users', 'naïve'], 20)
    """
    joined = _END.join(texts).encode("utf-8", "surrogatepass")
    return _TEXTS.pack(len(texts), len(joined)) + joined


def unpack_texts(packed: bytes, start: int) -> tuple[list[str], int]:
    """The texts, and where they end; raises ``StateError`` if the bytes are cut off."""
    try:
        count, size = _TEXTS.unpack_from(packed, start)
    except error as cause:
        raise cut_off() from cause
    start += _TEXTS.size
    end = start + size
    try:
        texts = packed[start:end].decode("utf-8", "surrogatepass").split(_END) if count else []
    except UnicodeDecodeError as cause:
        raise cut_off() from cause
    if end > len(packed) or len(texts) != count:
        raise cut_off()
    return texts, end


class LabelledColumns:
    """``numbers`` has ``rows`` rows, and a column for each of ``labels``. Subclasses define the rows."""

    __slots__ = ("labels", "numbers")
    rows: ClassVar[int]

    def __init__(self, labels: Sequence[str], numbers: Ints) -> None:
        self.labels = labels
        self.numbers = numbers

    def __len__(self) -> int:
        return len(self.labels)

    @classmethod
    def joined(cls: type[_T], parts: Sequence[_T]) -> _T:
        """Concatenate ``parts``, at least one."""
        labels = [label for part in parts for label in part.labels]
        return cls(labels, np.concatenate([part.numbers for part in parts], axis=1))

    def pack(self) -> bytes:
        return pack_texts(self.labels) + pack_ints(self.numbers)

    @classmethod
    def unpack(cls: type[_T], packed: bytes) -> _T:
        labels, end = unpack_texts(packed, 0)
        return cls(labels, unpack_ints(packed, end, cls.rows, most=len(labels))[0])


def cut_off() -> StateError:
    """The error for packed state that ends too early or too late, or whose parts do not fit."""
    return StateError(f"the checkpoint's state is cut off or damaged; restore it, or {START_OVER}")
