"""``joined_transaction``: what the query of a shape with subqueries has gained and lost since a client's position.

The log of such a shape has changes of all of its tables, which no client could make rows of. So the rows that the shape
had at the position are compared with those that it has now, by their keys, and what differs is one transaction, at the
offset of the last one. A row that enters because of another table's row is an insert there, one that leaves a delete.

It costs two folds of the shape for each look at the log that finds a change of any of its tables, for all clients that
have the same position. Memory does not depend on the number of rows, as for any fold.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pyarrow as pa

from flushtracker.delta.log.difference_rows import changes_between
from flushtracker.delta.log.external_sort import sort_tables
from flushtracker.delta.log.found_shape import FoundShape
from flushtracker.delta.log.joined_rows import shape_rows
from flushtracker.delta.log.reader import ShapeLogReader
from flushtracker.delta.storage import literal, query_rows
from flushtracker.serve.messages import Transaction, item_messages
from flushtracker.serve.refusals import RefetchError
from flushtracker.shape_log.log_row import COMMIT

Check = Callable[[], None]


def joined_transaction(
    reader: ShapeLogReader, shape: FoundShape, after_tx: int, relation: str, most_bytes: int, check: Check
) -> Transaction | None:
    """The changes of the query since the transaction ``after_tx``; ``None`` if there are none.

    Raises:
        RefetchError: they have more than ``most_bytes`` of keys and values.
        FlushtrackerError: as for any read of the shape's rows.
    """
    if shape.last_commit is None or not shape.has_more(after_tx):
        return None
    has_old = shape.entry is not None and shape.entry.definition.replica == "full"
    before, after = (_by_key(reader, each, check) for each in (replace(shape, last_commit=after_tx), shape))
    items, size = list[tuple[str, str, str | None, str | None]](), 0
    for changes in changes_between(before, after, shape.key_columns):
        check()
        for change in changes.to_pylist():
            old_value = change["old_value"] if has_old else None
            items.append((change["operation"], change["key"], change["value"], old_value))
            size += sum(len(text) for text in items[-1] if text is not None)
            if size > most_bytes:
                raise RefetchError(shape.last_commit)
    if not items:
        return None
    xids = _xids(reader, shape, after_tx)
    return Transaction(shape.last_commit, item_messages(shape.last_commit, xids, items, relation))


def _by_key(reader: ShapeLogReader, shape: FoundShape, check: Check) -> Iterator[pa.Table]:
    return sort_tables(
        (rows.select(["key", "value"]) for rows in shape_rows(reader.finder.table, shape, check)), ["key"]
    )


def _xids(reader: ShapeLogReader, shape: FoundShape, after_tx: int) -> str:
    """The xids of the transactions of any of its tables since, as a client waits for."""
    condition = f"{shape.condition} AND operation = {literal(COMMIT)} AND {shape.counted(after_tx)}"
    found = query_rows(reader.finder.table, f"SELECT xid FROM rows WHERE {condition} ORDER BY tx_offset")  # noqa: S608  literals alone
    return ",".join(map(str, found["xid"].to_pylist()))
