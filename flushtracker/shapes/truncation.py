"""TRUNCATE of a partitioned table, which arrives as one TRUNCATE of each partition.

A shape cannot follow a TRUNCATE of only *some* of its partitions, because its rows do not record which partition they
are in: it ends.
"""

from dataclasses import dataclass

from flushtracker.errors import ShapeError
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.wal.changes import Change, TableName, Truncate


@dataclass(frozen=True, slots=True)
class Truncation:
    """What a transaction has truncated of a partitioned table.

    ``empty``: the partitions known to be empty now. ``partial``: those that were truncated while others kept rows.
    """

    empty: frozenset[TableName] = frozenset()
    partial: frozenset[TableName] = frozenset()


def truncated(definition: ShapeDefinition, before: Truncation, change: Change) -> tuple[Truncation, bool]:
    """The truncation after ``change``, and whether ``change`` has an effect on the shape.

    Each transaction starts with no partition known to be empty. A TRUNCATE has an effect only if it leaves every
    partition empty, and then it applies to the whole shape. A transaction that commits with a partial truncation cannot
    be followed: rows do not say which partition they are in. Changes that affect none of the shape's rows may be left
    out.
    """
    table = change.relation.table
    if table not in definition.partitions or table == definition.table:
        return (Truncation() if isinstance(change, Truncate) else before), True
    if not isinstance(change, Truncate):
        return Truncation(before.empty - {table}, before.partial), True
    empty = before.empty | {table}
    if empty.issuperset(definition.partitions_at(change.offset.tx_offset)):
        return Truncation(empty), True
    return Truncation(empty, before.partial | {table}), False


def partial_truncation(definition: ShapeDefinition, truncation: Truncation) -> ShapeError:
    """The error of a transaction that commits with a partial truncation."""
    tables = ", ".join(".".join(table) for table in sorted(truncation.partial))
    return ShapeError(
        f"shape {definition.id!r}: TRUNCATE of partition {tables} left other partitions of "
        f"{'.'.join(definition.table)} with rows, and which of the shape's rows were in it is not known"
    )
