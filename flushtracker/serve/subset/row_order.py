"""``RowOrder``: the order of a subset's rows, as PostgreSQL's ORDER BY; ties are in the order of their keys.

So pages with ``limit`` and ``offset`` of the same rows do not overlap. A type whose order is not known here is refused.
Text is ordered by bytes, the one collation that is known here. That is right if the column has it, as capture has
found, if the request has ``COLLATE "C"``, or if it is configured. Otherwise text is refused, unless the order does not
decide which rows there are.
"""

import re
from collections.abc import Callable, Container
from dataclasses import dataclass
from heapq import merge
from itertools import islice
from typing import Any, Final, NamedTuple

from flushtracker.errors import DecodeError
from flushtracker.serve.refusals import BadRequestError
from flushtracker.serve.sql_names import NAME, catalog_name
from flushtracker.shapes.where.column_types import type_description, type_of
from flushtracker.shapes.where.sql_values import TEXTS
from flushtracker.wal.changes import Column, Relation, Row

_TERM: Final = re.compile(
    rf'\s*(?:{NAME})(?P<binary>\s+COLLATE\s+(?-i:"C"))?(?:\s+(?P<way>ASC|DESC))?(?:\s+NULLS\s+(?P<nulls>FIRST|LAST))?\s*(,|$)',
    re.IGNORECASE,
)
_MOST_TERMS: Final = 32
_STEP_ROWS: Final = 4_000
_UNORDERED: Final = ("array",)


class OrderedRow(NamedTuple):
    """A row with the values that it is ordered by; ``None`` for NULL."""

    key: str
    text: str
    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class _Term:
    name: str
    parse: Callable[[str], Any]
    is_descending: bool
    has_nulls_first: bool


@dataclass(frozen=True, slots=True)
class RowOrder:
    terms: tuple[_Term, ...] = ()

    @classmethod
    def of(cls, text: str | None, relation: Relation | None, *, by_bytes: Container[str]) -> "RowOrder":
        """The order ``text`` says, of rows of ``relation``, ``None`` if that is not known.

        ``by_bytes``: the columns whose texts are in the order of their bytes also without COLLATE "C".

        Raises:
            BadRequestError: it is not an order of columns, or PostgreSQL's order of one is not known.
        """
        if text is None:
            return cls()
        if relation is None:
            raise BadRequestError("subset__order_by needs the types of the columns, which are not known here")
        columns = {column.name: column for column in relation.columns}
        terms, count, end = list[_Term](), 0, 0
        while end < len(text) or not count:
            found = _TERM.match(text, end)
            if found is None or (found[6] and found.end() == len(text)) or count == _MOST_TERMS:
                raise BadRequestError(
                    f"subset__order_by is not a list of up to {_MOST_TERMS} columns, each with ASC or DESC and NULLS "
                    "FIRST or LAST; expressions are not supported"
                )
            term = _term(found, columns, by_bytes)
            if all(term.name != each.name for each in terms):
                # Rows that differ nowhere before have the same value of a column that is repeated.
                terms.append(term)
            count, end = count + 1, found.end()
        return cls(tuple(terms))

    def row(self, key: str, text: str, row: Row) -> OrderedRow:
        """A row to be sorted; raises ``DecodeError`` if a value is not of its column's type."""
        return OrderedRow(key, text, tuple(_value(term, row) for term in self.terms))

    def sort(self, rows: list[OrderedRow], check: Callable[[], None] = lambda: None) -> list[OrderedRow]:
        found = _sorted(rows, _key, check)
        for number, term in reversed(list(enumerate(self.terms))):
            present = [row for row in found if row.values[number] is not None]
            nulls = [row for row in found if row.values[number] is None]
            # A sort that is reversed keeps equal rows in their order.
            present = _sorted(present, _value_at(number), check, reverse=term.is_descending)
            found = nulls + present if term.has_nulls_first else present + nulls
        return found


def _term(found: re.Match[str], columns: dict[str, Column], by_bytes: Container[str]) -> _Term:
    name, is_descending = catalog_name(found[1], found[2]), (found["way"] or "").upper() == "DESC"
    if name not in columns:
        raise BadRequestError(f'subset__order_by names column "{name}", which the shape does not show')
    column, nulls = columns[name], (found["nulls"] or "").upper()
    sql_type = type_of(column)
    if sql_type is None or sql_type.family in _UNORDERED:
        what = type_description(column) if sql_type is None else sql_type.name
        raise BadRequestError(f'subset__order_by names column "{name}" ({what}), whose order is not known here')
    is_text, is_binary = sql_type.family in TEXTS, found["binary"] is not None
    if is_binary and not is_text:
        raise BadRequestError(f'subset__order_by has COLLATE for column "{name}" ({sql_type.name}), which has none')
    if is_text and not (is_binary or name in by_bytes):
        raise BadRequestError(
            f'subset__order_by names column "{name}" ({sql_type.name}), whose collation may have another order '
            'than that of bytes; with limit or offset, write COLLATE "C" after it for the order of bytes, order by '
            "another column, give the column that collation by ALTER TABLE, or let the operator set subsets.text_order"
        )
    # PostgreSQL takes NULL for greater than all else.
    return _Term(name, sql_type.parse, is_descending, nulls == "FIRST" if nulls else is_descending)


def _sorted(
    rows: list[OrderedRow], key: Callable[[OrderedRow], Any], check: Callable[[], None], *, reverse: bool = False
) -> list[OrderedRow]:
    """The rows in the order of a key. No other thread runs while a list is sorted, so parts of it are, and merged."""
    parts = list[list[OrderedRow]]()
    for start in range(0, len(rows), _STEP_ROWS):
        check()
        parts.append(sorted(rows[start : start + _STEP_ROWS], key=key, reverse=reverse))
    merged, found = merge(*parts, key=key, reverse=reverse), list[OrderedRow]()
    while step := [*islice(merged, _STEP_ROWS)]:
        check()
        found += step
    return found


def _key(row: OrderedRow) -> str:
    return row.key


def _value_at(number: int) -> Callable[[OrderedRow], Any]:
    return lambda row: row.values[number]


def _value(term: _Term, row: Row) -> Any:
    try:
        text = row[term.name]
        return None if text is None else term.parse(text)
    except KeyError:
        raise DecodeError(f"a row lacks the value of column {term.name}") from None
    except ValueError:
        # The cause is dropped because it could quote the value.
        raise DecodeError(f"column {term.name} has a value that is not of its type") from None
