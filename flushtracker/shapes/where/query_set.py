"""``QuerySet``: the result over time of the subquery in ``value IN (SELECT column ...)``, from the rows added.

As in SQL, the test of an empty result is false for every value, even NULL. Otherwise the outcome for NULL is unknown,
and for a value not in the result it is false, or unknown if the result has a NULL.

A time is the offset of a transaction; the set has that state after it. To evaluate at a single moment, add each row for
all times.
"""

from bisect import bisect_right
from collections import defaultdict
from typing import Final

from flushtracker.errors import DecodeError
from flushtracker.shapes.where.operands import Operand, Operands
from flushtracker.shapes.where.sql_values import SqlType, Value
from flushtracker.shapes.where.three_valued import Evaluate
from flushtracker.wal.changes import Relation, Row

Span = tuple[int, int]
"""From one time, inclusive, to another, exclusive."""

END: Final = 2**63 - 1

ALWAYS: Final[Span] = (0, END)


class _Any:
    """Stands for all values, NULL too; the class itself, which is the same one in a copy by pickle."""


class Clock:
    """The time at which a condition is evaluated. ``until`` is how long its outcome holds: no set that it used changes
    before.
    """

    __slots__ = ("now", "until")

    def __init__(self) -> None:
        self.now, self.until = ALWAYS


class QuerySet:
    """The values of one column of ``relation``, in the type that they are compared in, at the time of the condition's
    ``clock``.
    """

    def __init__(self, relation: Relation, column: str, clock: Clock) -> None:
        self._operands = Operands(relation)
        self.operand: Operand = self._operands.column(column)
        """The column, used to choose that type."""
        self._evaluate: Evaluate = self.operand.evaluate
        self._clock = clock
        self._always = set[object]()
        self._steps = defaultdict[object, list[Span]](list)
        """By other value: when a row with it is added, 1, or goes, -1."""
        self._turns = dict[object, list[int]]()
        """By such value: the times at which it alternately appears and disappears."""

    def compare_as(self, sql_type: SqlType) -> None:
        """Compare in this type: that of the value before IN, or the common type."""
        self._evaluate = self._operands.typed(self.operand, sql_type)

    @property
    def has_changes(self) -> bool:
        """Whether it may change over time."""
        return bool(self._turns)

    def add(self, row: Row, span: Span = ALWAYS) -> None:
        """Add a row that the query returns; raises ``DecodeError`` if its column is absent, or not of its type."""
        try:
            value = self._evaluate([read(row) for read in self._operands.readers])
        except ArithmeticError as error:
            # The cause is dropped because it could quote a value.
            raise DecodeError(
                f"{self._operands.table}: {self.operand} of a row cannot be compared because of {error}, which is an "
                "error in PostgreSQL too; exclude such rows by the condition of the subquery"
            ) from None
        if span == ALWAYS:
            self._always.add(value)
        else:
            self._steps[value] += [(span[0], 1), (span[1], -1)]

    def settle(self) -> None:
        """Call this once all rows are added."""
        for value, steps in self._steps.items():
            self._count(value, steps)
        if self._always:
            self._always.add(_Any)
        else:
            self._count(_Any, [step for steps in self._steps.values() for step in steps])
        self._steps.clear()

    def _count(self, value: object, steps: list[Span]) -> None:
        turns = _turns(steps)
        if turns == [ALWAYS[0]]:
            self._always.add(value)
        elif turns and value not in self._always:
            self._turns[value] = turns

    def contains(self, value: Value) -> bool | None:
        """The outcome of ``value IN (the query)`` at the clock's time."""
        if value is None:
            return None if self._has(_Any) else False
        if self._has(value):
            return True
        return None if self._has(None) else False

    def _has(self, value: object) -> bool:
        if value in self._always:
            return True
        turns = self._turns.get(value)
        if turns is None:
            return False
        passed = bisect_right(turns, self._clock.now)
        if passed < len(turns):
            self._clock.until = min(self._clock.until, turns[passed])
        return passed % 2 == 1


def _turns(steps: list[Span]) -> list[int]:
    """The times at which the first row appears and the last one disappears, alternately.

    >>> _turns([(0, 1), (16, -1), (16, 1), (40, -1), (8, 1), (24, -1), (64, 1)])
    [0, 40, 64]
    """
    changes = defaultdict[int, int](int)
    for time, change in steps:
        changes[time] += change
    turns, count = list[int](), 0
    for time in sorted(changes):
        before, count = count, count + changes[time]
        if bool(before) != bool(count):
            turns.append(time)
    return turns
