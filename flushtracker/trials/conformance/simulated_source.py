"""Random changes as capture publishes them: each transaction is cut at random, and differently when it is resent."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from types import MappingProxyType
from typing import Final

from flushtracker.events.fragment_sequencer import FragmentSequencer
from flushtracker.events.stream_events import ShapeChangesEvent
from flushtracker.events.topic_rules import MAX_EVENT_BYTES
from flushtracker.shapes.routed_fragment import RoutedFragment
from flushtracker.trials.conformance.simulated_table import SimulatedTable
from flushtracker.wal.changes import Commit, LogItem, Operation, Row, TransactionFragment
from flushtracker.wal.log_offset import LogOffset

WRITER: Final = "conformance"
"""Default name of the writer under test."""
_FIRST_LSN: Final = 0x1_0000_0000
_FIRST_XID: Final = 2**32 - 300
_UNSENT: Final = 12
_TEXTS: Final = ("", "7", "naïve 🙂", 'a "quote" and a \\', "two\nlines\x01", "x" * 2_000)
_OPERATIONS: Final[tuple[Operation, ...]] = ("insert", "update", "delete")


@dataclass(frozen=True, slots=True)
class SimulatedTransaction:
    """``operations`` has the items per shape of operations 0, 2, 4, …; a split update has two items."""

    xid: int
    lsn: int
    operations: Sequence[Mapping[str, tuple[LogItem, ...]]]


@dataclass(frozen=True, slots=True)
class Incarnation:
    """One incarnation of a shape: it has all transactions after the LSN ``starts_after``."""

    number: int = 1
    starts_after: int = -1


class SimulatedSource:
    """A source with its shapes and the transactions so far; connections that read on generate more.

    Each shape in ``with_rows`` has a table with rows from the start, and its changes fit these rows; the changes of
    other shapes are arbitrary. ``writers`` names the writers of shapes that do not belong to ``writer``, the one under
    test.
    """

    def __init__(
        self,
        name: str,
        shape_ids: Sequence[str],
        rng: Random,
        with_rows: Sequence[str] = (),
        writers: Mapping[str, str] = MappingProxyType({}),
        writer: str = WRITER,
    ) -> None:
        self.name = name
        self.shape_ids = list(shape_ids)
        self._writer = writer
        self.writers = {**dict.fromkeys(shape_ids, writer), **writers}
        self.tables = {shape_id: SimulatedTable(rng) for shape_id in with_rows}
        self.incarnations = dict.fromkeys(shape_ids, Incarnation())
        self.transactions: list[SimulatedTransaction] = []
        self.committed = 0
        """The number of transactions that were sent to their end at least once."""
        self.first_lsn = _FIRST_LSN + rng.randrange(100)
        self._rng = rng

    @property
    def next_lsn(self) -> int:
        """An LSN after the last transaction."""
        return self.transactions[-1].lsn + 100 if self.transactions else self.first_lsn

    def transaction(self, index: int) -> SimulatedTransaction:
        """Return the transaction with this index, generating it if it is the next one."""
        if index == len(self.transactions):
            lsn, rng = self.next_lsn + self._rng.randrange(5_000), self._rng
            operations = [
                {
                    shape_id: self._items(shape_id, LogOffset(lsn, 2 * number))
                    for shape_id in rng.sample(self.shape_ids, rng.choice([0, 1, 1, 2]))
                }
                for number in range(rng.choice([1, 1, 2, 3, 8, 30]))
            ]
            # Xids wrap around after 32 bits.
            xid = (_FIRST_XID + 3 * len(self.transactions)) % 2**32
            self.transactions.append(SimulatedTransaction(xid, lsn, operations))
        return self.transactions[index]

    def begin_again(self, shape_id: str) -> Incarnation:
        """Begin the next incarnation of a shape with rows, after changes that are never sent."""
        self.tables[shape_id].change_unsent(_UNSENT)
        last = self.incarnations[shape_id]
        self.incarnations[shape_id] = begun = Incarnation(last.number + 1, self.next_lsn - 50)
        return begun

    def items_of(self, transaction: SimulatedTransaction, shape_id: str) -> list[LogItem]:
        """Return the transaction's items for the shape; none if it is before the shape's current incarnation."""
        if transaction.lsn <= self.incarnations[shape_id].starts_after:
            return []
        return [item for part in transaction.operations for item in part.get(shape_id, ())]

    def last_items(self, index: int) -> dict[tuple[str, str], LogOffset]:
        """Return each shape's last offset in the transaction, by source and shape id.

        Only of shapes of the writer under test, and only if the transaction is in the shape's current incarnation.
        """
        own = [shape_id for shape_id in self.shape_ids if self.writers[shape_id] == self._writer]
        items = {shape_id: self.items_of(self.transactions[index], shape_id) for shape_id in own}
        return {(self.name, shape_id): each[-1].offset for shape_id, each in items.items() if each}

    def _items(self, shape_id: str, offset: LogOffset) -> tuple[LogItem, ...]:
        if shape_id in self.tables:
            return self.tables[shape_id].items(offset)
        rng, row = self._rng, self._row()
        key = f'"public"."t"/"{rng.randrange(50)}"'
        if rng.random() < 0.15:
            inserted = LogOffset(offset.tx_offset, offset.op_offset + 1)
            return LogItem(offset, "delete", key, None, row), LogItem(inserted, "insert", f"{key}+", row, None)
        if rng.random() < 0.05:
            return (LogItem(offset, "truncate", None, None, None),)
        if rng.random() < 0.05:
            return (LogItem(offset, "truncate_partition", f'"public"."t"/{rng.randrange(3)}', None, None),)
        operation = rng.choice(_OPERATIONS)
        return (LogItem(offset, operation, key, None if operation == "delete" else row, None),)

    def _row(self) -> Row:
        names = self._rng.sample(["id", "größe", "note"], self._rng.randint(1, 3))
        return {name: self._rng.choice([None, *_TEXTS]) for name in names}


class SimulatedConnection:
    """Capture's connection, which starts at transaction ``index`` and cuts each transaction at random."""

    def __init__(self, source: SimulatedSource, index: int, rng: Random) -> None:
        first = source.transactions[index].lsn if index < len(source.transactions) else source.next_lsn
        self._source = source
        self._index = index
        self._rng = rng
        self._sequencer = FragmentSequencer(source.name, first, max_event_bytes=MAX_EVENT_BYTES)
        self._pending: deque[tuple[TransactionFragment, list[RoutedFragment]]] = deque()

    def is_at_end(self, leave: int = 0) -> bool:
        """Return whether all transactions so far were sent, except perhaps the last ``leave``."""
        return not self._pending and self._index >= len(self._source.transactions) - leave

    def next_events(self) -> tuple[ShapeChangesEvent, ...]:
        """Return the shapes' events of the next fragment, which may begin a new transaction."""
        if not self._pending:
            self._pending.extend(self._cut(self._source.transaction(self._index)))
            self._index += 1
        fragment, routed = self._pending.popleft()
        if fragment.commit is not None:
            self._source.committed = max(self._source.committed, self._index)
        return self._sequencer.sequence(fragment, routed).shape_changes

    def _cut(self, transaction: SimulatedTransaction) -> Iterator[tuple[TransactionFragment, list[RoutedFragment]]]:
        operations, often = transaction.operations, self._rng.choice([0.0, 0.2, 0.7])
        ends = [*(n for n in range(1, len(operations)) if self._rng.random() < often), len(operations)]
        first, named, incarnations = 0, set[str](), self._source.incarnations
        begun = {shape_id for shape_id, each in incarnations.items() if transaction.lsn > each.starts_after}
        for end in ends:
            last = LogOffset(transaction.lsn, 2 * (end - 1))
            commit = Commit("2026-01-01T00:00:00.000000Z", transaction.lsn + 40) if end == ends[-1] else None
            parts = operations[first:end]
            shape_ids = {shape_id for part in parts for shape_id in part if shape_id in begun}
            shape_ids |= named if commit else set()
            routed = [
                RoutedFragment(
                    shape_id=shape_id,
                    xid=transaction.xid,
                    lsn=transaction.lsn,
                    last_log_offset=last,
                    has_begin=shape_id not in named,
                    commit=commit,
                    items=tuple(item for part in parts for item in part.get(shape_id, ())),
                    incarnation=incarnations[shape_id].number,
                    writer=self._source.writers[shape_id],
                )
                for shape_id in sorted(shape_ids)
            ]
            yield (
                TransactionFragment(transaction.xid, transaction.lsn, last, has_begin=first == 0, commit=commit),
                routed,
            )
            first, named = end, named | shape_ids
