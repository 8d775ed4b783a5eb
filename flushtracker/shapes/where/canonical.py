"""The canonical form of a condition: equal for two conditions only if they mean the same for every row.

The reverse does not hold: conditions that mean the same may have different forms. The form does not depend on spelling,
parentheses, the order of operands of AND, OR and IN, or the sides of a comparison. If the table is known, it does not
depend on how a literal is written either: ``id = 5`` and ``'05' = id`` are the same for an integer ``id``.

An IN list is an OR of comparisons only if the type that PostgreSQL chooses for the whole list compares as each of these
would. A list with a floating-point number, or a literal of another type, does not.

Every rewriting here holds in three-valued logic, for NULLs as well as for values.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from decimal import Decimal
from typing import Any, Final, TypeAlias, get_args

from flushtracker.shapes.where.column_types import type_of
from flushtracker.shapes.where.number_values import parse_short_numeric
from flushtracker.shapes.where.sql_values import NUMERIC, TYPES, SqlType
from flushtracker.shapes.where.tree import ColumnRef, Comparison, Constant, Junction, Membership, Node, Not
from flushtracker.wal.changes import Column, Relation

_MIRRORED: Final = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}
_NEGATED: Final = {"=": "<>", "<>": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
_BY_VALUE: Final = ("exact", "boolean", "uuid", "datetime", "instant", "time")
"""Families in which values are equal exactly if PostgreSQL considers their texts equal."""

Form: TypeAlias = tuple[Any, ...]

_Columns: TypeAlias = Mapping[str, Column]


def canonical(node: Node, relation: Relation | None = None) -> Form:
    """The form of a condition; ``relation`` has the types of the columns, if known.

    It costs about as much as parsing the condition: a literal is never written out, however large its exponent.
    """
    return _canonical(node, {} if relation is None else {column.name: column for column in relation.columns})


def _canonical(node: Node, columns: _Columns) -> Form:
    match node:
        case Junction(operator, parts):
            return _junction(operator, [_canonical(part, columns) for part in parts])
        case Membership(operand, items):
            return _membership(operand, items, columns)
        case Comparison(operator, left, right, _):
            return _comparison(operator, left, right, columns)
        case Not(operand):
            return _negation(_canonical(operand, columns))
        case _:
            return _plain(node, columns)


def _junction(operator: str, parts: Iterable[Form]) -> Form:
    found = set[Form]()
    for part in parts:
        found |= set(part[1:]) if part[0] == operator else {part}
    return (operator, *sorted(found, key=repr)) if len(found) > 1 else found.pop()


def _membership(operand: Node, items: Sequence[Node], columns: _Columns) -> Form:
    if len(items) == 1 or _is_compared_one_by_one(operand, items, columns):
        return _junction("OR", [_comparison("=", operand, item, columns) for item in items])
    forms = {_canonical(item, columns) for item in items}
    return "in", _canonical(operand, columns), *sorted(forms, key=repr)


def _is_compared_one_by_one(operand: Node, items: Iterable[Node], columns: _Columns) -> bool:
    """Whether each item is compared as it would be without the others."""
    sql_type = _column_type(operand, columns)
    if sql_type is None or sql_type.family == "float":
        return False
    return all(isinstance(item, Constant) and (item.is_untyped or _is_like(item, sql_type)) for item in items)


def _is_like(literal: Constant, sql_type: SqlType) -> bool:
    of_literal = None if literal.type_oid is None else TYPES.get(literal.type_oid)
    if of_literal is None:
        return False
    return of_literal.oid == sql_type.oid or of_literal.family == sql_type.family == "exact"


def _column_type(node: Node, columns: _Columns) -> SqlType | None:
    """The type of an operand that is a column; ``None`` if it is not, or its type is unknown."""
    column = columns.get(node.name) if isinstance(node, ColumnRef) else None
    return None if column is None else type_of(column)


def _comparison(operator: str, left: Node, right: Node, columns: _Columns) -> Form:
    left_form, right_form = _operand(left, right, columns), _operand(right, left, columns)
    if repr(left_form) > repr(right_form):
        operator, left_form, right_form = _MIRRORED.get(operator, operator), right_form, left_form
    return "compare", operator, left_form, right_form


def _operand(node: Node, other: Node, columns: _Columns) -> Form:
    """An operand of a comparison; a literal compared with a column becomes the value that it has there."""
    sql_type = _column_type(other, columns)
    value = _value(node, sql_type) if isinstance(node, Constant) and sql_type is not None else None
    return _canonical(node, columns) if value is None else value


def _value(literal: Constant, sql_type: SqlType) -> Form | None:
    """The value of a literal compared with a column of this type; ``None`` if unknown."""
    if literal.text is None or not (literal.is_untyped or _is_like(literal, sql_type)):
        return None
    parse = parse_short_numeric if sql_type.oid == NUMERIC else sql_type.parse
    try:
        value = parse(literal.text)
    except ValueError:
        return None
    if sql_type.family not in _BY_VALUE:
        return "text", literal.text
    return "value", sql_type.family, _digits(value) if isinstance(value, int | Decimal) else str(value)


def _digits(number: int | Decimal) -> Any:
    """Equal for equal numbers, however many decimals they have."""
    sign, digits, exponent = Decimal(number).as_tuple()
    if not isinstance(exponent, int):
        return str(number)
    text = "".join(map(str, digits)).lstrip("0")
    kept = text.rstrip("0")
    return (sign, kept, exponent + len(text) - len(kept)) if kept else (0, "", 0)


def _negation(form: Form) -> Form:
    if form[0] == "not":
        inner: Form = form[1]
        return inner
    if form[0] == "compare" and form[1] in _NEGATED:
        return "compare", _NEGATED[form[1]], *form[2:]
    return "not", form


def _plain(node: object, columns: _Columns) -> Form:
    """Any other node: its kind and its parts."""
    found: list[Any] = [type(node).__name__]
    if not is_dataclass(node):
        return repr(node), *found
    for field in fields(node):
        value = getattr(node, field.name)
        found.append(_canonical(value, columns) if type(value) in _NODES else repr(value))
    return tuple(found)


_NODES: Final[tuple[type, ...]] = get_args(Node)
