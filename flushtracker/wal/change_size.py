"""``change_bytes``: the size of a change, by which transactions are cut into fragments."""

from typing import Final

from flushtracker.wal.changes import Change, Delete, Insert, Relation, Row, Truncate, Update

CHANGE_BYTES: Final = 80
"""Counted for each change: its numbers, its operation, and the name of its table, which its key repeats."""


def change_bytes(change: Change) -> int:
    """The bytes of a change: its values in UTF-8, ``relation_row_bytes`` for each of its rows, and some for itself."""
    per_row = relation_row_bytes(change.relation)
    match change:
        case Insert():
            return CHANGE_BYTES + per_row + values_bytes(change.new)
        case Delete():
            return CHANGE_BYTES + per_row + values_bytes(change.old)
        case Update():
            size = CHANGE_BYTES + per_row + values_bytes(change.new)
            return size if change.old is None else size + per_row + values_bytes(change.old)
        case Truncate():
            return CHANGE_BYTES


def relation_row_bytes(relation: Relation) -> int:
    """The bytes counted for a row apart from its values: the name of each column, and one more."""
    return sum(1 + utf8_bytes(column.name) for column in relation.columns)


def utf8_bytes(text: str) -> int:
    """The number of bytes of ``text`` in UTF-8."""
    return len(text) if text.isascii() else len(text.encode())


def values_bytes(row: Row) -> int:
    """The bytes of a row's values in UTF-8; NULL has none."""
    return sum(utf8_bytes(value) for value in row.values() if value is not None)
