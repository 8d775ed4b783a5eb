"""``Collector``: one connection's messages in, fragments published; keepalives too, where they tell something.

A keepalive says that the server has sent everything up to ``wal_end``. It becomes a fragment without changes at
``wal_end − 1``, and only outside a transaction: a commit record may start exactly at ``wal_end``, and inside a
transaction there is more to come from below it.

A row of a table without shapes is counted and not read. No shape misses it: one that is added now starts past the open
transaction, and whose partition a table is was asked when its relation came, before its rows. What a table held before
it became a partition is not the root's shapes', in the same transaction either.
"""

from flushtracker.capture.history_check import ResendCheck, TransactionIdentity
from flushtracker.capture.outbox import Outbox
from flushtracker.capture.subscriptions import Subscriptions
from flushtracker.errors import DecodeError, ShapeError
from flushtracker.events.fragment_sequencer import FragmentSequencer
from flushtracker.shapes.event_router import RoutedFragment
from flushtracker.wal.changes import Commit, Relation, TableName, TransactionFragment
from flushtracker.wal.fragment_converter import FragmentConverter
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.lsn import format_lsn
from flushtracker.wal.pgoutput import Begin, RelationMessage, decode, row_relation_id


class Collector:
    """Made anew for each connection, which sends from ``confirmed_lsn`` on; ``converter`` is a fresh one, too.

    ``last_transaction`` is the greatest that was ever seen of the source: sent again, it must be the same.

    Raises from every method what stops the stream: ``DecodeError``, ``GapError``, ``SlotError``, ``BrokerError``; and
    ``PostgresUnavailableError`` where the catalog cannot be asked.
    """

    def __init__(
        self,
        source: str,
        confirmed_lsn: int,
        subscriptions: Subscriptions,
        outbox: Outbox,
        converter: FragmentConverter,
        last_transaction: TransactionIdentity | None,
    ) -> None:
        self.last_transaction = last_transaction
        self._subscriptions = subscriptions
        self._outbox = outbox
        self._converter = converter
        self._chain = FragmentSequencer(source, confirmed_lsn)
        self._resend_check = None if last_transaction is None else ResendCheck(source, last_transaction, confirmed_lsn)
        self._open: TransactionIdentity | None = None
        self._published_lsn = confirmed_lsn - 1
        self._keepalive_lsn = confirmed_lsn
        self._tables: dict[int, TableName] = {}
        subscriptions.router.forget_open_transaction()

    def handle_message(self, wal_lsn: int, data: bytes) -> None:
        """One message of the output plugin."""
        relation_id = row_relation_id(data)
        table = None if relation_id is None else self._tables.get(relation_id)
        if table is not None and not self._subscriptions.router.has_shapes_on(table):
            self._converter.skip_row()
            return
        try:
            message = decode(data)
        except DecodeError as error:
            raise DecodeError(f"at {format_lsn(wal_lsn)}: {error}") from error
        if isinstance(message, Begin):
            self._begin(TransactionIdentity(message.final_lsn, message.xid, message.commit_timestamp))
        elif isinstance(message, RelationMessage):
            self._meet(message.relation)
        for fragment in self._converter.handle(message):
            self._publish(fragment)

    def handle_keepalive(self, wal_end: int) -> None:
        """Note how far the server has sent; published later, by :meth:`publish_keepalive`."""
        if self._converter.in_transaction:
            return
        if self._resend_check is not None:
            self._resend_check.handle_keepalive(wal_end)
        self._keepalive_lsn = max(self._keepalive_lsn, wal_end)

    def publish_keepalive(self, commit_timestamp: str) -> bool:
        """Publish how far the server has sent, if that is further than what was published; returns whether it was."""
        lsn = self._keepalive_lsn - 1
        if self._converter.in_transaction or lsn <= self._published_lsn:
            return False
        commit = Commit(commit_timestamp, self._keepalive_lsn)
        self._publish(TransactionFragment(None, lsn, LogOffset(lsn, 0), has_begin=True, commit=commit))
        return True

    def _begin(self, transaction: TransactionIdentity) -> None:
        self._open = transaction
        if self._resend_check is not None:
            self._resend_check.handle_transaction(transaction)
        if self.last_transaction is None or transaction.lsn > self.last_transaction.lsn:
            self.last_transaction = transaction

    def _meet(self, relation: Relation) -> None:
        if self._open is None:
            raise DecodeError("a relation came before any transaction; connect again")
        self._subscriptions.handle_relation(relation, self._open)
        self._tables[relation.relation_id] = relation.table

    def _publish(self, fragment: TransactionFragment) -> None:
        self._outbox.publish_fragment(self._chain.publish(fragment, self._route(fragment)))
        self._published_lsn = fragment.lsn

    def _route(self, fragment: TransactionFragment) -> tuple[RoutedFragment, ...]:
        """Route to every shape that can be kept; one that cannot is ended, and the others go on."""
        routed = None
        while routed is None:
            routed = self._try_route(fragment)
        return routed

    def _try_route(self, fragment: TransactionFragment) -> tuple[RoutedFragment, ...] | None:
        """``None``: a shape was ended, and it is to be tried again without it."""
        try:
            return self._subscriptions.router.route(fragment)
        except (ShapeError, DecodeError) as error:
            if error.shape_id is None:
                raise
            self._subscriptions.end_shape(error.shape_id, str(error))
            return None
