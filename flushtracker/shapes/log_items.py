"""Log items: how a change of a shape is recorded in the shape's log, with its key and its values.

============  =============================================  ================================================
item          ``replica: default``                           ``replica: full``
============  =============================================  ================================================
insert        value: the whole row                           the same
update        value: the key and the columns that changed    value: the whole row;
                                                             old_value: the changed columns' old values
delete        value: the key                                 value: the whole old row
truncate      no key, no value; of a partition, if keys      the same
              have partitions, or of one of the shape's
              tables: what begins those keys
============  =============================================  ================================================

"Whole" means the shape's columns that the server sent: old rows have only the replica identity, and updates omit
unchanged TOAST columns. A column whose old value is unknown counts as changed.

An update that changes the key is a delete at ``(tx, op)`` and an insert at ``(tx, op + 1)``, because a log by key
cannot express that a row has moved. The insert's unchanged TOAST columns are filled in from the old row if that is
known. If it is not (the table is not ``REPLICA IDENTITY FULL``), the insert would lack them permanently, so it is an
error that ends the shape. The same applies to an update that moves a row into the shape.
"""

from flushtracker.shapes.item_key import key_values
from flushtracker.shapes.shape import BoundShape, filled_new_row
from flushtracker.wal.changes import Change, Delete, Insert, LogItem, Row, Truncate, Update
from flushtracker.wal.log_offset import LogOffset


def log_items(shape: BoundShape, change: Change) -> tuple[LogItem, ...]:
    """The items of ``change``, in offset order; two for an update that changes the key, else one.

    ``change`` is the shape's, as returned by :meth:`BoundShape.filter`, not the table's. The last item's offset is the
    shape's last offset in the log; it is recorded nowhere else.

    Raises:
        DecodeError: the row lacks a key column.
    """
    match change:
        case Truncate():
            if shape.empties_by_prefix:
                return (LogItem(change.offset, "truncate_partition", shape.prefix_in(change.relation)),)
            return (LogItem(change.offset, "truncate"),)
        case Insert():
            return (_insert(shape, change, change.offset, change.new),)
        case Delete():
            return (_delete(shape, change, change.old),)
        case Update():
            return _update(shape, change)


def _update(shape: BoundShape, update: Update) -> tuple[LogItem, ...]:
    offset, old = update.offset, update.old
    if old is None:
        # No key column has changed, and every column that was sent counts as changed.
        return (LogItem(offset, "update", _key(shape, update, update.new), _chosen(shape, update.new)),)
    new = filled_new_row(update)
    key = _key(shape, update, new)
    if _key(shape, update, old) != key:
        shape.require_whole(update, new)
        after = LogOffset(offset.tx_offset, offset.op_offset + 1)
        return (_delete(shape, update, old), _insert(shape, update, after, new))
    sent = _chosen(shape, update.new)
    changed = {name for name, value in sent.items() if name not in old or old[name] != value}
    if shape.definition.replica == "full":
        old_value = {name: old[name] for name in sent if name in changed and name in old}
        return (LogItem(offset, "update", key, sent, old_value),)
    # Key columns are read from the filled-in row: one may be an unchanged TOAST column.
    value = {name: new[name] for name in shape.columns if name in changed or name in shape.key_columns}
    return (LogItem(offset, "update", key, value),)


def _insert(shape: BoundShape, change: Change, offset: LogOffset, row: Row) -> LogItem:
    return LogItem(offset, "insert", _key(shape, change, row), _chosen(shape, row))


def _delete(shape: BoundShape, change: Change, old: Row) -> LogItem:
    key = _key(shape, change, old)
    if shape.definition.replica == "full":
        return LogItem(change.offset, "delete", key, _chosen(shape, old))
    return LogItem(change.offset, "delete", key, {name: old[name] for name in shape.key_columns})


def _key(shape: BoundShape, change: Change, row: Row) -> str:
    return shape.prefix_in(change.relation) + key_values(shape.key_of(change, row))


def _chosen(shape: BoundShape, row: Row) -> Row:
    return row if shape.has_all_columns else {name: row[name] for name in shape.columns if name in row}
