"""``FragmentConverter``: turns decoded messages into ``TransactionFragment``s.

The server sends a transaction once it has committed: Begin (which already carries the commit LSN), its changes, Commit.
The converter cuts it into fragments of at most ``max_batch_size`` changes and ``max_batch_bytes``, which bounds memory
and the size of events. Only a single change that is larger than ``max_batch_bytes`` exceeds it, in a fragment of its
own.

- ``last_log_offset`` strictly increases from fragment to fragment, so the commit fragment needs a change of its own. A
  full fragment is therefore emitted only when the change *after* it arrives. That always leaves a change for the
  commit, even in a transaction of exactly n × ``max_batch_size`` changes.
- Where a transaction is cut is not part of its identity: with other limits, a resend cuts it elsewhere.
- Operations are numbered 0, 2, 4, …, because an update that changes a primary key may later become two operations.
- A row that no shape needs is not decoded (``skip_row``), but keeps its number. In other rows, only the columns that
  shapes read are decoded (``read_only``).
- A Relation message applies to the changes after it, even in mid-transaction. Earlier changes keep the relation they
  arrived with.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from flushtracker.errors import DecodeError, TransactionTooLargeError
from flushtracker.wal.changes import Change, Commit, Relation, TransactionFragment, Truncate, change_bytes
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.lsn import format_lsn
from flushtracker.wal.pgoutput import Begin, CommitMessage, Message, RelationMessage, RowMessage, TruncateMessage
from flushtracker.wal.row_reader import RowReader
from flushtracker.wal.text_codecs import UTF8

DEFAULT_MAX_BATCH_BYTES: Final = 2 << 20
"""At most 48 MiB of JSON, whatever the rows contain (``events.event_size``): within the default of an event's size."""

_RECONNECT: Final = "reconnect, so that the server resends from the confirmed LSN"


@dataclass(slots=True)
class _TransactionBuffer:
    """The open transaction: its size so far, and its changes not yet emitted, ``byte_count`` bytes of them."""

    begin: Begin
    change_count: int = 0
    tx_size: int = 0
    has_begin: bool = True
    changes: list[Change] = field(default_factory=list)
    byte_count: int = 0

    def next_offset(self) -> LogOffset:
        return LogOffset(self.begin.final_lsn, 2 * self.change_count)

    def take_fragment(self, commit: Commit | None) -> TransactionFragment:
        lsn = self.begin.final_lsn
        last_log_offset = self.changes[-1].offset if self.changes else LogOffset(lsn, 0)
        fragment = TransactionFragment(
            self.begin.xid, lsn, last_log_offset, self.has_begin, commit, changes=tuple(self.changes)
        )
        self.changes.clear()
        self.byte_count = 0
        self.has_begin = False
        return fragment


class FragmentConverter:
    """Cuts a stream of messages into fragments of at most ``max_batch_size`` changes and ``max_batch_bytes`` each.

    Bytes are those of :func:`~flushtracker.wal.changes.change_bytes`. A transaction whose row messages and truncates
    have more than ``max_tx_size`` bytes is refused. The converter keeps the relations described so far, and at most one
    fragment's changes of the open transaction. Create a new converter after a reconnect, because the server restarts
    its stream, and after any exception. Values are decoded with ``codec``.

    Raises:
        ValueError: a limit is below 1.
    """

    def __init__(
        self,
        max_batch_size: int = 100,
        max_tx_size: int | None = None,
        *,
        max_batch_bytes: int = DEFAULT_MAX_BATCH_BYTES,
        codec: str = UTF8,
    ) -> None:
        limits = (
            ("max_batch_size", max_batch_size),
            ("max_tx_size", max_tx_size),
            ("max_batch_bytes", max_batch_bytes),
        )
        for name, limit in limits:
            if limit is not None and limit < 1:
                raise ValueError(f"{name} is {limit}, but must be at least 1")
        self._max_batch_size = max_batch_size
        self._max_batch_bytes = max_batch_bytes
        self._max_tx_size = max_tx_size
        self.codec = codec
        self._relations: dict[int, Relation] = {}
        # Only relations that have had a row to read since they were described.
        self._readers: dict[int, RowReader] = {}
        self._transaction: _TransactionBuffer | None = None
        self.committed_changes = 0
        """The number of changes in ended transactions, including skipped rows."""

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open. While one is, a keepalive's position must not be used."""
        return self._transaction is not None

    def handle(self, message: Message) -> tuple[TransactionFragment, ...]:
        """Return the fragments that ``message`` completes, oldest first: none or one, or several for a TRUNCATE.

        Raises:
            TransactionTooLargeError: the transaction has more than ``max_tx_size`` bytes.
            UnreadableTextError: a value cannot be decoded; after :meth:`leave_out`, ``message`` can be handled.
            DecodeError: ``message`` is out of order, or does not fit its relation.
        """
        match message:
            case RowMessage():
                transaction = self._open_transaction(message.operation)
                change, size = self._reader(message.relation_id).change(message, transaction.next_offset())
                self._count_change(transaction, len(message.data))
                return self._buffer(transaction, change, size)
            case TruncateMessage(relation_ids):
                return self._truncate(self._open_transaction("Truncate"), relation_ids)
            case RelationMessage(relation):
                self._relations[relation.relation_id] = relation
                self._readers.pop(relation.relation_id, None)
            case Begin():
                self._begin(message)
            case CommitMessage():
                return (self._commit(self._open_transaction("Commit"), message),)
        # Other messages change no table.
        return ()

    def read_only(self, relation_id: int, columns: Collection[str] | None) -> None:
        """Decode only these columns and the key's in the relation's next rows; all of them for ``None``.

        A new Relation message ends this. Raises ``DecodeError`` if the relation was not described.
        """
        self._reader(relation_id).read_only(columns)

    def leave_out(self, relation_id: int, column: str) -> None:
        """Do not decode this column of the relation's rows, even if it is in the key, until :meth:`read_only`."""
        self._reader(relation_id).leave_out(column)

    def trim(self, relation_id: int) -> None:
        """Forget the relation's columns: until it is described again, its rows must be skipped."""
        relation = self._relations.get(relation_id)
        if relation is not None:
            self._relations[relation_id] = replace(relation, columns=())
            self._readers.pop(relation_id, None)

    def forget(self, relation_id: int) -> None:
        """Drop a relation that is gone: unless it is described again, its changes are refused."""
        self._relations.pop(relation_id, None)
        self._readers.pop(relation_id, None)

    def lose_partition(self, table_oid: int, partition: Relation) -> tuple[TransactionFragment, ...]:
        """Add the loss of a table's partition to the open transaction; the server does not send it.

        It does not count towards ``max_tx_size``. Returns the fragments that it completes, as :meth:`handle` does.
        """
        transaction = self._open_transaction("Truncate")
        truncate = Truncate(partition, transaction.next_offset(), table_oid)
        transaction.change_count += 1
        return self._buffer(transaction, truncate, change_bytes(truncate))

    def skip_row(self, message: RowMessage) -> None:
        """Count a row that no shape needs without putting it into a fragment; call it instead of :meth:`handle`.

        Raises:
            TransactionTooLargeError: the transaction has more than ``max_tx_size`` bytes.
            DecodeError: no transaction is open.
        """
        self._count_change(self._open_transaction(message.operation), len(message.data))

    def check_invariants(self) -> None:
        """Raise ``AssertionError`` if the buffer is too large or its offsets are wrong or out of order; for tests."""
        transaction = self._transaction
        if transaction is None:
            return
        buffered, count = len(transaction.changes), transaction.change_count
        if buffered > min(self._max_batch_size, count):
            raise AssertionError(f"{buffered} of {count} changes are buffered, at most {self._max_batch_size} may be")
        byte_count = sum(map(change_bytes, transaction.changes))
        if byte_count != transaction.byte_count:
            raise AssertionError(f"{byte_count} bytes are buffered, but {transaction.byte_count} are counted")
        if buffered > 1 and byte_count > self._max_batch_bytes:
            raise AssertionError(f"{byte_count} bytes are buffered, at most {self._max_batch_bytes} may be")
        offsets = [change.offset for change in transaction.changes]
        are_possible = all(
            offset.tx_offset == transaction.begin.final_lsn and offset.op_offset in range(0, 2 * count, 2)
            for offset in offsets
        )
        if not are_possible or offsets != sorted(set(offsets)):
            raise AssertionError(f"the buffered changes are at {offsets}, not in transaction order")

    def _open_transaction(self, kind: str) -> _TransactionBuffer:
        if self._transaction is None:
            raise DecodeError(f"pgoutput {kind} arrived outside a transaction; {_RECONNECT}")
        return self._transaction

    def _relation(self, relation_id: int) -> Relation:
        relation = self._relations.get(relation_id)
        if relation is None:
            raise DecodeError(
                f"pgoutput change of relation {relation_id} arrived without a Relation message before it; {_RECONNECT}"
            )
        return relation

    def _reader(self, relation_id: int) -> RowReader:
        reader = self._readers.get(relation_id)
        if reader is None:
            reader = self._readers[relation_id] = RowReader(self._relation(relation_id), self.codec)
        return reader

    def _begin(self, begin: Begin) -> None:
        if self._transaction is not None:
            raise DecodeError(
                f"transaction {begin.xid} begins inside transaction {self._transaction.begin.xid}, which is still "
                f"open; {_RECONNECT}"
            )
        self._transaction = _TransactionBuffer(begin)

    def _buffer(self, transaction: _TransactionBuffer, change: Change, size: int) -> tuple[TransactionFragment, ...]:
        buffered = len(transaction.changes)
        too_large = buffered > 0 and transaction.byte_count + size > self._max_batch_bytes
        full = too_large or buffered >= self._max_batch_size
        fragments = (transaction.take_fragment(commit=None),) if full else ()
        transaction.changes.append(change)
        transaction.byte_count += size
        return fragments

    def _count_change(self, transaction: _TransactionBuffer, size: int) -> None:
        transaction.change_count += 1
        transaction.tx_size += size
        if self._max_tx_size is not None and transaction.tx_size > self._max_tx_size:
            raise TransactionTooLargeError(
                f"transaction {transaction.begin.xid} has reached {transaction.tx_size} bytes, but max_tx_size is "
                f"{self._max_tx_size}; raise the limit, or remove its tables from the publication"
            )

    def _truncate(
        self, transaction: _TransactionBuffer, relation_ids: Iterable[int]
    ) -> tuple[TransactionFragment, ...]:
        fragments: list[TransactionFragment] = []
        for relation_id in relation_ids:
            truncate = Truncate(self._relation(relation_id), transaction.next_offset())
            size = change_bytes(truncate)
            self._count_change(transaction, size)
            fragments += self._buffer(transaction, truncate, size)
        return tuple(fragments)

    def _commit(self, transaction: _TransactionBuffer, message: CommitMessage) -> TransactionFragment:
        begin = transaction.begin
        if message.commit_lsn != begin.final_lsn:
            raise DecodeError(
                f"transaction {begin.xid} began with commit LSN {format_lsn(begin.final_lsn)}, but commits at "
                f"{format_lsn(message.commit_lsn)}; {_RECONNECT}"
            )
        self._transaction = None
        self.committed_changes += transaction.change_count
        return transaction.take_fragment(Commit(message.commit_timestamp, message.end_lsn))
