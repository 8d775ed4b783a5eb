"""Decides whether a connection should receive the messages of ``pg_logical_emit_message``, which any role may write.

They are up to 1 GB each, and nothing uses them. But a transaction that changes no published table is sent only if it
has a message, and two cases may need such a transaction:

- a table has lost a partition while nothing else commits. Its shapes lose the rows with a transaction
  (``bound_tables``);
- the last published transaction was one of these, and must be resent (``history_check``).

So a connection starts without messages. In either case it is replaced by one with messages, and that by one without,
once the slot is confirmed past the transaction.
"""

from flushtracker.capture.collector import Collector
from flushtracker.capture.shapes.catalog_changes import CatalogChanges
from flushtracker.capture.wire.standby_status import StandbyStatus
from flushtracker.errors import ReconnectError


def require_messages(tables: CatalogChanges, confirmed_lsn: int, *, has_messages: bool) -> None:
    """Raise ``ReconnectError`` if a connection that sends from ``confirmed_lsn`` on needs messages from the start.

    It does if the transaction with which a partition was lost is resent. A partition still to be lost can wait.
    """
    if not has_messages and tables.bound.has_lost_since(confirmed_lsn):
        raise ReconnectError(
            "a table has lost a partition with a transaction that is not confirmed", with_messages=True
        )


def check_messages(collector: Collector, status: StandbyStatus, *, has_messages: bool) -> None:
    """Raise ``ReconnectError`` if the connection should have messages, or no longer needs them; call it at intervals.

    On a busy server, other transactions arrive before the next call, so none with only messages is needed.
    """
    tables = collector.subscriptions.tables.bound
    if collector.in_transaction:
        return
    if not has_messages:
        if tables.is_any_unlost():
            raise ReconnectError("a table has lost a partition, and nothing has committed since", with_messages=True)
        return
    confirmed_lsn = status.flushed_lsn
    is_confirmed = collector.last_empty_lsn < confirmed_lsn and not tables.has_lost_since(confirmed_lsn)
    if collector.is_resend_checked and is_confirmed and not tables.is_any_unlost():
        raise ReconnectError("messages are needed no longer", with_messages=False)
