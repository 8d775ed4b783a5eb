"""Whether a relation, as the stream describes it, is what the table's binding says of it.

The catalog shows a table as it is now, which may be later than the rows that arrive, or earlier than the next ones. The
relation is as of the rows. It has no numbers of columns, but their names in the order of the numbers.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from flushtracker.shapes.table_binding import TableBinding, dotted, type_reason
from flushtracker.wal.changes import Relation, TableName


def conflicts(
    bound: TableBinding, name: TableName, relation: Relation, lsn: int, order: Sequence[str] | None = None
) -> dict[str | None, str]:
    """Why rows of ``relation``, as the stream describes it, do not fit the binding; empty if they do.

    The rows are of a transaction that commits at ``lsn``. ``name`` is that of the binding for the relation, which is
    the table or one of its partitions. ``order`` has the relation's columns in the order that they have now; ``None``:
    those of ``bound``. The reasons are by the column that a shape must use to be concerned; under ``None`` is one for
    every shape.

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
    """The first of :func:`conflicts` that concerns a shape that uses these columns (``None``: all)."""
    reasons = (reason for column, reason in found.items() if column is None or used is None or column in used)
    return next(reasons, None)


def since_first_bound(bound: TableBinding, now: TableBinding, insert_lsn: Callable[[], int]) -> TableBinding:
    """``now``, in which each column that differs from ``bound`` counts as altered before ``insert_lsn()``."""
    before = {column.number: column for column in bound.columns}
    pairs = [(column, before.get(column.number, column)) for column in now.columns]
    # A rename locks the table, so whoever changed it before has committed by now.
    lsn = insert_lsn() if any(column.version != earlier.version for column, earlier in pairs) else 0
    return replace(
        now,
        columns=tuple(
            replace(column, altered_before=earlier.altered_before if earlier.version == column.version else lsn)
            for column, earlier in pairs
        ),
    )
