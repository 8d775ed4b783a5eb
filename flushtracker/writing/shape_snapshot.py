"""``ShapeSnapshot``: the rows that a shape had at one moment, in its log, and which of its transactions they contain.

The rows are items ``insert`` before every transaction, at ``(0, n)``, and after them one row :data:`SNAPSHOT` at
``(0, ∞)``; all are appended in one commit. The ``chunk`` of each is the attempt. A snapshot taken again has a greater
one, and replaces the snapshot before: rows at ``tx_offset`` 0 of other attempts do not count.

A shape's transactions are appended whether or not its snapshot contains them. Readers leave out those that it contains
(:meth:`ShapeSnapshot.contains`), so nobody has to wait for a snapshot, and none is wrong because it was slow. Which
these are is PostgreSQL's rule of visibility, not an LSN: transactions become visible in another order than their
commits have in the WAL.

Every later attempt must contain all that an earlier one contains, because a merge deletes what the snapshot contains.
"""

import json
from dataclasses import dataclass
from typing import Final

from flushtracker.errors import DecodeError
from flushtracker.events.strict_json import dump_json, integer_field, integers_field
from flushtracker.wal.mvcc_snapshot import MvccSnapshot

SNAPSHOT: Final = "snapshot"
"""The operation of the row that ends a snapshot."""


@dataclass(frozen=True, slots=True)
class ShapeSnapshot:
    """The snapshot that ``attempt`` has made: the rows that ``visible`` saw.

    ``lsn`` is the end of the WAL after ``visible`` was taken: what commits above it is not in the snapshot.

    >>> snapshot = ShapeSnapshot(7, MvccSnapshot.parse("100:105:102"), lsn=900)
    >>> snapshot.contains(800, 101), snapshot.contains(800, 102), snapshot.contains(901, 101)
    (True, False, False)
    >>> snapshot.to_json()
    '{"xmin":100,"xmax":105,"xip":[102],"lsn":900}'
    >>> ShapeSnapshot.parse(7, snapshot.to_json()) == snapshot
    True
    """

    attempt: int
    visible: MvccSnapshot
    lsn: int

    def contains(self, tx_offset: int, xid: int) -> bool:
        """Whether the snapshot's rows have the effects of the shape's transaction at ``tx_offset``."""
        return 0 < tx_offset <= self.lsn and self.visible.sees(xid)

    def to_json(self) -> str:
        """The ``value`` of the row that ends the snapshot."""
        visible = self.visible
        return dump_json({"xmin": visible.xmin, "xmax": visible.xmax, "xip": visible.xip, "lsn": self.lsn})

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
            xmin, xmax, lsn = (integer_field(fields, name, 0) for name in ("xmin", "xmax", "lsn"))
            return cls(attempt, MvccSnapshot(xmin, xmax, integers_field(fields, "xip", 0)), lsn)
        except (DecodeError, ValueError) as error:
            raise DecodeError(f"value of the snapshot {attempt} in a shape's log: {error}") from error
