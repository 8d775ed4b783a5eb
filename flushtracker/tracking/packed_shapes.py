"""``PackedShapes``: the shapes of a group as they are stored, each unpacked only when it is used.

A micro-batch usually reaches few of the shapes that are pending. Each shape is a record of its own, whose head has what
the group's report needs; a record that no event reaches is neither unpacked nor packed again, but copied.

A record is a head (flags, ``since_ms``, and ``last_sent`` and ``last_flushed`` of a pending shape, else zeros), the
offsets that the flags name, and the pending transactions. All numbers are little-endian.
"""

from collections.abc import Iterator, MutableMapping
from struct import Struct
from typing import Final

from flushtracker.tracking.flush_tracker import Pending
from flushtracker.tracking.shape_offsets import ShapeOffsets
from flushtracker.tracking.source_tracker import GroupReport
from flushtracker.tracking.txn_offset_mapping import TxnOffsetMapping
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.packed_records import pack_records, unpack_records

_PENDING: Final = 1
_TXNS: Final = 2
_OPEN: Final = 4
_FLUSHED: Final = 8
_REMOVED: Final = 16

_HEAD: Final = Struct("<Bqqqqq")
_OFFSET: Final = Struct("<qq")


class PackedShapes(MutableMapping[str, ShapeOffsets]):
    """The shapes of one group by id. Change a value only until the next :meth:`report` or :meth:`pack`.

    >>> shapes = PackedShapes()
    >>> shapes["users"] = ShapeOffsets(flushed_offset=LogOffset(100, 2))
    >>> PackedShapes.unpack(shapes.pack(), 0)["users"].flushed_offset
    LogOffset(tx_offset=100, op_offset=2)
    """

    def __init__(self) -> None:
        self._records: dict[str, bytes] = {}
        self._unpacked: dict[str, ShapeOffsets] = {}

    def __getitem__(self, shape_id: str) -> ShapeOffsets:
        shape = self._unpacked.get(shape_id)
        if shape is None:
            shape = self._unpacked[shape_id] = unpack_shape(self._records[shape_id])
        return shape

    def __setitem__(self, shape_id: str, shape: ShapeOffsets) -> None:
        self._records[shape_id] = b""  # Keeps its place; packed later.
        self._unpacked[shape_id] = shape

    def __delitem__(self, shape_id: str) -> None:
        del self._records[shape_id]
        self._unpacked.pop(shape_id, None)

    def __iter__(self) -> Iterator[str]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)

    def __contains__(self, shape_id: object) -> bool:
        return shape_id in self._records

    def __repr__(self) -> str:
        return repr(dict(self))

    def without_transactions(self) -> list[str]:
        """The shapes that are kept only for a flush or a removal. O(shapes)."""
        unpacked = [shape_id for shape_id, shape in self._unpacked.items() if not shape.has_transactions]
        return unpacked + [
            shape_id
            for shape_id, record in self._records.items()
            if shape_id not in self._unpacked and not record[0] & (_TXNS | _OPEN)
        ]

    def report(self) -> GroupReport:
        """Reduce the shapes to the row for the driver. O(shapes), from their heads alone."""
        self._pack_all()
        pending_shapes, last_sent, blocking = 0, (-1, 0), None
        for shape_id, record in self._records.items():
            if record[0] & _PENDING:
                _, since_ms, sent_tx, sent_op, flushed_tx, flushed_op = _HEAD.unpack_from(record)
                pending_shapes += 1
                last_sent = max(last_sent, (sent_tx, sent_op))
                candidate = (flushed_tx, flushed_op, shape_id, since_ms)
                blocking = candidate if blocking is None or candidate < blocking else blocking
        if blocking is None:
            return GroupReport()
        flushed_tx, flushed_op, shape_id, since_ms = blocking
        pending = Pending(LogOffset(*last_sent), LogOffset(flushed_tx, flushed_op), since_ms)
        return GroupReport(pending_shapes, pending, shape_id)

    def pack(self) -> bytes:
        """All shapes as bytes; the inverse of :meth:`unpack`."""
        self._pack_all()
        return pack_records(self._records)

    @classmethod
    def unpack(cls, packed: bytes, start: int) -> "PackedShapes":
        """Read the output of :meth:`pack`, from ``start`` to the end; raises ``StateError`` if that is not its end."""
        shapes = cls()
        shapes._records = unpack_records(packed, start)
        return shapes

    def _pack_all(self) -> None:
        for shape_id, shape in self._unpacked.items():
            self._records[shape_id] = pack_shape(shape)
        self._unpacked.clear()


def pack_shape(shape: ShapeOffsets) -> bytes:
    """The record of a shape; the inverse of :func:`unpack_shape`."""
    flags, pending, numbers = 0, shape.pending(), [0, 0, 0, 0]
    if pending is not None:
        sent, flushed = pending.last_sent, pending.last_flushed
        flags, numbers = _PENDING, [sent.tx_offset, sent.op_offset, flushed.tx_offset, flushed.op_offset]
    pieces = [b""]
    offsets = (_OPEN, shape.open_offset), (_FLUSHED, shape.flushed_offset), (_REMOVED, shape.removed_offset)
    for flag, offset in offsets:
        if offset is not None:
            flags |= flag
            pieces.append(_OFFSET.pack(offset.tx_offset, offset.op_offset))
    if shape.txn_offset_mapping:
        flags |= _TXNS
        pieces.append(shape.txn_offset_mapping.pack())
    pieces[0] = _HEAD.pack(flags, shape.since_ms, *numbers)
    return b"".join(pieces)


def unpack_shape(record: bytes) -> ShapeOffsets:
    """Read the output of :func:`pack_shape`."""
    flags, since_ms = _HEAD.unpack_from(record)[:2]
    start = _HEAD.size
    offsets: dict[int, LogOffset] = {}
    for flag in (_OPEN, _FLUSHED, _REMOVED):
        if flags & flag:
            offsets[flag] = LogOffset(*_OFFSET.unpack_from(record, start))
            start += _OFFSET.size
    txns = TxnOffsetMapping.unpack(record, start) if flags & _TXNS else TxnOffsetMapping()
    return ShapeOffsets(txns, offsets.get(_OPEN), offsets.get(_FLUSHED), offsets.get(_REMOVED), since_ms)
