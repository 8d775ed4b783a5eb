"""Folding a shape's log: the shape's rows after some of the log's items.

An insert sets a row, an update sets the columns that it names, and a delete removes a row. A truncate removes all rows,
or those of one partition, whose keys begin with the item's key. The items come in offset order. Values are PostgreSQL's
text. A column missing from a row is unknown: an unchanged TOAST column whose value no item has.
"""

import json
from collections.abc import Iterable, Set
from typing import Final

from flushtracker.errors import DecodeError
from flushtracker.shape_log.log_row import COMMIT
from flushtracker.shape_log.shape_snapshot import SNAPSHOT
from flushtracker.shapes.item_key import partition_of

Item = tuple[str, str | None, str | None]
"""Operation, key, and value as the text of a JSON object; rows ``commit`` and ``snapshot`` change nothing."""

_Columns = dict[str, str | None]

END_ROWS: Final = (COMMIT, SNAPSHOT)
"""The operations of rows that are not items: they end a transaction or a snapshot."""

TRUNCATE: Final = "truncate"

TRUNCATE_PARTITION: Final = "truncate_partition"
"""The operation that removes the rows of one partition; its key is the prefix of their keys."""

UPDATE_WITHOUT_INSERT: Final = (
    "update of a row that the log has not inserted: the table had rows before the shape started, and the shape has no "
    "snapshot of them; set snapshot: true and resync it, or read the log instead of the rows"
)


def fold(items: Iterable[Item]) -> dict[str, _Columns]:
    """The rows by key.

    >>> fold([("insert", "7", '{"id":"7","name":"a"}'), ("update", "7", '{"name":null}'), ("commit", None, None)])
    {'7': {'id': '7', 'name': None}}

    Raises:
        DecodeError: an update names a row that the log has not inserted, or an item has an unknown operation.
    """
    rows: dict[str, _Columns] = {}
    # A TRUNCATE of the whole table is one item per partition, and these may be many.
    emptied = set[str]()
    for operation, key, value in items:
        if operation in END_ROWS:
            continue
        if emptied and operation != TRUNCATE_PARTITION:
            rows = _without(rows, emptied)
            emptied.clear()
        if operation == TRUNCATE:
            rows.clear()
        elif key is None:
            raise DecodeError(f"{operation} without a key in a shape's log")
        elif operation == TRUNCATE_PARTITION:
            emptied.add(key)
        else:
            _apply(rows, operation, key, value)
    return _without(rows, emptied)


def _apply(rows: dict[str, _Columns], operation: str, key: str, value: str | None) -> None:
    if operation == "insert":
        rows[key] = columns_of(value)
    elif operation == "delete":
        rows.pop(key, None)
    elif operation != "update":
        raise DecodeError(f"operation is {operation!r:.40}, which is none of a shape's log")
    elif key in rows:
        rows[key].update(columns_of(value))
    else:
        raise DecodeError(UPDATE_WITHOUT_INSERT)


def _without(rows: dict[str, _Columns], partitions: Set[str]) -> dict[str, _Columns]:
    return {key: row for key, row in rows.items() if partition_of(key) not in partitions} if partitions else rows


def columns_of(value: str | None) -> _Columns:
    """The columns in the value of an insert or an update; raises ``DecodeError``."""
    try:
        columns = json.loads(value or "null")
    except ValueError as error:
        raise DecodeError("value of an insert or update in a shape's log is not JSON") from error
    if not isinstance(columns, dict):
        raise DecodeError("value of an insert or update in a shape's log is not a JSON object")
    return columns
