"""Arithmetic and concatenation: the type of the result, and how to compute it."""

from collections.abc import Sequence

from flushtracker.shapes.where import sql_values
from flushtracker.shapes.where.number_values import exact_arithmetic, negate
from flushtracker.shapes.where.operands import Operand, Operands
from flushtracker.shapes.where.sql_values import TYPES
from flushtracker.shapes.where.three_valued import combined, mapped


def negation(scope: Operands, operand: Operand) -> Operand:
    if operand.type is None or operand.type.family not in ("exact", "float"):
        raise scope.refused(f"has - before {operand}", "only numbers can be negated")
    return Operand(operand.type, mapped(negate, scope.typed(operand, operand.type)), "an expression")


def arithmetic(scope: Operands, operator: str, operands: Sequence[Operand]) -> Operand:
    """A calculation with exact numbers; raises ``ArithmeticError`` in a row that divides by zero."""
    for operand in operands:
        if not operand.is_one_of("exact"):
            raise scope.refused(f"calculates {operator} with {operand}", "use integers and numeric, which are exact")
    if all(operand.type is None for operand in operands):
        raise scope.refused(f"calculates {operator} with quoted literals only", "write numbers unquoted")
    common = scope.common(operands, operator)
    left, right = (scope.typed(operand, common) for operand in operands)
    calculate = exact_arithmetic(operator, whole=common.oid != sql_values.NUMERIC)
    return Operand(common, combined(calculate, left, right), "an expression")


def text_cast(scope: Operands, operand: Operand) -> Operand:
    """The operand as text: an enum's label; ``character(n)`` loses its trailing blanks."""
    source, text = operand.type, TYPES[sql_values.TEXT]
    if source is None or source.family not in (*sql_values.TEXTS, "enum"):
        raise scope.refused(f"casts {operand} to text", "cast only enums and text to text")
    if source.family != "enum":
        return Operand(text, operand.evaluate, operand.label)
    return Operand(text, mapped(source.labels.__getitem__, operand.evaluate), f"{operand.label}::text")


def concatenation(scope: Operands, operands: Sequence[Operand]) -> Operand:
    """``||`` of texts; ``character(n)`` loses its trailing blanks, as where PostgreSQL converts it to text."""
    text = TYPES[sql_values.TEXT]
    for operand in operands:
        if not operand.is_one_of(*sql_values.TEXTS):
            raise scope.refused(f"concatenates {operand}", "use || with text")
    left, right = (scope.typed(operand, operand.type or text) for operand in operands)
    return Operand(text, combined(lambda first, second: first + second, left, right), "an expression")
