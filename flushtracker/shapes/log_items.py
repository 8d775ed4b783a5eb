"""Log items: how a change of a shape is recorded in the shape's log, with its key and its values.

============  =============================================  ================================================
item          ``replica: default``                           ``replica: full``
============  =============================================  ================================================
insert        value: the whole row                           the same
update        value: the key and the columns that changed    value: the whole row;
                                                             old_value: the changed columns' old values
delete        value: the key                                 value: the whole old row
truncate      no key, no value                               the same
============  =============================================  ================================================

"Whole" means the columns of the shape that the server sent: of an old row it sends only the replica identity, and of an
update it omits unchanged TOAST columns. A column whose old value is unknown counts as changed.

An update that changes the key is a delete at ``(tx, op)`` and an insert at ``(tx, op + 1)``, because a log by key
cannot express that a row has moved. The insert's unchanged TOAST columns are filled in from the old row if that is
known. If it is not (the table is not ``REPLICA IDENTITY FULL``), the insert would lack them permanently, so it is an
error that ends the shape. The same applies to an update that moves a row into the shape.
"""

from collections.abc import Iterable

from flushtracker.shapes.shape import BoundShape, filled_new_row, quoted
from flushtracker.wal.changes import Change, Delete, Insert, LogItem, Row, TableName, Truncate, Update
from flushtracker.wal.log_offset import LogOffset


def key_text(table: TableName, values: Iterable[str | None]) -> str:
    """The key of a row: the table's schema, its name and the key values, each quoted; NULL is a bare underscore.

    Different rows never get the same text, whatever their values contain.

    >>> print(key_text(("public", "users"), ["7"]))
    "public"."users"/"7"
    >>> print(key_text(("public", "order_items"), ['1/"2"', None]))
    "public"."order_items"/"1/""2""\"/_
    """
    schema, name = table
    parts = "".join(["/_" if value is None else "/" + quoted(value) for value in values])
    return f"{quoted(schema)}.{quoted(name)}{parts}"


def log_items(shape: BoundShape, change: Change) -> tuple[LogItem, ...]:
    """The items of ``change``, in offset order; two for an update that changes the key, else one.

    ``change`` is the shape's, as returned by :meth:`BoundShape.filter`, not the table's. The last item's offset is the
    shape's last offset in the log; it is recorded nowhere else.

    Raises:
        DecodeError: the row lacks a key column.
    """
    match change:
        case Truncate():
            return (LogItem(change.offset, "truncate"),)
        case Insert():
            return (_insert(shape, change, change.offset, change.new),)
        case Delete():
            return (_delete(shape, change, change.old),)
        case Update():
            return _update(shape, change)


def _update(shape: BoundShape, update: Update) -> tuple[LogItem, ...]:
    offset, new = update.offset, filled_new_row(update)
    key = shape.key_of(update, new)
    # If the server sent no old row, no key column has changed.
    if update.old is not None and shape.key_of(update, update.old) != key:
        shape.require_whole(update, new)
        after = LogOffset(offset.tx_offset, offset.op_offset + 1)
        return (_delete(shape, update, update.old), _insert(shape, update, after, new))
    old = {} if update.old is None else update.old
    sent = _chosen(shape.columns, update.new)
    changed = {name for name, value in sent.items() if name not in old or old[name] != value}
    text = key_text(shape.table, key)
    if shape.definition.replica == "full":
        old_value = (
            None if update.old is None else {name: old[name] for name in sent if name in changed and name in old}
        )
        return (LogItem(offset, "update", text, sent, old_value),)
    # Key columns are read from the filled-in row: one may be an unchanged TOAST column.
    wanted = [name for name in shape.columns if name in changed or name in shape.key_columns]
    return (LogItem(offset, "update", text, _chosen(wanted, new)),)


def _insert(shape: BoundShape, change: Change, offset: LogOffset, row: Row) -> LogItem:
    text = key_text(shape.table, shape.key_of(change, row))
    return LogItem(offset, "insert", text, _chosen(shape.columns, row))


def _delete(shape: BoundShape, change: Change, old: Row) -> LogItem:
    text = key_text(shape.table, shape.key_of(change, old))
    columns = shape.columns if shape.definition.replica == "full" else shape.key_columns
    return LogItem(change.offset, "delete", text, _chosen(columns, old))


def _chosen(columns: Iterable[str], row: Row) -> Row:
    return {name: row[name] for name in columns if name in row}
