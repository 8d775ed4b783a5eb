"""``split_condition``: divides a condition with subqueries into conditions of one table each.

The *rest* of a condition is the condition without its subqueries: each ``value [NOT] IN (SELECT ...)`` is replaced
by TRUE, or by FALSE under an odd number of NOTs. AND and OR are monotone in the order false, unknown, true, and NOT
reverses it; nothing else may contain a subquery. So if the condition is true for a row, so is the rest, whatever the
subqueries return: the rest selects all rows that may be in the shape at any time. It reads no column that only a
subquery compares, so old rows need none of these.

The texts are cut out of the condition's text. The trees of the parts are compared with that of the whole, so a wrong
cut is refused, not misread.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from flushtracker.errors import ShapeError
from flushtracker.shapes.where import sql_values
from flushtracker.shapes.where.case_mappings import CaseMappings, case_mappings
from flushtracker.shapes.where.server_encoding import within
from flushtracker.shapes.where.syntax import parse, read_condition
from flushtracker.shapes.where.tokens import QUERY_FORM, refused
from flushtracker.shapes.where.tree import Constant, InQuery, Junction, Node, Not, Query
from flushtracker.wal.changes import TableName

_TRUE: Final = Constant("t", sql_values.BOOLEAN)
_FALSE: Final = Constant("f", sql_values.BOOLEAN)


@dataclass(frozen=True, slots=True)
class QueryText:
    """A subquery; its ``condition`` may have subqueries itself, and is ``None`` for all rows."""

    table: TableName
    column: str
    condition: str | None


@dataclass(frozen=True, slots=True)
class SplitCondition:
    """``rest`` is ``None`` if it is true for every row.

    ``columns`` are those that the whole condition reads of its own table, and ``mapped`` those whose case it maps.
    """

    rest: str | None
    columns: frozenset[str]
    mapped: CaseMappings
    queries: tuple[QueryText, ...]


def has_subquery(text: str) -> bool:
    """Whether a condition may have a subquery; only ``False`` is certain."""
    return "select" in text.lower()


@lru_cache(maxsize=10_000)
def split_condition(text: str) -> SplitCondition:
    """The parts of a condition; raises ``ShapeError``.

    >>> found = split_condition("a > 1 AND b NOT IN (SELECT id FROM public.t WHERE c = 2)")
    >>> found.rest, sorted(found.columns)
    ('a > 1 AND TRUE', ['a', 'b'])
    >>> found.queries
    (QueryText(table=('public', 't'), column='id', condition=' c = 2'),)
    """
    parsed = parse(text)
    condition, columns, spans = parsed.condition, parsed.columns, parsed.queries
    found = list(_queries(condition, is_positive=True))
    if not found:
        return SplitCondition(text, columns, case_mappings(condition), ())
    if len(spans) != len(found):
        raise _ambiguous()
    rest, queries = text, []
    for span, (query, _) in zip(spans, found, strict=True):
        inner = None if span.condition is None else text[slice(*span.condition)]
        if query.condition != (None if inner is None else read_condition(inner)[0]):
            raise _ambiguous()
        queries.append(QueryText(query.table, query.column, inner))
    for span, (_, is_positive) in reversed(list(zip(spans, found, strict=True))):
        # A value that is not in the query is true where IN is false.
        value = "TRUE" if is_positive != span.is_negated else "FALSE"
        rest = f"{rest[: span.start]}{value}{rest[span.end :]}"
    left = _folded(read_condition(rest)[0])
    if left != _folded(condition):
        raise _ambiguous()
    return SplitCondition(None if left == _TRUE else rest, columns, case_mappings(condition), tuple(queries))


def _queries(node: Node, *, is_positive: bool) -> Iterator[tuple[Query, bool]]:
    """The subqueries in text order, each with whether it is under an even number of NOTs."""
    match node:
        case InQuery(operand, query):
            _require_none(operand)
            yield query, is_positive
        case Not(operand):
            yield from _queries(operand, is_positive=not is_positive)
        case Junction(_, parts):
            for part in parts:
                yield from _queries(part, is_positive=is_positive)
        case _:
            _require_none(node)


def _require_none(node: Node) -> None:
    if any(isinstance(each, InQuery) for each in within(node)):
        raise refused("IN with a subquery inside another test than AND, OR and NOT", "compare it with nothing")


def _folded(node: Node, *, is_positive: bool = True) -> Node:
    """The rest of a condition, without redundant constants."""
    match node:
        case InQuery():
            return _TRUE if is_positive else _FALSE
        case Not(operand):
            inner = _folded(operand, is_positive=not is_positive)
            if inner in (_TRUE, _FALSE):
                return _FALSE if inner == _TRUE else _TRUE
            return Not(inner)
        case Junction(operator, parts):
            neutral, decisive = (_TRUE, _FALSE) if operator == "AND" else (_FALSE, _TRUE)
            folded = [_folded(part, is_positive=is_positive) for part in parts]
            left = tuple(part for part in folded if part != neutral)
            if decisive in left:
                return decisive
            return neutral if not left else left[0] if len(left) == 1 else Junction(operator, left)
        case _:
            return node


def _ambiguous() -> ShapeError:
    return refused("a subquery that cannot be told from the rest", QUERY_FORM)
