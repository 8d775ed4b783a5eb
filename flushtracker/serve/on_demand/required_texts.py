"""``required_texts``: the texts that columns must have for a condition to be true.

Changed rows without such a text do not concern a definition, and need no evaluation: of a thousand definitions by a
key, all but a few are done at once. Only columns whose equal values have one text count: integers and texts, but not
``char(n)``, whose trailing blanks do not count, nor ``numeric`` with its zeros.
"""

from collections.abc import Mapping
from typing import Final

from flushtracker.shapes.where.canonical import Form
from flushtracker.shapes.where.column_types import type_of
from flushtracker.shapes.where.sql_values import INT2, INT4, INT8, SqlType
from flushtracker.wal.changes import Relation

_INTEGERS: Final = (INT2, INT4, INT8)
_MOST_DIGITS: Final = 20
"""More than a column of these has."""

Required = tuple[tuple[str, str], ...]
"""Columns, each with its text."""


def required_texts(form: Form | None, relation: Relation) -> Required:
    """By the canonical form of a condition: of each part, as joined by AND, that compares a column with a literal."""
    if form is None:
        return ()
    types = {repr(column.name): (column.name, type_of(column)) for column in relation.columns}
    parts = form[1:] if form[0] == "AND" else (form,)
    return tuple(found for part in parts if (found := _required(part, types)) is not None)


def _required(part: Form, types: Mapping[str, tuple[str, SqlType | None]]) -> tuple[str, str] | None:
    match part:
        case ("compare", "=", ("ColumnRef", str(name)), ("text", str(text))):
            column, sql_type = types.get(name, ("", None))
            return (column, text) if sql_type is not None and sql_type.family == "text" else None
        case ("compare", "=", ("ColumnRef", str(name)), ("value", "exact", (int(sign), str(digits), int(exponent)))):
            column, sql_type = types.get(name, ("", None))
            if sql_type is None or sql_type.oid not in _INTEGERS or not 0 <= exponent < _MOST_DIGITS:
                return None
            return column, str(int(f"{'-' if sign else ''}{digits or 0}{'0' * exponent}"))
    return None
