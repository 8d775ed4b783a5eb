"""``ShapeSnapshot``: the rows that a shape had at one moment, in its log, and which of its transactions they contain.

The rows are items ``insert`` before every transaction, at ``(0, n)``, and after them one row :data:`SNAPSHOT` at
``(0, ∞)``; all are appended in one commit. The ``chunk`` of each is the attempt. A snapshot taken again has a greater
one, and replaces the snapshot before: rows at ``tx_offset`` 0 of other attempts do not count.

A shape's transactions are appended whether or not its snapshot contains them. Readers leave out those that it contains
(:meth:`ShapeSnapshot.contains`), so nobody has to wait for a snapshot, and none is wrong because it was slow. Which
these are follows from PostgreSQL's rule of visibility, not from an LSN: transactions do not become visible in the order
of their commits in the WAL.

Every later attempt must contain all that an earlier one contains, because upkeep may delete what the snapshot contains.
"""

import json
from dataclasses import dataclass
from typing import Final

from flushtracker.errors import DecodeError
from flushtracker.events.strict_json import dump_json, integer_field, integers_field
from flushtracker.wal.mvcc_snapshot import MvccSnapshot

_XIDS: Final = 2**32

SNAPSHOT: Final = "snapshot"
"""The operation of the row that ends a snapshot."""


@dataclass(frozen=True, slots=True)
class ShapeSnapshot:
    """The snapshot of one ``attempt``: the rows that ``visible`` saw.

    ``lsn`` is the end of the WAL after ``visible`` was taken: what commits above it is not in the snapshot.
    ``next_xid`` was assigned after that, so what commits at or below ``lsn`` has a lower xid, of 64 bits.

    >>> snapshot = ShapeSnapshot(7, MvccSnapshot.parse("100:105:102"), lsn=900, next_xid=108)
    >>> snapshot.contains(800, 101), snapshot.contains(800, 102), snapshot.contains(901, 101)
    (True, False, False)
    >>> snapshot.to_json()
    '{"xmin":100,"xmax":105,"xip":[102],"lsn":900,"next":108}'
    >>> ShapeSnapshot.parse(7, snapshot.to_json()) == snapshot
    True
    """

    attempt: int
    visible: MvccSnapshot
    lsn: int
    next_xid: int

    def __post_init__(self) -> None:
        """Raise ``ValueError`` if :meth:`contains` cannot distinguish a later transaction from an earlier one."""
        if not 0 <= self.next_xid - self.visible.xmax < _XIDS:
            raise ValueError(f"next is {self.next_xid}, expected {self.visible.xmax}, xmax, or a little more")

    def contains(self, tx_offset: int, xid: int) -> bool:
        """Whether the snapshot's rows have the effects of the shape's transaction at ``tx_offset``.

        ``xid`` has 32 bits, as in the stream. The transaction may be of any age: it was in progress, or began before
        the end of the WAL was read, or it was seen.
        """
        return 0 < tx_offset <= self.lsn and xid not in self.unseen and not self.is_later(xid)

    @property
    def unseen(self) -> frozenset[int]:
        """The 32-bit xids of the transactions that were in progress."""
        return frozenset(xid % _XIDS for xid in self.visible.xip)

    def is_later(self, xid: int) -> bool:
        """Whether a transaction that has committed at or below ``lsn`` is not before the snapshot's xmax."""
        return (xid - self.visible.xmax) % _XIDS < self.next_xid - self.visible.xmax

    def to_json(self) -> str:
        """The ``value`` of the row that ends the snapshot."""
        visible = self.visible
        fields = {"xmin": visible.xmin, "xmax": visible.xmax, "xip": visible.xip}
        return dump_json({**fields, "lsn": self.lsn, "next": self.next_xid})

    @classmethod
    def parse(cls, attempt: int, text: str | None) -> "ShapeSnapshot":
        """Read the ``chunk`` and the ``value`` of the row that ends a snapshot; raises ``DecodeError``."""
        try:
            fields = json.loads(text or "null")
        except ValueError as error:
            raise DecodeError(f"value of the snapshot {attempt} in a shape's log is not JSON") from error
        if not isinstance(fields, dict):
            raise DecodeError(f"value of the snapshot {attempt} in a shape's log is not a JSON object")
        try:
            xmin, xmax, lsn, next_xid = (integer_field(fields, name, 0) for name in ("xmin", "xmax", "lsn", "next"))
            return cls(attempt, MvccSnapshot(xmin, xmax, integers_field(fields, "xip", 0)), lsn, next_xid)
        except (DecodeError, ValueError) as error:
            raise DecodeError(f"value of the snapshot {attempt} in a shape's log: {error}") from error
