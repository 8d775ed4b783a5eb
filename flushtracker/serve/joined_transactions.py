"""``joined_transactions``: the transactions of a shape with subqueries, as the changes of its query.

A row that enters because of another table's row is an insert at that transaction's offset, one that leaves a delete. A
transaction's content does not depend on when a server polls, nor on where a client starts
(:mod:`flushtracker.shape_log.table.joined_changes`). Each read of the log costs a fold of the shape.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any

import pyarrow as pa

from flushtracker.delta.storage import literal, query_batches
from flushtracker.errors import DecodeError
from flushtracker.serve.messages import TransactionMessages, item_messages
from flushtracker.serve.refusals import RefetchError
from flushtracker.serve.rendering import Rendering
from flushtracker.shape_log.fold import columns_of
from flushtracker.shape_log.log_row import COMMIT
from flushtracker.shape_log.table.external_sort import sort_tables
from flushtracker.shape_log.table.found_shape import FoundShape
from flushtracker.shape_log.table.joined_changes import joined_changes
from flushtracker.shape_log.table.joined_rows import shown_text
from flushtracker.shape_log.table.reader import ShapeLogReader

Check = Callable[[], None]
_COLUMNS = ("tx_offset", "operation", "key", "value", "old_value")


@dataclass(frozen=True, slots=True)
class QueryChanges:
    """``changes`` reads the changes of a query, as ``version_changes`` has them, rendered so; ``xids`` those of all
    transactions of its tables, in order.

    ``has_old``: messages have the old values, too. ``only_changed``: updates have the key and what has changed.
    """

    changes: Callable[[], Iterator[pa.Table]]
    xids: Callable[[], Iterator[tuple[int, int]]]
    rendering: Rendering
    has_old: bool
    only_changed: bool = False


def joined_transactions(
    reader: ShapeLogReader, shape: FoundShape, after_tx: int, rendering: Rendering, most_bytes: int, check: Check
) -> Iterator[TransactionMessages]:
    """The transactions after ``after_tx`` with changes of the query; raises as :func:`query_transactions`."""
    has_old = shape.entry is not None and shape.entry.definition.replica == "full"
    found = QueryChanges(
        lambda: joined_changes(reader.finder.table, shape, after_tx, check),
        lambda: read_xids(reader, shape, after_tx),
        rendering,
        has_old,
    )
    return query_transactions(shape, after_tx, found, most_bytes, check)


def query_transactions(
    shape: FoundShape, after_tx: int, query: QueryChanges, most_bytes: int, check: Check
) -> Iterator[TransactionMessages]:
    """The transactions after ``after_tx`` with changes of a query over the log of a shape.

    Raises:
        RefetchError: one has more than ``most_bytes`` of keys and values, or the rows in between cannot be determined
            because the condition has no outcome for one.
        FlushtrackerError: as for any read of the shape's rows, for which it needs its snapshot.
    """
    if shape.last_commit is None or not shape.has_more(after_tx):
        return
    shape.require_snapshot()
    xids = query.xids()
    try:
        for tx, rows in groupby(_rows(query.changes(), check), itemgetter(0)):
            items, size = list[tuple[str, str, str | None, str | None]](), 0
            for _, operation, key, value, old_value in rows:
                is_part = query.only_changed and operation == "update"
                text = changed_text(value, old_value, shape.key_columns) if is_part else value
                items.append((operation, key, text, old_value if query.has_old else None))
                size += sum(len(text) for text in items[-1] if text is not None)
                if size > most_bytes:
                    raise RefetchError(tx)
            xid = next(xid for commit, xid in xids if commit == tx)
            yield TransactionMessages(tx, item_messages(tx, xid, items, query.rendering))
    except DecodeError as error:
        # The shape's current rows may be known; otherwise they are refused.
        raise RefetchError(shape.last_commit) from error


def _rows(changes: Iterator[pa.Table], check: Check) -> Iterator[tuple[Any, ...]]:
    for table in changes:
        check()
        yield from zip(*(table[name].to_pylist() for name in _COLUMNS), strict=True)


def changed_text(value: str, old_value: str, key_columns: Collection[str]) -> str:
    """The key of a row, and its columns that have an old value.

    >>> changed_text('{"id":"1","a":"2","b":null}', '{"b":"3"}', ("id",))
    '{"id":"1","b":null}'
    """
    row = columns_of(value)
    kept = {*columns_of(old_value), *key_columns}
    return shown_text(row, tuple(name for name in row if name in kept))


def read_xids(reader: ShapeLogReader, shape: FoundShape, after_tx: int) -> Iterator[tuple[int, int]]:
    """The xid of each later transaction of any of its tables, in order."""
    condition = f"{shape.condition} AND operation = {literal(COMMIT)} AND {shape.counted(after_tx)}"
    query = f"SELECT tx_offset, xid FROM rows WHERE {condition}"  # noqa: S608  literals alone
    for table in sort_tables(query_batches(reader.finder.table, query), ["tx_offset"]):
        yield from zip(table["tx_offset"].to_pylist(), table["xid"].to_pylist(), strict=True)
