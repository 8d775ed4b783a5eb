"""Checks that the values of enums in a change are labels that their types still have."""

from collections.abc import Callable, Collection, Sequence
from typing import TypeAlias

from flushtracker.shapes.where.column_types import label_type
from flushtracker.wal.changes import Change, Delete, Insert, Relation, Row, Update

LabelParsers: TypeAlias = Sequence[tuple[str, Callable[[str], object]]]
"""Columns with values of enums, each with what raises ``ValueError`` for a label that is not known."""


def label_parsers(relation: Relation, columns: Collection[str]) -> LabelParsers:
    """The parsers of those of ``columns`` that have enums."""
    types = [
        (column.name, label_type(column.user_type))
        for column in relation.columns
        if column.name in columns and column.user_type is not None
    ]
    return tuple((name, found.parse) for name, found in types if found is not None)


def unknown_label(parsers: LabelParsers, change: Change) -> str | None:
    """The first column that has a label that its type does not have; ``None`` if all are known."""
    for row in _rows(change) if parsers else ():
        for name, parse in parsers:
            text = row.get(name)
            if text is None:
                continue
            try:
                parse(text)
            except ValueError:
                return name
    return None


def _rows(change: Change) -> tuple[Row, ...]:
    match change:
        case Insert():
            return (change.new,)
        case Delete():
            return (change.old,)
        case Update():
            return (change.new,) if change.old is None else (change.old, change.new)
    return ()
