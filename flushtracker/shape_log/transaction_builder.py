"""``TransactionBuilder``: turns a shape's events, however they are cut and resent, into each of its changes once.

``cursor`` is how far the shape's changes have been taken (:mod:`flushtracker.shape_log.shape_chain`). Items at or
below it are dropped. Offsets are never changed.
"""

from collections.abc import Iterable
from typing import Literal, TypeAlias

from flushtracker.events.stream_events import ShapeChangesEvent
from flushtracker.shape_log.shape_chain import cursor_after, new_items
from flushtracker.wal.changes import Commit, LogItem
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.value import value

WriteUnit: TypeAlias = Literal["txn", "txn_fragment"]
"""What is written at once: whole transactions only, or their fragments too, as they arrive."""


@value(frozen=True, slots=True)
class TransactionPart:
    """A transaction's next items, or all of them; ``commit`` is set if the transaction at ``tx_offset`` ends here."""

    tx_offset: int
    xid: int
    items: tuple[LogItem, ...]
    commit: Commit | None


class TransactionBuilder:
    """Builds the transactions of one shape. ``items`` are those of the open transaction that ``txn`` keeps back.

    With ``txn_fragment`` there are some only if the unit was ``txn`` before; the next part begins with them.

    ``cursor`` is at first where the shape's log ends, ``None`` if it is empty.
    """

    def __init__(self, write_unit: WriteUnit, cursor: LogOffset | None = None, items: Iterable[LogItem] = ()) -> None:
        self._write_unit = write_unit
        self.cursor = cursor
        self.items = list(items)

    def add(self, event: ShapeChangesEvent) -> TransactionPart | None:
        """Take an event that is next; returns what is to be written now, if anything."""
        self.items += new_items(event, self.cursor)
        self.cursor = cursor_after(event)
        if self._write_unit == "txn" and event.commit is None:
            return None
        items = tuple(self.items)
        self.items.clear()
        return TransactionPart(event.last_log_offset.tx_offset, event.xid, items, event.commit)
