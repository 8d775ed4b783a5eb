"""Checks whether a relation in the stream matches the table's binding.

The catalog shows a table as it is now, which may be later than the rows that arrive, or earlier than the next ones. The
relation describes the table as of the rows. It has no column numbers, but lists the columns in that order.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from flushtracker.shapes.table_binding import TableBinding, dotted, type_reason
from flushtracker.wal.changes import Relation, TableName


def conflicts(
    bound: TableBinding, name: TableName, relation: Relation, lsn: int, order: Sequence[str] | None = None
) -> dict[str | None, str]:
    """Why rows of ``relation`` do not fit the binding; empty if they do.

    The rows' transaction commits at ``lsn``. ``name`` is the binding's name for the relation, which is the table or one
    of its partitions. ``order`` has the relation's columns in their current order, ``None`` for that of ``bound``. The
    result maps a column to the reason for shapes that use it; the key ``None`` is for every shape.

    The relation may be older than the binding, so it may lack columns; :meth:`Shape.bind` checks those a shape needs.
    """
    table = dotted(relation.table)
    if relation.table != name:
        return {None: f"table {dotted(name)} was renamed to {table} for a time"}
    types = {column.name: column.type_oid for column in bound.columns}
    found: dict[str | None, str] = {}
    for column in relation.columns:
        if column.name not in types:
            found[column.name] = f"table {table} had a column {column.name}, which {dotted(bound.table)} does not have"
        elif types[column.name] != column.type_oid:
            found[column.name] = type_reason(bound.table, column.name, types[column.name], column.type_oid)
    # If two columns had exchanged their names for a time, only the order shows it.
    names = [column.name for column in relation.columns]
    expected = [column.name for column in bound.columns] if order is None else list(order)
    if names != expected[: len(names)]:
        for altered in (column.name for column in bound.columns if lsn < column.altered_before):
            reason = f"column {altered} of table {table} was altered, and may have had another name for a time"
            found.setdefault(altered, reason)
    return found


def conflict_for(used: Collection[str] | None, found: Mapping[str | None, str]) -> str | None:
    """The first of :func:`conflicts` that affects a shape that uses these columns (``None`` for all)."""
    reasons = (reason for column, reason in found.items() if column is None or used is None or column in used)
    return next(reasons, None)


def since_first_bound(bound: TableBinding, now: TableBinding, insert_lsn: Callable[[], int]) -> TableBinding:
    """``now``, with each column that differs from ``bound`` marked as altered before ``insert_lsn()``."""
    before = {column.number: column for column in bound.columns}
    pairs = [(column, before.get(column.number, column)) for column in now.columns]
    # A rename locks the table, so all earlier writers have committed by now.
    lsn = insert_lsn() if any(column.version != earlier.version for column, earlier in pairs) else 0
    return replace(
        now,
        columns=tuple(
            replace(column, altered_before=earlier.altered_before if earlier.version == column.version else lsn)
            for column, earlier in pairs
        ),
    )
