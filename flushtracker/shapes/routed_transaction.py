"""The router's open transaction, and the check that a fragment continues it.

A transaction's fragments arrive in order, starting with its first, and no other transaction's fragments in between.
Anything else is an error, never a guess.

TRUNCATE of a partitioned table arrives as one TRUNCATE of each partition. A shape cannot follow a TRUNCATE of only
*some* of its partitions, because its rows do not record which partition they are in: it ends.
"""

from collections.abc import Set
from dataclasses import dataclass, field
from typing import Final

from flushtracker.errors import GapError, ShapeError
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.partition_map import TableKey
from flushtracker.wal.changes import Change, TableName, TransactionFragment, Truncate
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.lsn import format_lsn

_REMEDY: Final = "reconnect, so that the server resends the transaction from its start"


@dataclass(frozen=True, slots=True)
class Truncation:
    """The partitions of a table that a transaction has truncated.

    ``empty`` are the partitions known to be empty now; ``partial`` the names of those truncated while others kept rows.
    """

    empty: frozenset[TableKey] = frozenset()
    partial: frozenset[TableName] = frozenset()


def truncated(
    before: Truncation, change: Change, relation: TableKey, partitions: Set[TableKey] | None
) -> tuple[Truncation, bool]:
    """The truncation after ``change``, and whether ``change`` has an effect on the shape.

    ``partitions`` are those in which the transaction may have found rows; ``None`` if ``relation`` is the table itself.

    Each transaction starts with no partition known to be empty. A TRUNCATE has an effect only if it leaves every
    partition empty, and then it applies to the whole shape. A transaction that commits with a partial truncation cannot
    be followed: rows do not say which partition they are in. Changes that affect none of the shape's rows may be
    omitted.
    """
    if partitions is None:
        return (Truncation() if isinstance(change, Truncate) else before), True
    if not isinstance(change, Truncate):
        return Truncation(before.empty - {relation}, before.partial), True
    empty = before.empty | {relation}
    if empty >= partitions:
        return Truncation(empty), True
    return Truncation(empty, before.partial | {change.relation.table}), False


def partial_truncation(definition: ShapeDefinition, truncation: Truncation) -> ShapeError:
    tables = ", ".join(".".join(table) for table in sorted(truncation.partial))
    return ShapeError(
        f"shape {definition.id!r}: TRUNCATE of partition {tables} left other partitions of "
        f"{'.'.join(definition.table)} with rows, and which of the shape's rows were in it is not known"
    )


@dataclass(slots=True)
class RoutedTransaction:
    """A transaction routed up to ``last_log_offset``: the shapes that take part, and those among them removed since."""

    xid: int
    lsn: int
    last_log_offset: LogOffset
    shapes: set[str] = field(default_factory=set)
    removed: dict[str, str] = field(default_factory=dict)
    """The writer of each removed shape; its next incarnation may have another."""
    truncations: dict[str, Truncation] = field(default_factory=dict)
    """For each shape with partitions, which of them the transaction has truncated."""

    def __str__(self) -> str:
        return f"transaction {self.xid} at {format_lsn(self.lsn)}, routed up to {self.last_log_offset}"


def continued_transaction(
    current: RoutedTransaction | None, fragment: TransactionFragment, routed_up_to: LogOffset | None
) -> RoutedTransaction | None:
    """The transaction that ``fragment`` belongs to, not yet updated with it; ``None`` for a keepalive.

    ``current`` is the open transaction, and ``routed_up_to`` the greatest offset routed so far, if any.

    Raises:
        GapError: the fragment does not follow the previous one.
    """
    if fragment.xid is None:
        _check_keepalive(current, fragment)
        return None
    if current is None:
        if not fragment.has_begin:
            last = "nothing was routed before" if routed_up_to is None else f"the last offset routed was {routed_up_to}"
            raise GapError(f"{_subject(fragment)} is not its first, but no transaction is open and {last}; {_REMEDY}")
        return RoutedTransaction(fragment.xid, fragment.lsn, LogOffset.just_before(fragment.lsn))
    if fragment.has_begin or (fragment.xid, fragment.lsn) != (current.xid, current.lsn):
        relation = "begins inside" if fragment.has_begin else "does not belong to"
        raise GapError(f"{_subject(fragment)} {relation} the open {current}; {_REMEDY}")
    if fragment.last_log_offset <= current.last_log_offset:
        raise GapError(f"{_subject(fragment)} is out of order in the open {current}; {_REMEDY}")
    return current


def _check_keepalive(current: RoutedTransaction | None, keepalive: TransactionFragment) -> None:
    if current is not None:
        raise GapError(f"keepalive {keepalive.last_log_offset} arrived inside the open {current}; {_REMEDY}")
    if keepalive.changes or keepalive.commit is None:
        raise GapError(f"keepalive {keepalive.last_log_offset} has changes or no commit; {_REMEDY}")


def _subject(fragment: TransactionFragment) -> str:
    return f"fragment {fragment.last_log_offset} of transaction {fragment.xid}"
