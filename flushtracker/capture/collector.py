"""``Collector``: turns one connection's messages and keepalives into published fragments.

A keepalive states that the server has sent everything up to ``wal_end``. It becomes a fragment without changes at
``wal_end − 1``, because a commit record may start exactly at ``wal_end``. Inside a transaction more changes below
``wal_end`` will follow, so it is ignored there.

A row of a table without shapes is counted but not decoded. No shape needs it: a shape that is added now starts after
the open transaction, and a table's partitioned ancestors are looked up when its relation arrives, before its rows. Rows
that a table received before it became a partition do not belong to the root's shapes, even in the same transaction. For
the same reasons, only those columns are decoded that shapes read when the transaction began, or when the relation was
last described in it.

A transaction without changes of published tables is not published, because the server may not send it again. It sends
one only for a logical message, which any role may write and which capture seldom requests (``needed_messages``). Two
kinds are published nevertheless: a transaction at which a table loses a partition, and the one that an earlier
connection published last.

A row that is too large for the topics does not stop the stream: the shapes affected are ended (``event_limit``).
Neither does text without equivalent in UTF-8, such as bytes that WIN1252 leaves undefined, or a value of type "char"
before PostgreSQL 16. The shapes that read the column are ended, whether or not they have the row.
"""

from collections.abc import Callable, Iterator, Sequence

from flushtracker.capture.described_relations import DescribedRelations, RelationCatalog
from flushtracker.capture.shapes.subscriptions import Subscriptions
from flushtracker.capture.wire.history_check import ResendCheck, TransactionIdentity
from flushtracker.capture.wire.outbox import Outbox
from flushtracker.errors import DecodeError, ReconnectError, ShapeError, UnreadableTextError
from flushtracker.shapes.routed_fragment import RoutedFragment, RoutedFragments
from flushtracker.wal.changes import Commit, Relation, TransactionFragment
from flushtracker.wal.fragment_converter import FragmentConverter
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.lsn import format_lsn
from flushtracker.wal.pgoutput import Begin, CommitMessage, RelationMessage, RowMessage, TruncateMessage, decode


class ChangeCounts:
    """Counts the changes that concerned some shape, and those that concerned none, in the ended transactions of a
    connection.

    A resent change counts again. One thread writes; any thread may read ``matched`` and ``unmatched``, which only
    increase. Changes are not counted one by one, but from the counts in fragments and transactions.
    """

    def __init__(self) -> None:
        self.matched = 0
        self.unmatched = 0
        self._open_matched = 0
        self._committed = 0

    def handle_fragment(self, routed: Sequence[RoutedFragment]) -> None:
        """Count a fragment that was routed to these shapes."""
        if len(routed) == 1:
            self._open_matched += routed[0].change_count
        elif routed:
            # A change has an even offset; the second item of a split update has the next one.
            self._open_matched += len({item.offset.op_offset >> 1 for part in routed for item in part.items})

    def handle_commit(self, committed_changes: int) -> None:
        """Count a transaction that has ended; ``committed_changes`` is the total so far."""
        changes = committed_changes - self._committed
        self.matched += self._open_matched
        self.unmatched += changes - self._open_matched
        self._open_matched, self._committed = 0, committed_changes


class Collector:
    """Handles one connection, which sends from ``confirmed_lsn`` on. Each connection needs a new one, and a new
    ``converter``.

    ``resend_check`` has the source's last transaction so far; ``None`` if there is none.

    Every method may raise an error that stops the stream: ``DecodeError``, ``GapError``, ``SlotError``,
    ``BrokerError``; or ``PostgresUnavailableError`` if the catalog cannot be queried.
    """

    def __init__(
        self,
        source: str,
        confirmed_lsn: int,
        subscriptions: Subscriptions,
        outbox: Outbox,
        converter: FragmentConverter,
        resend_check: ResendCheck | None,
    ) -> None:
        self.last_transaction = None if resend_check is None else resend_check.last
        self.counts = ChangeCounts()
        self.subscriptions = subscriptions
        self._outbox = outbox
        self._converter = converter
        self._source = source
        self._resend_check = resend_check
        # A transaction whose begin only has arrived; and the last one that has changes or is published anyway.
        self._begun: TransactionIdentity | None = None
        self._open: TransactionIdentity | None = None
        self.last_empty_lsn = -1
        """Where the last published transaction without changes commits on this connection."""
        self._published_lsn = confirmed_lsn - 1
        self._keepalive_lsn = confirmed_lsn
        self._described = DescribedRelations()
        # The relations whose columns to read in the open transaction the converter has.
        self._narrowed: set[int] = set()
        subscriptions.router.forget_open_transaction()
        outbox.begin_chain(source, confirmed_lsn)

    @property
    def is_resend_checked(self) -> bool:
        """Whether the server is known to continue what was published; until then, nothing may be confirmed to it."""
        return self._resend_check is None or not self._resend_check.is_pending

    @property
    def in_transaction(self) -> bool:
        return self._converter.in_transaction

    def handle_message(self, wal_lsn: int, data: bytes) -> None:
        try:
            fragments = self._fragments(data)
        except DecodeError as error:
            raise DecodeError(f"at {format_lsn(wal_lsn)}: {error}") from error
        for fragment in fragments:
            self._publish(fragment)

    def handle_keepalive(self, wal_end: int) -> None:
        """Record how far the server has sent; :meth:`publish_keepalive` publishes it."""
        if self._converter.in_transaction:
            return
        if self._resend_check is not None:
            self._resend_check.handle_keepalive(wal_end)
        self.subscriptions.starts.handle_keepalive(wal_end)
        self._keepalive_lsn = max(self._keepalive_lsn, wal_end)
        self._forget_relations(wal_end)

    def check_relations(self, catalog: RelationCatalog) -> None:
        """Forget tables that were dropped; call it at intervals."""
        self._described.check(catalog)

    def _forget_relations(self, lsn: int) -> None:
        """Forget tables that no transaction can change from ``lsn`` on, which is past everything received."""
        for oid in self._described.take_dropped(lsn):
            self._converter.forget(oid)

    def publish_keepalive(self, commit_timestamp: str) -> bool:
        """Publish how far the server has sent, unless that was published already; return whether it was."""
        lsn = self._keepalive_lsn - 1
        if self._converter.in_transaction or lsn <= self._published_lsn:
            return False
        commit = Commit(commit_timestamp, self._keepalive_lsn)
        self._publish(TransactionFragment(None, lsn, LogOffset(lsn, 0), has_begin=True, commit=commit))
        return True

    def _fragments(self, data: bytes) -> tuple[TransactionFragment, ...]:
        message = decode(data, self._converter.codec)
        if self._begun is not None and isinstance(message, (RowMessage, RelationMessage, TruncateMessage)):
            self._open_transaction(self._begun)
        if isinstance(message, RowMessage):
            if self._is_unwanted(message.relation_id):
                self._converter.skip_row(message)
                return ()
            return self._row_fragments(message)
        if isinstance(message, Begin):
            self._begun = TransactionIdentity(message.final_lsn, message.xid, message.commit_timestamp)
            self.subscriptions.starts.handle_transaction(message.final_lsn, message.xid)
        elif isinstance(message, RelationMessage):
            self._handle_relation(message.relation)
        elif isinstance(message, CommitMessage):
            return self._commit(message)
        elif isinstance(message, TruncateMessage):
            self._require_whole(*filter(self.subscriptions.router.tables.has_shapes_on, message.relation_ids))
        return self._converter.handle(message)

    def _commit(self, message: CommitMessage) -> tuple[TransactionFragment, ...]:
        begun = self._begun
        if begun is not None and not self._must_publish(begun):
            self._begun = None
            self._converter.handle(message)
            # Everything that commits before this end has been sent.
            self.handle_keepalive(message.end_lsn)
            return ()
        if begun is not None:
            self._open_transaction(begun)
            self.last_empty_lsn = begun.lsn
        return (*self._lose_partitions(is_empty=begun is not None), *self._converter.handle(message))

    def _must_publish(self, empty: TransactionIdentity) -> bool:
        is_resent = self._resend_check is not None and self._resend_check.is_due(empty)
        return is_resent or self.subscriptions.tables.bound.must_lose_with_nothing(empty.lsn)

    def _row_fragments(self, message: RowMessage) -> tuple[TransactionFragment, ...]:
        """The fragments that a row completes; text that cannot be decoded is left out."""
        if message.relation_id not in self._narrowed:
            self._require_whole(message.relation_id)
            self._narrow(message.relation_id)
        while True:
            try:
                return self._converter.handle(message)
            except UnreadableTextError as error:  # noqa: PERF203  each column fails once in a transaction
                if self._open is None:
                    raise
                self.subscriptions.tables.handle_unreadable(message.relation_id, error.column, self._open)
                self._converter.leave_out(message.relation_id, error.column)

    def _lose_partitions(self, *, is_empty: bool) -> Iterator[TransactionFragment]:
        """Add the partitions that tables lose with the open transaction, as its last changes."""
        if self._open is None:
            return
        for table_oid, partition in self.subscriptions.tables.lost_partitions(self._open.lsn, is_empty=is_empty):
            yield from self._converter.lose_partition(table_oid, partition)

    def _is_unwanted(self, relation_id: int) -> bool:
        """Whether no shape is on the table; the converter refuses a relation that was not described."""
        return relation_id in self._described and not self.subscriptions.router.tables.has_shapes_on(relation_id)

    def _require_whole(self, *relation_ids: int) -> None:
        """Have the server describe tables again that have got a shape since their descriptions were trimmed."""
        if trimmed := [oid for oid in relation_ids if self._described.is_trimmed(oid)]:
            raise ReconnectError(f"tables {trimmed} have got shapes, and their columns must be described again")

    def _narrow(self, relation_id: int) -> None:
        """Restrict decoding to the columns that shapes read; the converter refuses a relation that was not
        described.
        """
        if relation_id in self._described:
            self._converter.read_only(relation_id, self.subscriptions.router.tables.columns_read(relation_id))
            self._narrowed.add(relation_id)

    def _open_transaction(self, transaction: TransactionIdentity) -> None:
        self._begun, self._open = None, transaction
        self._narrowed.clear()
        self._forget_relations(transaction.lsn)
        if self._resend_check is not None:
            self._resend_check.handle_transaction(transaction)
        self.subscriptions.tables.handle_begin(transaction.lsn)
        if self.last_transaction is None or transaction.lsn > self.last_transaction.lsn:
            self.last_transaction = transaction

    def _handle_relation(self, relation: Relation) -> None:
        if self._open is None:
            raise DecodeError("a relation arrived before any transaction; connect again")
        self.subscriptions.tables.handle_relation(relation, self._open)
        for oid in self._described.trim(self.subscriptions.router.tables.has_shapes_on):
            self._converter.trim(oid)
            self._narrowed.discard(oid)
        self._described.add(relation.relation_id, len(relation.columns))
        self._narrowed.discard(relation.relation_id)

    def _publish(self, fragment: TransactionFragment) -> None:
        rest: TransactionFragment | None = fragment
        while rest is not None:
            routed = self._route(rest)
            self._outbox.publish_fragment(routed)
            self.counts.handle_fragment(routed.parts)
            rest = routed.rest
        self._published_lsn = fragment.lsn
        if fragment.commit is not None:
            self.counts.handle_commit(self._converter.committed_changes)

    def _route(self, fragment: TransactionFragment) -> RoutedFragments:
        """Route as much as fits in memory; shapes that cannot be kept are ended together, and the others continue."""
        check = self._outbox.limit.check_of(self._source, fragment)
        routed = None
        while routed is None:
            routed = self._try_route(fragment, check)
        return routed

    def _try_route(
        self, fragment: TransactionFragment, check: Callable[[RoutedFragment], None]
    ) -> RoutedFragments | None:
        """Return ``None`` if shapes were ended or their tables recorded again; then route again."""
        try:
            return self.subscriptions.router.route_some(fragment, self._outbox.limit.max_items_bytes, check=check)
        except (ShapeError, DecodeError) as error:
            if not error.shape_errors:
                raise
            reasons = {shape_id: str(each) for shape_id, each in error.shape_errors.items()}
            # The server does not describe a table again when an enum gets a label, so the catalog may be ahead.
            if not self.subscriptions.tables.check_of(reasons):
                self.subscriptions.end_shapes(reasons)
            return None
