"""``ShapeTail``: the last transactions of a shape, from its events, without a gap.

The state is a **base**, a **cursor**, the open transaction's items, and whole transactions. After the base, nothing is
missing here up to the cursor. So a client that has everything up to the base, or further, can be shown the transactions
after its place.

- An event at or below the cursor is a *resend*, and ignored.
- An event whose ``follows`` is at or below the cursor is *next*. A resend may cut a transaction into other fragments:
  only its items past the cursor are new.
- Anything else comes after a *gap*: all is dropped, and base and cursor are the event's ``follows``.
- An event of a later incarnation drops all, too; those of earlier ones are ignored.
- A transaction that cannot be shown is *skipped*: all is dropped, and base and cursor are its end. It lacks its
  beginning or its commit, truncates, is too large, or its events have several schemas.
- All transactions have one ``schema``. Another one drops those before.

The writers' rule differs (:mod:`flushtracker.shape_log.shape_chain`). For them a start is next, whatever it follows:
nothing past their notifications is confirmed, so a start skips nothing that they lack. Here it may skip events that the
writers have read and the tail has lost, so ``start`` means nothing.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import repeat
from operator import attrgetter
from sys import getsizeof
from typing import Any, Final

from flushtracker.shape_log.change_columns import ChangeColumns
from flushtracker.shape_log.row_columns import RowColumns
from flushtracker.shape_log.shape_chain import position_of
from flushtracker.shape_log.transaction_builder import TransactionBuilder
from flushtracker.wal.log_offset import LogOffset

MOST_TRANSACTION_BYTES: Final = 1 << 20
"""The most memory for a transaction. The log serves larger ones."""

_TRANSACTION_BYTES: Final = 850
"""The memory that a transaction takes besides its items: its objects, and a list per column."""
_ITEM_BYTES: Final = 100
"""The memory that an item takes besides its texts."""

_SHOWN: Final = frozenset({"insert", "update", "delete"})
"""The operations that a message can express; a client that is to see another one begins again, by the log."""


@dataclass(frozen=True, slots=True)
class TailTransaction:
    """A whole transaction; ``memory_bytes`` is about what it takes."""

    tx_offset: int
    xid: int
    items: RowColumns
    memory_bytes: int

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Its items as the log has them: the columns of ``LogRow`` up to ``xid``, of which messages are made."""
        return zip(*self.items.columns, repeat(self.xid))


class ShapeTail:
    """The tail of one shape, which begins with an event: what comes before that is not known.

    ``schema`` is that of its events, ``None`` if these have none. ``memory_bytes`` is about what the items take.
    ``drops`` counts how often a gap or a skipped transaction has dropped all.
    """

    def __init__(self, event: ChangeColumns) -> None:
        self.incarnation = event.incarnation
        self.schema = event.schema
        self.drops = 0
        self._held: tuple[int, int] | None = None
        """A round, and the last transaction that is shown until its end."""
        self._begin_after(event.follows)

    def _begin_after(self, base: LogOffset) -> None:
        self.base = base
        self._builder = TransactionBuilder("txn", base)
        self._open_tx: int | None = None
        self._open_bytes = 0
        self.transactions: list[TailTransaction] = []
        self.memory_bytes = 0

    @property
    def cursor(self) -> LogOffset:
        """Up to where everything is here, or skipped."""
        return self.base if self._builder.cursor is None else self._builder.cursor

    def add(self, event: ChangeColumns) -> bool:
        """Process the shape's next event in the topic; return whether it completed a transaction."""
        if not self._link(event):
            return False
        tx = event.last_log_offset.tx_offset
        if self._open_tx is not None and self._open_tx != tx:
            # Another transaction's event says that nothing was sent in between. One of the two is wrong.
            self._skip(self._open_tx)
        if event.schema != self.schema:
            self.schema = event.schema
            if self._open_tx is None:
                self._drop(self.cursor)
            else:
                self._skip(tx)
                return False
        size = _memory_bytes(event.items)
        lacks_beginning = self._open_tx is None and event.follows.tx_offset == tx
        if lacks_beginning or self._open_bytes + size > MOST_TRANSACTION_BYTES or not _is_shown(event.items):
            self._skip(tx)
            return False
        return self._take(event, size)

    def _link(self, event: ChangeColumns) -> bool:
        """Whether the event has something new; nothing is missing between the cursor and it then."""
        if event.incarnation < self.incarnation:
            return False
        if event.incarnation > self.incarnation:
            self.incarnation = event.incarnation
            self._begin_after(event.follows)
            return True
        position = position_of(event.reached, event.follows, self.cursor, is_start=False)
        if position == "gap":
            self._drop(event.follows)
        return position != "resend"

    def _take(self, event: ChangeColumns, size: int) -> bool:
        part = self._builder.add(event)
        self._open_bytes += size
        self.memory_bytes += size
        if part is None:
            self._open_tx = event.last_log_offset.tx_offset
            return False
        whole_bytes = self._open_bytes + _TRANSACTION_BYTES
        self.transactions.append(TailTransaction(part.tx_offset, part.xid, part.items, whole_bytes))
        self._open_tx, self._open_bytes = None, 0
        self.memory_bytes += _TRANSACTION_BYTES
        return True

    def _drop(self, base: LogOffset) -> None:
        self.drops += 1
        self._begin_after(base)

    def _skip(self, tx: int) -> None:
        self._drop(LogOffset.last_of(tx))

    def has(self, tx: int) -> bool:
        count = self._count_up_to(tx)
        return count > 0 and self.transactions[count - 1].tx_offset == tx

    def after(self, tx: int, upto: int | None = None) -> list[TailTransaction]:
        """The transactions after ``tx``, in order; none after ``upto``."""
        return self.transactions[self._count_up_to(tx) : None if upto is None else self._count_up_to(upto)]

    def hold_back(self, number: int | None) -> None:
        """Show nothing that is added from now on until the round ``number`` has ended; ``None`` if none is running."""
        if number is not None and (self._held is None or self._held[0] != number):
            self._held = number, self.transactions[-1].tx_offset if self.transactions else self.base.tx_offset

    def shown_upto(self, number: int | None) -> int | None:
        """The last transaction that is shown during the round ``number``; ``None`` if all are."""
        return self._held[1] if self._held is not None and self._held[0] == number else None

    def shrink(self, memory_bytes: int) -> None:
        """Drop the oldest transactions until the rest takes at most so much, and the open one if that is not enough."""
        rest, count = self.memory_bytes, 0
        while rest > memory_bytes and count < len(self.transactions):
            rest -= self.transactions[count].memory_bytes
            count += 1
        self._drop_oldest(count)
        if rest > memory_bytes and self._open_tx is not None:
            self._skip(self._open_tx)

    def _count_up_to(self, tx: int) -> int:
        return bisect_right(self.transactions, tx, key=attrgetter("tx_offset"))

    def _drop_oldest(self, count: int) -> None:
        if count > 0:
            self.base = LogOffset.last_of(self.transactions[count - 1].tx_offset)
            self.memory_bytes -= sum(each.memory_bytes for each in self.transactions[:count])
            del self.transactions[:count]

    def check_invariants(self) -> None:
        """Raise ``AssertionError`` if the state contradicts itself."""
        ends = [LogOffset.last_of(each.tx_offset) for each in self.transactions]
        places = [self.base, *ends, self.cursor]
        if places != sorted(places) or len({self.base, *ends}) != len(ends) + 1:
            raise AssertionError(f"base, transactions and cursor are not in order: {', '.join(map(str, places))}")
        held = self._open_bytes + sum(each.memory_bytes for each in self.transactions)
        if held != self.memory_bytes:
            raise AssertionError(f"memory_bytes is {self.memory_bytes}, but {held} are held")
        if self._open_tx is None and len(self._builder.items):
            raise AssertionError("there are items, but no transaction is open")
        if self._open_tx is not None and self._open_tx != self.cursor.tx_offset:
            raise AssertionError(f"the transaction at {self._open_tx} is open, but the cursor is {self.cursor}")


def _is_shown(items: RowColumns) -> bool:
    _, _, operations, keys, *_ = items.columns
    return _SHOWN.issuperset(operations) and None not in keys


def _memory_bytes(items: RowColumns) -> int:
    texts: Iterable[str | None] = (text for column in items.columns[3:6] for text in column if text is not None)
    return _ITEM_BYTES * len(items) + sum(map(getsizeof, texts))
