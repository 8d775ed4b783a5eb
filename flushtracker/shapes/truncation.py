"""TRUNCATE of a partitioned table, which arrives as one TRUNCATE of each partition.

A shape cannot follow a TRUNCATE of only *some* of its partitions, because its rows do not record which partition they
are in: it ends.
"""

from collections.abc import Set
from dataclasses import dataclass

from flushtracker.errors import ShapeError
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.partition_map import TableKey
from flushtracker.wal.changes import Change, TableName, Truncate


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
    """The error of a transaction that commits with a partial truncation."""
    tables = ", ".join(".".join(table) for table in sorted(truncation.partial))
    return ShapeError(
        f"shape {definition.id!r}: TRUNCATE of partition {tables} left other partitions of "
        f"{'.'.join(definition.table)} with rows, and which of the shape's rows were in it is not known"
    )
