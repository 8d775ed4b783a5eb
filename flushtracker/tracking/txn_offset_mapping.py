"""``TxnOffsetMapping``: the pending transactions of one shape, oldest first, as columns of numbers.

A stalled shape has thousands of pending transactions, and each micro-batch that reaches the shape stores all of them
again. So they are kept in memory as they are stored: in four arrays of unsigned numbers, each as narrow as its values
allow, usually 7 bytes for a transaction. Reading, extending, cutting and storing them creates no object for each.

Of each transaction the arrays have its commit LSN, relative to ``_base`` (``_txs``); how far the first of the
transactions that were merged into it lies below (``_spans``, else 0); the last operation that the shape writes for it
(``_last_ops``); and its boundary's (``_ops``).
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from struct import Struct
from typing import Final

from flushtracker.wal.log_offset import LogOffset

_HEAD: Final = Struct("<Iq4s")
"""The number of transactions, ``_base``, and the type code of each array; the arrays follow, little-endian."""

_CODES: Final = "BHIQ"
_WIDE_CODES: Final = "IQ"
"""For ``_txs``: a few transactions are a few kilobytes of WAL apart, so narrower arrays would soon be widened."""

_BYTES: Final = {code: array(code).itemsize for code in _CODES}
_IS_BIG_ENDIAN: Final = array("H", [1]).tobytes() == b"\x00\x01"


@dataclass(frozen=True, slots=True)
class PendingTxn:
    """A committed transaction that the shape has not flushed, or several adjacent ones merged.

    ``first_tx_offset`` is the commit LSN of the (first) transaction, ``last_offset`` the last offset that the shape
    writes for the (last) one, and ``boundary`` its end. An update that splits is written one past the boundary.
    """

    first_tx_offset: int
    last_offset: LogOffset
    boundary: LogOffset


class TxnOffsetMapping:
    """Pending transactions in the order of their commits: *last offset that the shape writes → boundary*.

    >>> txns = TxnOffsetMapping([PendingTxn(100, LogOffset(100, 2), LogOffset(100, 4))])
    >>> txns.append(LogOffset(300, 7), LogOffset(300, 6))
    >>> txns.first_tx_offset, txns.last_sent
    (100, LogOffset(tx_offset=300, op_offset=7))
    >>> txns.drop_through(LogOffset(100, 2))
    >>> list(txns)  # doctest: +NORMALIZE_WHITESPACE
    [PendingTxn(first_tx_offset=300, last_offset=LogOffset(tx_offset=300, op_offset=7),
                boundary=LogOffset(tx_offset=300, op_offset=6))]
    """

    __slots__ = ("_base", "_last_ops", "_ops", "_spans", "_txs")

    def __init__(self, txns: Iterable[PendingTxn] = ()) -> None:
        txns = list(txns)
        tx_offsets = [txn.boundary.tx_offset for txn in txns]
        self._base = tx_offsets[0] if txns else 0
        self._txs = _narrow([tx_offset - self._base for tx_offset in tx_offsets], _WIDE_CODES)
        self._spans = _narrow([txn.boundary.tx_offset - txn.first_tx_offset for txn in txns])
        self._last_ops = _narrow([txn.last_offset.op_offset for txn in txns])
        self._ops = _narrow([txn.boundary.op_offset for txn in txns])

    def __len__(self) -> int:
        return len(self._txs)

    def __getitem__(self, index: int) -> PendingTxn:
        tx_offset = self._base + self._txs[index]
        last_offset, boundary = LogOffset(tx_offset, self._last_ops[index]), LogOffset(tx_offset, self._ops[index])
        return PendingTxn(tx_offset - self._spans[index], last_offset, boundary)

    def __iter__(self) -> Iterator[PendingTxn]:
        return map(self.__getitem__, range(len(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TxnOffsetMapping) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # It changes.

    def __repr__(self) -> str:
        return f"TxnOffsetMapping({list(self)})"

    @property
    def first_tx_offset(self) -> int:
        """The commit LSN of the first transaction; there must be one, as for the next two properties."""
        return self._base + self._txs[0] - self._spans[0]

    @property
    def last_tx_offset(self) -> int:
        """The commit LSN of the last transaction."""
        return self._base + self._txs[-1]

    @property
    def last_sent(self) -> LogOffset:
        """The greatest offset in the mapping."""
        return LogOffset(self.last_tx_offset, max(self._last_ops[-1], self._ops[-1]))

    def append(self, last_offset: LogOffset, boundary: LogOffset) -> None:
        """Add a transaction that committed after all others. O(1), amortized."""
        tx_offset = boundary.tx_offset
        if not self._txs:
            self._base = tx_offset
        try:
            self._txs.append(tx_offset - self._base)
        except OverflowError:
            self._append_from_a_later_base(tx_offset)
        self._spans.append(0)
        self._last_ops = _appended(self._last_ops, last_offset.op_offset)
        self._ops = _appended(self._ops, boundary.op_offset)

    def extend_last(self, last_offset: LogOffset, boundary: LogOffset) -> None:
        """Move the end of the last transaction up: it was resent, cut into other fragments."""
        self._last_ops = _appended(self._last_ops, max(self._last_ops.pop(), last_offset.op_offset))
        self._ops = _appended(self._ops, max(self._ops.pop(), boundary.op_offset))

    def drop_through(self, flushed: LogOffset) -> None:
        """Drop the leading transactions that a flush up to ``flushed`` completes. O(log n), and the cut."""
        done = bisect_left(self._txs, flushed.tx_offset - self._base)
        if done < len(self) and LogOffset(self._base + self._txs[done], self._last_ops[done]) <= flushed:
            done += 1
        if done:
            del self._txs[:done], self._spans[:done], self._last_ops[:done], self._ops[:done]

    def merge_neighbours(self, most: int) -> None:
        """Merge adjacent pairs until at most ``most`` remain, at least 1. O(n).

        A merged transaction is flushed when the later one is: never unsafe, only less exact.
        """
        firsts = [tx - span for tx, span in zip(self._txs, self._spans, strict=True)]
        while len(self) > most:
            odd = len(self) & ~1
            firsts = firsts[::2]
            self._txs = self._txs[1::2] + self._txs[odd:]
            self._last_ops = self._last_ops[1::2] + self._last_ops[odd:]
            self._ops = self._ops[1::2] + self._ops[odd:]
        self._spans = _narrow([tx - first for tx, first in zip(self._txs, firsts, strict=True)])

    def pack(self) -> bytes:
        """The mapping as bytes; the inverse of :meth:`unpack`."""
        columns = self._txs, self._spans, self._last_ops, self._ops
        codes = "".join([column.typecode for column in columns]).encode()
        return b"".join([_HEAD.pack(len(self._txs), self._base, codes), *map(_to_bytes, columns)])

    @classmethod
    def unpack(cls, packed: bytes, start: int) -> "TxnOffsetMapping":
        """Read the output of :meth:`pack`, which is at ``start``."""
        count, base, codes = _HEAD.unpack_from(packed, start)
        start += _HEAD.size
        columns = []
        for code in codes.decode():
            end = start + count * _BYTES[code]
            columns.append(_from_bytes(code, packed[start:end]))
            start = end
        txns = cls.__new__(cls)
        txns._base = base
        txns._txs, txns._spans, txns._last_ops, txns._ops = columns
        return txns

    def _append_from_a_later_base(self, tx_offset: int) -> None:
        """Append where the distance to ``_base`` is too large for the array: transactions at its start are gone."""
        shift = self._txs[0]
        self._base += shift
        self._txs = _narrow([*(tx - shift for tx in self._txs), tx_offset - self._base], _WIDE_CODES)


def _narrow(values: list[int], codes: str = _CODES) -> "array[int]":
    """An array as narrow as the values allow, with room for twice as much, so that widening it is rare."""
    most = 2 * max(values, default=0)
    for code in codes[:-1]:
        if most < 1 << 8 * _BYTES[code]:
            return array(code, values)
    return array(codes[-1], values)


def _appended(column: "array[int]", value: int) -> "array[int]":
    try:
        column.append(value)
    except OverflowError:
        return _narrow([*column, value])
    return column


def _to_bytes(column: "array[int]") -> bytes:
    if _IS_BIG_ENDIAN:
        column = column[:]
        column.byteswap()
    return column.tobytes()


def _from_bytes(code: str, packed: bytes) -> "array[int]":
    column = array(code, packed)
    if _IS_BIG_ENDIAN:
        column.byteswap()
    return column
