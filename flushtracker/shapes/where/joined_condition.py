"""``JoinedCondition``: a condition with subqueries, evaluated over the rows of all of its tables.

First the rows of all tables of subqueries are added, in any order, then :meth:`JoinedCondition.settle` is called, and
then rows are tested. The values that the subqueries return are kept in memory, and until they are settled also the rows
of subqueries that have subqueries themselves.

A row may be added for a span of time (:mod:`~flushtracker.shapes.where.query_set`). :meth:`JoinedCondition.outcomes`
then gives the condition's outcome for a row over time. It is evaluated only where a set that it uses has changed.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from flushtracker.errors import ShapeError
from flushtracker.shapes.where.binding import bind
from flushtracker.shapes.where.query_set import ALWAYS, Clock, QuerySet, Span
from flushtracker.shapes.where.tree import Node, Query
from flushtracker.wal.changes import Relation, Row, TableName


@dataclass(slots=True, eq=False)
class _BoundQuery:
    """A subquery. If its condition has subqueries, it ``waits``: its rows are tested once these are settled."""

    values: QuerySet
    matches: Callable[[Row], bool | None] | None
    waits: bool
    rows: list[tuple[Row, Span]] = field(default_factory=list)


class JoinedCondition:
    """Raises ``ShapeError`` for a table that is not among ``relations``, and where one of them does not fit."""

    def __init__(self, condition: Node, table: TableName, relations: Mapping[TableName, Relation]) -> None:
        self._relations = relations
        self._clock = Clock()
        self._by_table = defaultdict[TableName, list[_BoundQuery]](list)
        self._queries: list[_BoundQuery] = []
        """In dependency order: each after the subqueries in its own condition."""
        self._matches = bind(condition, self._relation(table), self._set_of)

    def _relation(self, table: TableName) -> Relation:
        if table not in self._relations:
            raise ShapeError(f"where reads table {'.'.join(table)}, whose columns are not known")
        return self._relations[table]

    def _set_of(self, query: Query) -> QuerySet:
        relation, before = self._relation(query.table), len(self._queries)
        values = QuerySet(relation, query.column, self._clock)
        matches = None if query.condition is None else bind(query.condition, relation, self._set_of)
        bound = _BoundQuery(values, matches, waits=len(self._queries) > before)
        self._queries.append(bound)
        self._by_table[query.table].append(bound)
        return values

    @property
    def inner_tables(self) -> frozenset[TableName]:
        return frozenset(self._by_table)

    @property
    def has_changes(self) -> bool:
        """Whether the results of its subqueries may change over time."""
        return any(query.values.has_changes for query in self._queries)

    def add(self, table: TableName, row: Row, span: Span = ALWAYS) -> None:
        """Add a row of a subquery's table for a span of time; raises ``DecodeError`` if a condition has no outcome for
        it.
        """
        for query in self._by_table[table]:
            if query.waits:
                query.rows.append((row, span))
            elif query.matches is None or query.matches(row) is True:
                query.values.add(row, span)

    def settle(self) -> None:
        """Call this once all rows are added; raises as :meth:`add`."""
        for query in self._queries:
            for row, span in query.rows:
                for since, until, is_true in self._outcomes(query.matches, row, span):
                    if is_true:
                        query.values.add(row, (since, until))
            query.rows.clear()
            query.values.settle()

    def matches(self, row: Row) -> bool:
        """Whether the condition is true for a row of its own table; raises as :meth:`add`."""
        return self._matches(row) is True

    def outcomes(self, row: Row, span: Span = ALWAYS) -> Iterator[tuple[int, int, bool]]:
        """The same over a span of time, as consecutive parts of it; raises as :meth:`add`."""
        return self._outcomes(self._matches, row, span)

    def _outcomes(
        self, matches: Callable[[Row], bool | None] | None, row: Row, span: Span
    ) -> Iterator[tuple[int, int, bool]]:
        now, end = span
        while now < end:
            self._clock.now, self._clock.until = now, end
            is_true = matches is None or matches(row) is True
            until = self._clock.until
            yield now, until, is_true
            now = until
        self._clock.now, self._clock.until = ALWAYS
