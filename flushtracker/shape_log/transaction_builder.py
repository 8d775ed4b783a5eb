"""``TransactionBuilder``: returns each of a shape's changes once, however its events are cut and resent.

``cursor`` is how far the shape's changes have been processed (:mod:`flushtracker.shape_log.shape_chain`). Items at or
below it are dropped. Offsets are never changed.
"""

from typing import Literal, TypeAlias

from flushtracker.shape_log.change_columns import ChangeColumns
from flushtracker.shape_log.row_columns import RowColumns
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.value import value

WriteUnit: TypeAlias = Literal["txn", "txn_fragment"]
"""What is written at once: whole transactions, or fragments as they arrive."""


@value(frozen=True, slots=True)
class TransactionPart:
    """A transaction's next items, or all of them. ``commit_timestamp`` is ``None`` unless the transaction ends here."""

    tx_offset: int
    xid: int
    items: RowColumns
    commit_timestamp: str | None


class TransactionBuilder:
    """Builds the transactions of one shape. ``items`` are those of the open transaction, which ``txn`` holds back.

    With ``txn_fragment`` there are some only if the unit was ``txn`` before; the next part starts with them.

    ``cursor`` is initially the end of the shape's log, ``None`` if it is empty.
    """

    def __init__(self, write_unit: WriteUnit, cursor: LogOffset | None = None, items: RowColumns | None = None) -> None:
        self._write_unit = write_unit
        self.cursor = cursor
        self.items = RowColumns.no_items() if items is None else items

    def add(self, event: ChangeColumns) -> TransactionPart | None:
        """Process an event that is next; return what to write now, if anything."""
        items = event.items if self.cursor is None else event.items.after(self.cursor)
        self.cursor = event.reached
        if len(self.items) or (self._write_unit == "txn" and event.commit_timestamp is None):
            self.items.extend(items)
            if self._write_unit == "txn" and event.commit_timestamp is None:
                return None
            items, self.items = self.items, RowColumns.no_items()
        return TransactionPart(event.last_log_offset.tx_offset, event.xid, items, event.commit_timestamp)
