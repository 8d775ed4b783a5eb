"""``LogRow``: one row of the shape log.

A row is an item of a shape, or the end of a transaction: then ``operation`` is :data:`COMMIT` and the offset is
``LogOffset.last_of`` the transaction. Readers stop at a shape's last such row.
"""

import re
from datetime import datetime
from typing import Final, NamedTuple

from flushtracker.errors import DecodeError
from flushtracker.events.event_json import dump_json
from flushtracker.wal.changes import LogItem, Row
from flushtracker.wal.log_offset import LogOffset

COMMIT: Final = "commit"

_TIMESTAMP: Final = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2})(\.[0-9]{1,6})?Z")


class LogRow(NamedTuple):
    """One row of a shape's log; ``value`` and ``old_value`` are JSON objects as text.

    A shape's log is divided into chunks of ``chunk_bytes``, numbered by ``chunk``. Only a row that ends a transaction
    has a ``commit_timestamp``.
    """

    tx_offset: int
    op_offset: int
    operation: str
    key: str | None
    value: str | None
    old_value: str | None
    xid: int
    commit_timestamp: str | None
    chunk: int

    @property
    def payload_bytes(self) -> int:
        """The row's size, which limits chunks and flushes; counted in characters of the key and values."""
        return len(self.key or "") + len(self.value or "") + len(self.old_value or "")


def item_row(item: LogItem, xid: int, chunk: int) -> LogRow:
    value, old_value = row_json(item.value), row_json(item.old_value)
    return LogRow(*item.offset, item.operation, item.key, value, old_value, xid, None, chunk)


def commit_row(boundary: LogOffset, commit_timestamp: str, xid: int, chunk: int) -> LogRow:
    return LogRow(*boundary, COMMIT, None, None, None, xid, commit_timestamp, chunk)


def require_timestamp(text: str) -> None:
    """Raise ``DecodeError`` if the log cannot hold this timestamp of a commit."""
    if not _is_timestamp(text):
        raise DecodeError(f"commit_timestamp is {text!r:.40}, expected a time such as 2026-01-02T03:04:05Z")


def _is_timestamp(text: str) -> bool:
    found = _TIMESTAMP.fullmatch(text)
    try:
        return found is not None and bool(datetime.fromisoformat(found[1]))
    except ValueError:
        return False


def row_json(row: Row | None) -> str | None:
    return None if row is None else dump_json(row)
