"""Operators: the type of their result, and how to compute it. Arithmetic, concatenation, and tests of arrays.

In array tests only the items count, not the bounds and dimensions.
"""

from collections.abc import Sequence
from dataclasses import replace

from flushtracker.shapes.where import sql_values
from flushtracker.shapes.where.number_values import exact_arithmetic, negate
from flushtracker.shapes.where.operands import Operand, Operands
from flushtracker.shapes.where.sql_values import TYPES, array_type, common_type
from flushtracker.shapes.where.three_valued import Condition, Evaluate, Values, mapped, member, unless_null


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
    return Operand(common, unless_null(calculate, left, right), "an expression")


def text_cast(scope: Operands, operand: Operand) -> Operand:
    """The operand as text: an enum's label; ``character(n)`` loses its trailing blanks."""
    source, text = operand.type, TYPES[sql_values.TEXT]
    if source is None or source.family not in (*sql_values.TEXTS, "enum"):
        raise scope.refused(f"casts {operand} to text", "cast only enums and text to text")
    if source.family != "enum":
        return Operand(text, operand.evaluate, operand.label)
    return Operand(text, mapped(source.labels.__getitem__, operand.evaluate), f"{operand.label}::text")


def concatenation(scope: Operands, operands: Sequence[Operand]) -> Operand:
    """``||`` of texts; ``character(n)`` loses its trailing blanks, as in PostgreSQL's conversion to text."""
    text = TYPES[sql_values.TEXT]
    for operand in operands:
        if not operand.is_one_of(*sql_values.TEXTS):
            raise scope.refused(f"concatenates {operand}", "use || with text")
    left, right = (scope.typed(operand, operand.type or text) for operand in operands)
    return Operand(text, unless_null(lambda first, second: first + second, left, right), "an expression")


def any_of(scope: Operands, operand: Operand, array: Operand) -> Condition:
    """``operand = ANY(array)``: unknown if the array lacks the value and has a NULL.

    An untyped literal is an array of the operand's type; there are no arrays of arrays.
    """
    if array.type is None and operand.type is not None and operand.type.item is None:
        array = replace(array, type=array_type(0, operand.type))
    if array.type is None or array.type.item is None:
        raise scope.refused(f"uses ANY(...) of {array}", "use it with an array, as in: color = ANY('{red}')")
    item_type = array.type.item
    common = common_type(operand.type or item_type, item_type)
    # An item would have to be converted if it were compared in a type of another family.
    if common is None or common.family != item_type.family:
        raise scope.refused(
            f"has {operand} = ANY of {array}, whose types are incompatible", "write a value of the items' type"
        )
    value, items = scope.typed(operand, common), scope.typed(array, array.type)
    if array.constant is not None and (literal := scope.literal(array, array.type)) is not None and literal.items:
        return member(value, literal.items)

    def is_any(values: Values) -> bool | None:
        wanted, found = value(values), items(values)
        if found is None or (wanted is None and found.items):
            return None
        return wanted in found.items or (None if None in found.items else False)

    return is_any


def contains(scope: Operands, left: Operand, right: Operand) -> Condition:
    """``left @> right``: each item of ``right`` is one of ``left``; a NULL is never found."""
    first, second = _arrays(scope, left, "@>", right)

    def contained(values: Values) -> bool | None:
        outer, inner = first(values), second(values)
        if outer is None or inner is None:
            return None
        return None not in inner.items and frozenset(inner.items) <= frozenset(outer.items)

    return contained


def overlap(scope: Operands, left: Operand, right: Operand) -> Condition:
    """``left && right``: they have an item in common, other than NULL."""
    first, second = _arrays(scope, left, "&&", right)

    def overlaps(values: Values) -> bool | None:
        one, other = first(values), second(values)
        if one is None or other is None:
            return None
        return not (frozenset(one.items) & frozenset(other.items)) <= {None}

    return overlaps


def _arrays(scope: Operands, left: Operand, operator: str, right: Operand) -> tuple[Evaluate, Evaluate]:
    for operand in (left, right):
        if not operand.is_one_of("array"):
            raise scope.refused(f"has {operand} as an operand of {operator}", "use it with arrays")
    if left.type is None and right.type is None:
        raise scope.refused(f"uses {operator} with literals only", "compare an array column with a literal")
    common = scope.common([left, right], operator)
    return scope.typed(left, common), scope.typed(right, common)
