"""``QuerySet``: what the subquery of ``value IN (SELECT column ...)`` returns, as far as its rows were added.

As in SQL: of a query without rows the test is false for every value, NULL too. Otherwise NULL is unknown, and a value
that is not in the query is false, or unknown if the query returns a NULL.
"""

from flushtracker.errors import DecodeError
from flushtracker.shapes.where.operands import Operand, Operands
from flushtracker.shapes.where.sql_values import SqlType, Value
from flushtracker.shapes.where.three_valued import Evaluate
from flushtracker.wal.changes import Relation, Row


class QuerySet:
    """The values of one column of ``relation``, in the type that they are compared in."""

    def __init__(self, relation: Relation, column: str) -> None:
        self._operands = Operands(relation)
        self.operand: Operand = self._operands.column(column)
        """The column, for the choice of that type."""
        self._evaluate: Evaluate = self.operand.evaluate
        self._values = set[Value]()
        self._has_null = False

    def compare_as(self, sql_type: SqlType) -> None:
        """Compare in this type, which is that of the value before IN, or one of both."""
        self._evaluate = self._operands.typed(self.operand, sql_type)

    def __len__(self) -> int:
        return len(self._values) + self._has_null

    def add(self, row: Row) -> None:
        """Add a row that the query returns; raises ``DecodeError`` if its column is absent, or not of its type."""
        try:
            value = self._evaluate([read(row) for read in self._operands.readers])
        except ArithmeticError as error:
            # The cause is dropped because it could quote a value.
            raise DecodeError(
                f"{self._operands.table}: {self.operand} of a row cannot be compared because of {error}, which is an "
                "error in PostgreSQL too; exclude such rows by the condition of the subquery"
            ) from None
        if value is None:
            self._has_null = True
        else:
            self._values.add(value)

    def contains(self, value: Value) -> bool | None:
        """Whether ``value IN (the query)``."""
        if value is None:
            return None if self._values or self._has_null else False
        return True if value in self._values else None if self._has_null else False
