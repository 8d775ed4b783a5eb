"""``change_bytes``: the size of a change, by which transactions are cut into fragments."""

from typing import Final

from flushtracker.wal.changes import Change, Delete, Insert, Relation, Row, Truncate, Update

_CHANGE_BYTES: Final = 80
"""Counted for each change: its numbers, its operation, and the name of its table, which its key repeats."""


def change_bytes(change: Change, row_bytes: int | None = None) -> int:
    """The bytes of a change: its values in UTF-8, ``row_bytes`` for each of its rows, and some for itself.

    ``row_bytes`` is that of the change's relation; a caller that counts many changes passes it. O(columns), however
    long the values are, as long as they are ASCII.
    """
    per_row = relation_row_bytes(change.relation) if row_bytes is None else row_bytes
    match change:
        case Insert():
            return _CHANGE_BYTES + per_row + _values_bytes(change.new)
        case Delete():
            return _CHANGE_BYTES + per_row + _values_bytes(change.old)
        case Update():
            size = _CHANGE_BYTES + per_row + _values_bytes(change.new)
            return size if change.old is None else size + per_row + _values_bytes(change.old)
        case Truncate():
            return _CHANGE_BYTES


def relation_row_bytes(relation: Relation) -> int:
    """The bytes counted for a row apart from its values: the name of each column, and one more."""
    return sum(1 + utf8_bytes(column.name) for column in relation.columns)


def utf8_bytes(text: str) -> int:
    """The number of bytes of ``text`` in UTF-8."""
    return len(text) if text.isascii() else len(text.encode())


def _values_bytes(row: Row) -> int:
    size = 0
    for value in row.values():
        if value is not None:
            size += len(value) if value.isascii() else len(value.encode())
    return size
