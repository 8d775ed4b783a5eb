"""The messages of the protocol, as JSON, from rows of a shape's log: byte strings, each on one line.

The values of a row are JSON objects of texts in the log, and are passed on unchanged, except for intervals.
"""

from collections.abc import Iterable, Iterator
from json.encoder import encode_basestring
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from flushtracker.errors import DecodeError
from flushtracker.serve.refusals import RefetchError
from flushtracker.serve.rendering import Rendering
from flushtracker.shape_log.fold import TRUNCATE, TRUNCATE_PARTITION
from flushtracker.shape_log.log_row import COMMIT
from flushtracker.shape_log.shape_snapshot import SNAPSHOT
from flushtracker.shapes.item_key import JOINED_KEY

SEPARATOR: Final = b",\n"
"""Between messages; these have no line breaks."""

MUST_REFETCH: Final = b'[{"headers":{"control":"must-refetch"}}]'

_COLUMNS: Final = ("tx_offset", "op_offset", "operation", "key", "value", "old_value", "xid")
_ITEMS: Final = frozenset({"insert", "update", "delete"})


class TransactionMessages(NamedTuple):
    """The messages of a whole transaction; ``None`` for one that empties the shape, which no message can express."""

    tx_offset: int
    messages: list[bytes] | None


def up_to_date(lsn: int | None) -> bytes:
    """The message after which a client has all of the shape up to an LSN, if known: ``SeenShape.lsn``.

    A client that keeps its connection open uses it as its next offset.
    """
    if lsn is None:
        return b'{"headers":{"control":"up-to-date"}}'
    return b'{"headers":{"control":"up-to-date","global_last_seen_lsn":"%d"}}' % lsn


def row_messages(rows: pa.Table, rendering: Rendering, snapshot_mark: int | None = None) -> list[bytes]:
    """The rows of a shape as inserts, which belong to no transaction, and perhaps to a subset with this mark."""
    mark = "" if snapshot_mark is None else f',"snapshot_mark":{snapshot_mark:d}'
    tail = f',"headers":{{"operation":"insert"{rendering.relation}{mark}}}}}'
    keys, values = rows["key"].to_pylist(), rows["value"].to_pylist()
    return [
        f'{{"key":{encode_basestring(key)},"value":{rendering.value(value)}{tail}'.encode()
        for key, value in zip(keys, values, strict=True)
    ]


def transactions(tables: Iterable[pa.Table], rendering: Rendering, most_bytes: int) -> Iterator[TransactionMessages]:
    """The transactions of a log, in order.

    Raises:
        RefetchError: a transaction has more than ``most_bytes`` of keys and values. DecodeError: the log does not end
            with the end of a transaction, or has rows of several tables.
    """
    items: list[tuple[Any, ...]] = []
    size = 0
    for table in tables:
        if pc.any(pc.match_substring_regex(table["key"], JOINED_KEY)).as_py():
            raise DecodeError("a shape's log has rows of several tables, and what the shape is of them is not known")
        for row in zip(*(table[name].to_pylist() for name in _COLUMNS), strict=True):
            operation = row[2]
            if operation == COMMIT:
                yield TransactionMessages(row[0], transaction_messages(items, rendering))
                items, size = [], 0
            elif operation != SNAPSHOT:
                items.append(row)
                size += sum(map(len, filter(None, row[3:6])))
                if size > most_bytes:
                    raise RefetchError(row[0])
    if items:
        raise DecodeError(f"a shape's log ends inside the transaction at {items[-1][0]}")


def item_messages(
    tx_offset: int, xid: int, items: Iterable[tuple[str, str, str | None, str | None]], rendering: Rendering
) -> list[bytes]:
    rows = [(tx_offset, number, *item, xid) for number, item in enumerate(items)]
    return transaction_messages(rows, rendering) or []


def transaction_messages(items: list[tuple[Any, ...]], rendering: Rendering) -> list[bytes] | None:
    """The messages of a transaction's items, with the columns of the log up to ``xid``; ``None`` as in
    :class:`TransactionMessages`.
    """
    if any(item[2] in {TRUNCATE, TRUNCATE_PARTITION} for item in items):
        return None
    last = len(items) - 1
    return [_message(item, rendering, is_last=number == last) for number, item in enumerate(items)]


def _message(item: tuple[Any, ...], rendering: Rendering, *, is_last: bool) -> bytes:
    tx, op, operation, key, value, old_value, xid = item
    if operation not in _ITEMS or key is None:
        raise DecodeError(f"operation is {operation!r:.40} in a shape's log, or has no key")
    old = "" if old_value is None else f',"old_value":{rendering.value(old_value)}'
    ends, row = ',"last":true' if is_last else "", rendering.value(value or "{}")
    return (
        f'{{"key":{encode_basestring(key)},"value":{row}{old},"headers":{{"operation":"{operation}"'
        f'{rendering.relation},"lsn":"{tx}","op_position":{op},"txids":[{xid}]{ends}}}}}'
    ).encode()
