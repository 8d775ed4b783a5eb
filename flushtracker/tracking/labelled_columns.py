"""``LabelledColumns``: what a micro-batch has for a group, as columns of numbers that have a text each."""

from collections.abc import Sequence
from typing import ClassVar, TypeVar

import numpy as np

from flushtracker.tracking.packed_columns import Ints, pack_ints, pack_texts, unpack_ints, unpack_texts

_T = TypeVar("_T", bound="LabelledColumns")


class LabelledColumns:
    """``numbers`` has ``rows`` rows, and a column for each of ``labels``; what they are is said where they are used."""

    __slots__ = ("labels", "numbers")
    rows: ClassVar[int]

    def __init__(self, labels: Sequence[str], numbers: Ints) -> None:
        self.labels = labels
        self.numbers = numbers

    def __len__(self) -> int:
        return len(self.labels)

    @classmethod
    def joined(cls: type[_T], parts: Sequence[_T]) -> _T:
        """All columns of ``parts``, at least one."""
        labels = [label for part in parts for label in part.labels]
        return cls(labels, np.concatenate([part.numbers for part in parts], axis=1))

    def pack(self) -> bytes:
        """The columns as bytes; the inverse of :meth:`unpack`."""
        return pack_texts(self.labels) + pack_ints(self.numbers)

    @classmethod
    def unpack(cls: type[_T], packed: bytes) -> _T:
        """Read the output of :meth:`pack`."""
        labels, end = unpack_texts(packed, 0)
        return cls(labels, unpack_ints(packed, end, cls.rows)[0])
