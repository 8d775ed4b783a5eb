"""SQL's logic of true, false and unknown (``None``), as functions over the values of a row.

Every function here returns a function, so that a condition is compiled once, not for each row.
"""

import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from flushtracker.shapes.where.sql_values import Value

Values: TypeAlias = Sequence[Value]
"""The values of all columns that a condition reads, parsed once for a row; ``None`` is NULL."""
Evaluate: TypeAlias = Callable[[Values], Value]
Condition: TypeAlias = Callable[[Values], bool | None]

COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def constantly(value: Value) -> Evaluate:
    return lambda _values: value


def junction(conditions: Sequence[Condition], *, decisive: bool) -> Condition:
    """OR if ``decisive`` is true, AND if it is false: one part with that value decides the outcome."""

    def joined(values: Values) -> bool | None:
        outcome: bool | None = not decisive
        for condition in conditions:
            part = condition(values)
            if part is decisive:
                return decisive
            if part is None:
                outcome = None
        return outcome

    return joined


def negated(condition: Condition) -> Condition:
    def opposite(values: Values) -> bool | None:
        outcome = condition(values)
        return None if outcome is None else not outcome

    return opposite


def is_truth(condition: Condition, truth: bool | None) -> Condition:  # noqa: FBT001 - one of three outcomes, not a flag
    return lambda values: condition(values) is truth


def compared(operator_text: str, left: Evaluate, right: Evaluate) -> Condition:
    compare = COMPARISONS[operator_text]

    def comparison(values: Values) -> bool | None:
        first, second = left(values), right(values)
        return None if first is None or second is None else compare(first, second)

    return comparison


def distinct(left: Evaluate, right: Evaluate) -> Condition:
    """IS DISTINCT FROM: two NULLs are equal, and NULL differs from every value, so the outcome is never unknown."""

    def is_distinct(values: Values) -> bool:
        first, second = left(values), right(values)
        if first is None or second is None:
            return first is not second
        return bool(first != second)

    return is_distinct


def member(item: Evaluate, constants: Sequence[Value]) -> Condition:
    """IN a list: if the list contains NULL, the outcome for a value that is not in it is unknown."""
    members = frozenset(constant for constant in constants if constant is not None)
    otherwise = None if any(constant is None for constant in constants) else False

    def is_member(values: Values) -> bool | None:
        value = item(values)
        return None if value is None else value in members or otherwise

    return is_member


def mapped(function: Callable[[Value], Value], operand: Evaluate) -> Evaluate:
    """Apply ``function``; NULL stays NULL."""

    def evaluate(values: Values) -> Value:
        value = operand(values)
        return None if value is None else function(value)

    return evaluate


def unless_null(function: Callable[[Value, Value], Value], left: Evaluate, right: Evaluate) -> Evaluate:
    """Apply ``function`` to two values; NULL if either is NULL."""

    def evaluate(values: Values) -> Value:
        first, second = left(values), right(values)
        return None if first is None or second is None else function(first, second)

    return evaluate
