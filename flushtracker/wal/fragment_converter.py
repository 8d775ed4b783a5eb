"""``FragmentConverter``: decoded messages in, ``TransactionFragment``s out.

The server sends a transaction once it has committed: Begin (which knows the commit's LSN already), its changes, Commit.
A large one is not collected but cut into fragments of at most ``max_batch_size`` changes, so that memory does not grow
with it. What the converter is careful about:

- The fragment that carries the commit is the last and its ``last_log_offset`` lies above the one before. A fragment is
  therefore not sent when it is full, but when the change *after* it arrives: some change is always left for the commit,
  also in a transaction of exactly n × ``max_batch_size``.
- Operations are numbered 0, 2, 4, …: an update that changes a primary key may later become two.
- A row that nobody wants need not be read: it takes its number, and nothing else.
- A relation is what the last message about it said, even in mid-transaction: each change keeps the one it came with.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from flushtracker.errors import DecodeError, TransactionTooLargeError
from flushtracker.wal.changes import (
    Change,
    Commit,
    Delete,
    Insert,
    Relation,
    Row,
    TransactionFragment,
    Truncate,
    Update,
)
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.lsn import format_lsn
from flushtracker.wal.pgoutput import (
    Begin,
    CommitMessage,
    DeleteMessage,
    InsertMessage,
    Message,
    OldKind,
    RelationMessage,
    RowMessage,
    TruncateMessage,
    UpdateMessage,
)
from flushtracker.wal.pgoutput_reader import UNCHANGED, TupleValues

_RECONNECT: Final = "reconnect, so that the server sends again from the confirmed LSN"


@dataclass(slots=True)
class _TransactionBuffer:
    """The open transaction: how many changes it has so far, and those of them that wait for their fragment."""

    begin: Begin
    change_count: int = 0
    has_begin: bool = True
    changes: list[Change] = field(default_factory=list)

    def next_offset(self) -> LogOffset:
        return LogOffset(self.begin.final_lsn, 2 * self.change_count)

    def take_fragment(self, commit: Commit | None) -> TransactionFragment:
        """Everything held, as one fragment; nothing is held afterwards."""
        lsn = self.begin.final_lsn
        last_log_offset = self.changes[-1].offset if self.changes else LogOffset(lsn, 0)
        fragment = TransactionFragment(
            self.begin.xid, lsn, last_log_offset, self.has_begin, commit, changes=tuple(self.changes)
        )
        self.changes.clear()
        self.has_begin = False
        return fragment


class FragmentConverter:
    """Cuts a stream of messages into fragments of at most ``max_batch_size`` changes each.

    It holds the relations it was told of and the open transaction's last changes, ``max_batch_size`` at most. After a
    reconnect the server starts its stream anew, and so must the converter: take a fresh one. One that has raised is
    of no further use.

    Raises:
        ValueError: a limit is below 1.
    """

    def __init__(self, max_batch_size: int = 100, max_tx_size: int | None = None) -> None:
        for name, limit in (("max_batch_size", max_batch_size), ("max_tx_size", max_tx_size)):
            if limit is not None and limit < 1:
                raise ValueError(f"{name} is {limit}, but must be at least 1")
        self._max_batch_size = max_batch_size
        self._max_tx_size = max_tx_size
        self._relations: dict[int, tuple[Relation, tuple[str, ...]]] = {}
        self._transaction: _TransactionBuffer | None = None

    @property
    def in_transaction(self) -> bool:
        """Whether a Begin is still waiting for its Commit: until then a keepalive's position says nothing."""
        return self._transaction is not None

    def handle(self, message: Message) -> tuple[TransactionFragment, ...]:
        """The fragments that ``message`` completes, oldest first: none or one, after a TRUNCATE perhaps more.

        Raises:
            TransactionTooLargeError: the transaction has more than ``max_tx_size`` changes.
            DecodeError: ``message`` cannot follow what came before, or does not fit its relation.
        """
        match message:
            case InsertMessage() | UpdateMessage() | DeleteMessage():
                transaction = self._open_transaction(type(message).__name__)
                relation, names = self._relation(message.relation_id)
                change = _row_change(message, relation, names, transaction.next_offset())
                return self._add(transaction, change)
            case TruncateMessage(relation_ids):
                return self._truncate(self._open_transaction("TruncateMessage"), relation_ids)
            case RelationMessage(relation):
                names = tuple(column.name for column in relation.columns)
                self._relations[relation.relation_id] = (relation, names)
            case Begin():
                self._begin(message)
            case CommitMessage():
                return (self._commit(self._open_transaction("CommitMessage"), message),)
        # An Origin, a Type and a LogicalMessage change no table.
        return ()

    def skip_row(self) -> None:
        """In place of :meth:`handle`, for the message of a row that nobody wants: it is counted, and in no fragment.

        Raises:
            TransactionTooLargeError: as :meth:`handle`.
            DecodeError: no transaction is open.
        """
        self._count(self._open_transaction("row"))

    def check_invariants(self) -> None:
        """Raise ``AssertionError`` where too much is held, or not the transaction's last changes; for tests."""
        transaction = self._transaction
        if transaction is None:
            return
        held, count = len(transaction.changes), transaction.change_count
        if held > min(self._max_batch_size, count):
            raise AssertionError(f"{held} of {count} changes held, at most {self._max_batch_size} may")
        offsets = [change.offset for change in transaction.changes]
        are_possible = all(
            offset.tx_offset == transaction.begin.final_lsn and offset.op_offset in range(0, 2 * count, 2)
            for offset in offsets
        )
        if not are_possible or offsets != sorted(set(offsets)):
            raise AssertionError(f"the changes held are at {offsets}, not in the order of the transaction")

    def _open_transaction(self, kind: str) -> _TransactionBuffer:
        if self._transaction is None:
            raise DecodeError(f"pgoutput {kind} came outside a transaction; {_RECONNECT}")
        return self._transaction

    def _relation(self, relation_id: int) -> tuple[Relation, tuple[str, ...]]:
        known = self._relations.get(relation_id)
        if known is None:
            raise DecodeError(f"pgoutput changes relation {relation_id}, which no Relation described; {_RECONNECT}")
        return known

    def _begin(self, begin: Begin) -> None:
        if self._transaction is not None:
            raise DecodeError(
                f"transaction {begin.xid} begins inside transaction {self._transaction.begin.xid}, which has no commit "
                f"yet; {_RECONNECT}"
            )
        self._transaction = _TransactionBuffer(begin)

    def _add(self, transaction: _TransactionBuffer, change: Change) -> tuple[TransactionFragment, ...]:
        self._count(transaction)
        full = len(transaction.changes) >= self._max_batch_size
        fragments = (transaction.take_fragment(commit=None),) if full else ()
        transaction.changes.append(change)
        return fragments

    def _count(self, transaction: _TransactionBuffer) -> None:
        if self._max_tx_size is not None and transaction.change_count >= self._max_tx_size:
            raise TransactionTooLargeError(
                f"transaction {transaction.begin.xid} has reached {transaction.change_count + 1} changes, but "
                f"max_tx_size is {self._max_tx_size}; raise the limit, or leave its tables out of the publication"
            )
        transaction.change_count += 1

    def _truncate(
        self, transaction: _TransactionBuffer, relation_ids: Iterable[int]
    ) -> tuple[TransactionFragment, ...]:
        fragments: list[TransactionFragment] = []
        for relation_id in relation_ids:
            relation, _ = self._relation(relation_id)
            fragments += self._add(transaction, Truncate(relation, transaction.next_offset()))
        return tuple(fragments)

    def _commit(self, transaction: _TransactionBuffer, message: CommitMessage) -> TransactionFragment:
        begin = transaction.begin
        if message.commit_lsn != begin.final_lsn:
            raise DecodeError(
                f"transaction {begin.xid} began with commit LSN {format_lsn(begin.final_lsn)}, but commits at "
                f"{format_lsn(message.commit_lsn)}; {_RECONNECT}"
            )
        self._transaction = None
        return transaction.take_fragment(Commit(message.commit_timestamp, message.end_lsn))


def _row_change(message: RowMessage, relation: Relation, names: tuple[str, ...], offset: LogOffset) -> Change:
    if isinstance(message, InsertMessage):
        return Insert(relation, offset, _row(relation, names, message.new))
    if isinstance(message, DeleteMessage):
        return Delete(relation, offset, _old_row(relation, names, message.old_kind, message.old))
    old = None
    if message.old_kind is not None and message.old is not None:
        old = _old_row(relation, names, message.old_kind, message.old)
    return Update(relation, offset, old, _row(relation, names, message.new))


def _old_row(relation: Relation, names: tuple[str, ...], kind: OldKind, values: TupleValues) -> Row:
    row = _row(relation, names, values)
    if kind == "O":
        return row
    # The server sends NULL for each column that is no key, whatever its value.
    return {name: row[name] for name in relation.key_columns if name in row}


def _row(relation: Relation, names: tuple[str, ...], values: TupleValues) -> Row:
    if len(values) != len(names):
        raise DecodeError(
            f"a row of {relation.schema}.{relation.name} has {len(values)} values, but the relation has {len(names)} "
            f"columns; {_RECONNECT}"
        )
    row: dict[str, str | None] = {}
    for name, value in zip(names, values, strict=True):
        if isinstance(value, bytes):
            raise DecodeError(
                f"column {name} of {relation.schema}.{relation.name} came in binary, but text is needed; "
                "read the slot without the option binary"
            )
        if value is not UNCHANGED:
            row[name] = value
    return row
