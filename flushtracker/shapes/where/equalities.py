"""Reads ``column = literal AND column = literal …`` twenty times as fast as the parser: there may be a million of them.

The parser still determines the meaning. It parses each *form*, the condition with placeholder literals, once; the
condition is the result with its own literals filled in.
"""

import re
from functools import lru_cache

from flushtracker.errors import ShapeError
from flushtracker.shapes.where import sql_values
from flushtracker.shapes.where.syntax import read_condition
from flushtracker.shapes.where.tree import ColumnRef, Comparison, Constant, Junction, Node

# Literals without quotes, signs, decimal points or exponents: all of one kind are parsed alike.
_EQUALITY = re.compile(r"(?P<left>\w+ = )(?:(?P<number>[0-9]{1,18})|'(?P<string>[^']*)')", re.ASCII)


def read_equalities(text: str) -> tuple[Node, frozenset[str], str] | None:
    """What :func:`~.syntax.read_condition` returns, plus the form; ``None`` for any other condition."""
    found = []
    for part in text.split(" AND "):
        equality = _EQUALITY.fullmatch(part)
        if equality is None:
            return None
        found.append(equality)
    form = " AND ".join([each["left"] + ("0" if each["number"] else "''") for each in found])
    read = _read_form(form)
    if read is None:
        return None
    column_refs, columns = read
    parts = []
    for column_ref, equality in zip(column_refs, found, strict=True):
        number, string = equality["number"], equality["string"]
        constant = Constant(number, sql_values.number_type(number).oid) if number else Constant(string)
        parts.append(Comparison("=", column_ref, constant, "="))
    return parts[0] if len(parts) == 1 else Junction("AND", tuple(parts)), columns, form


@lru_cache(maxsize=1000)
def _read_form(form: str) -> tuple[list[ColumnRef], frozenset[str]] | None:
    """The columns compared, in order and as a set; ``None`` if the form parses as something else, or is refused."""
    try:
        condition, columns = read_condition(form)
    except ShapeError:
        return None
    column_refs = []
    for part in condition.parts if isinstance(condition, Junction) else [condition]:
        match part:
            case Comparison("=", ColumnRef() as column_ref, Constant()):
                column_refs.append(column_ref)
            case _:
                return None
    return column_refs, columns
