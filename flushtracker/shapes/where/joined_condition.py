"""``JoinedCondition``: a condition with subqueries, evaluated over the rows of all of its tables.

First the rows of all tables of subqueries are added, in any order, then :meth:`JoinedCondition.settle` is called, and
then rows are tested. In memory are the values that the subqueries return, and until they are settled the rows that a
subquery with a subquery of its own is to judge.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from flushtracker.errors import ShapeError
from flushtracker.shapes.where.binding import bind
from flushtracker.shapes.where.query_set import QuerySet
from flushtracker.shapes.where.tree import Node, Query
from flushtracker.wal.changes import Relation, Row, TableName


@dataclass(slots=True, eq=False)
class _BoundQuery:
    """A subquery. ``waits``: whether its condition has subqueries; then its rows are judged once these are settled."""

    values: QuerySet
    matches: Callable[[Row], bool | None] | None
    waits: bool
    rows: list[Row] = field(default_factory=list)

    def judge(self, row: Row) -> None:
        if self.matches is None or self.matches(row) is True:
            self.values.add(row)


class JoinedCondition:
    """Raises ``ShapeError`` for a table that is not among ``relations``, and where one of them does not fit."""

    def __init__(self, condition: Node, table: TableName, relations: Mapping[TableName, Relation]) -> None:
        self._relations = relations
        self._by_table = defaultdict[TableName, list[_BoundQuery]](list)
        self._queries: list[_BoundQuery] = []
        """Each after those in its own condition."""
        self._matches = bind(condition, self._relation(table), self._set_of)

    def _relation(self, table: TableName) -> Relation:
        if table not in self._relations:
            raise ShapeError(f"where reads table {'.'.join(table)}, whose columns are not known")
        return self._relations[table]

    def _set_of(self, query: Query) -> QuerySet:
        relation, before = self._relation(query.table), len(self._queries)
        values = QuerySet(relation, query.column)
        matches = None if query.condition is None else bind(query.condition, relation, self._set_of)
        bound = _BoundQuery(values, matches, waits=len(self._queries) > before)
        self._queries.append(bound)
        self._by_table[query.table].append(bound)
        return values

    @property
    def inner_tables(self) -> frozenset[TableName]:
        """The tables of its subqueries."""
        return frozenset(self._by_table)

    def add(self, table: TableName, row: Row) -> None:
        """Add a row of a table of subqueries; raises ``DecodeError`` if it has no outcome."""
        for query in self._by_table[table]:
            if query.waits:
                query.rows.append(row)
            else:
                query.judge(row)

    def settle(self) -> None:
        """All rows were added; raises as :meth:`add`."""
        for query in self._queries:
            for row in query.rows:
                query.judge(row)
            query.rows.clear()

    def matches(self, row: Row) -> bool:
        """Whether a row of the condition's own table is one for which it is true; raises as :meth:`add`."""
        return self._matches(row) is True
