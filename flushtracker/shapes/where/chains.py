"""Reads ``column = literal AND column BETWEEN literal AND literal …`` twenty times as fast as the parser.

There may be a million such conditions. The parser still determines the meaning: it parses each *form*, the condition
with placeholder literals, once, and the condition is the result with its own literals filled in.
"""

import re
from functools import lru_cache
from typing import Final, TypeAlias

from flushtracker.errors import ShapeError
from flushtracker.shapes.where import sql_values
from flushtracker.shapes.where.like_pattern import LikePattern
from flushtracker.shapes.where.syntax import read_condition
from flushtracker.shapes.where.tree import ColumnRef, Comparison, Constant, Junction, Like, Node

# Literals without quotes, signs, decimal points or exponents, so that all of one kind are parsed alike. A pattern has
# one wildcard, at its end.
_LINK = re.compile(
    r"(?P<column>\w+) (?:"
    r"(?P<operator>=|<=?|>=?) (?P<literal>[0-9]{1,18}|'[^'\0\ud800-\udfff]*')"
    r"|BETWEEN (?P<low>[0-9]{1,18}|'[^'\0\ud800-\udfff]*') AND (?P<high>[0-9]{1,18}|'[^'\0\ud800-\udfff]*')"
    r"|LIKE '(?P<pattern>[^'%_\\\0\ud800-\udfff]*%)'"
    r")(?P<more> AND )?",
    re.ASCII,
)
_LONGEST_FORM: Final = 1_000
"""Longer conditions are left to the parser: HTTP clients can send any, and forms are cached."""
_Link: TypeAlias = tuple[str | None, ...]
"""The groups of a match."""


def read_chain(text: str) -> tuple[Node, frozenset[str], str] | None:
    """What :func:`~.syntax.read_condition` returns, plus the form; ``None`` for any other condition."""
    links = _links(text)
    if links is None:
        return None
    form = " AND ".join([_form_of(link) for link in links])
    read = _read_form(form) if len(form) <= _LONGEST_FORM else None
    if read is None:
        return None
    column_refs, columns = read
    return _condition(column_refs, links), columns, form


def _links(text: str) -> list[_Link] | None:
    links, end = [], 0
    while (match := _LINK.match(text, end)) is not None:
        link = match.groups()
        links.append(link)
        end = match.end()
        if link[-1] is None:
            return links if end == len(text) else None
    return None


def _form_of(link: _Link) -> str:
    column, operator, literal, low, high, _pattern, _more = link
    if literal is not None:
        return f"{column} {operator} {_placeholder(literal)}"
    if low is not None and high is not None:
        return f"{column} BETWEEN {_placeholder(low)} AND {_placeholder(high)}"
    return f"{column} LIKE '%'"


def _placeholder(literal: str) -> str:
    return "''" if literal[0] == "'" else "0"


@lru_cache(maxsize=1000)
def _read_form(form: str) -> tuple[list[ColumnRef], frozenset[str]] | None:
    """The columns tested, in order and as a set; ``None`` if the form parses as something else, or is refused."""
    links = _links(form)
    try:
        condition, columns = read_condition(form)
    except ShapeError:
        return None
    if links is None:
        return None
    parts = condition.parts if len(links) > 1 and isinstance(condition, Junction) else (condition,)
    column_refs = [column_ref for part in parts if (column_ref := _column_of(part)) is not None]
    if len(column_refs) != len(links) or _condition(column_refs, links) != condition:
        return None
    return column_refs, columns


def _column_of(part: Node) -> ColumnRef | None:
    match part:
        case Comparison(_, ColumnRef() as column_ref) | Like(ColumnRef() as column_ref):
            return column_ref
        case Junction("AND", (Comparison(_, ColumnRef() as column_ref), _)):
            return column_ref
    return None


def _condition(column_refs: list[ColumnRef], links: list[_Link]) -> Node:
    parts = [_part(column_ref, link) for column_ref, link in zip(column_refs, links, strict=True)]
    return parts[0] if len(parts) == 1 else Junction("AND", tuple(parts))


def _part(column_ref: ColumnRef, link: _Link) -> Node:
    _column, operator, literal, low, high, pattern, _more = link
    if operator is not None and literal is not None:
        return Comparison(operator, column_ref, _constant(literal), operator)
    if low is not None and high is not None:
        from_low = Comparison(">=", column_ref, _constant(low), "BETWEEN")
        return Junction("AND", (from_low, Comparison("<=", column_ref, _constant(high), "BETWEEN")))
    return Like(column_ref, LikePattern.parse(pattern or "%"), ignore_case=False)


def _constant(literal: str) -> Constant:
    if literal[0] == "'":
        return Constant(literal[1:-1])
    return Constant(literal, sql_values.number_type(literal).oid)
