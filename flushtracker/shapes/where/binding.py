"""Compiles a condition into a predicate for one table: resolves the types of its operands and parses its literals.

Operands get their types as in PostgreSQL: a column from the catalog, a number from its size, a quoted literal and NULL
from the other operands. Nothing is converted that PostgreSQL does not convert implicitly.
"""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flushtracker.errors import DecodeError, ShapeError
from flushtracker.shapes.where import sql_values
from flushtracker.shapes.where.sql_values import TYPES, SqlType, Value
from flushtracker.shapes.where.three_valued import (
    Condition,
    Evaluate,
    combined,
    compared,
    constantly,
    distinct,
    is_truth,
    junction,
    mapped,
    member,
    negated,
)
from flushtracker.shapes.where.tokens import shorten
from flushtracker.shapes.where.tree import (
    Arithmetic,
    ColumnRef,
    Comparison,
    Constant,
    IsNull,
    IsTruth,
    Junction,
    Like,
    Membership,
    Negation,
    Node,
    Not,
)
from flushtracker.wal.changes import Relation, Row

_ORDERINGS = frozenset(["<", "<=", ">", ">="])
_NUMBERS, _TEXTS = ("exact", "float"), ("text", "character")


def bind(condition: Node, relation: Relation) -> Callable[[Row], bool | None]:
    """The predicate for rows of ``relation``; each column is read once per row, however often it occurs."""
    binder = _Binder(relation)
    evaluate = binder.condition(condition, "the whole condition")
    readers = tuple(binder.readers)
    return lambda row: evaluate([read(row) for read in readers])


@dataclass(frozen=True, slots=True)
class _Operand:
    """``type`` is ``None`` for a literal typed by the other operands; ``constant`` is set for every literal."""

    type: SqlType | None
    evaluate: Evaluate
    label: str
    constant: Constant | None = None

    def __str__(self) -> str:
        return self.label if self.type is None else f"{self.label} ({self.type.name})"


def _reader(table: str, name: str, sql_type: SqlType | None) -> Callable[[Row], Value]:
    """A function that reads a column of a row; without a type, as raw text. Errors never show the value."""

    def read(row: Row) -> Value:
        if name not in row:
            raise DecodeError(f'{table}: column "{name}" is absent from a row, but where reads it; send whole rows')
        text = row[name]
        if text is None or sql_type is None:
            return text
        try:
            return sql_type.parse(text)
        except ValueError:
            # The cause is dropped because it could quote the value.
            raise DecodeError(
                f'{table}: column "{name}" holds a value that cannot be read as {sql_type.name}; '
                "check the column's type and that the connection sets DateStyle to ISO"
            ) from None

    return read


def read_literal(constant: Constant, target: SqlType) -> Value:
    """The value of a literal; one with its own type must be valid in that type before it is converted.

    Raises ``ValueError`` if it is not.
    """
    if constant.text is None:
        return None
    own = target if constant.type_oid is None else TYPES[constant.type_oid]
    value = own.parse(constant.text if own.family in _TEXTS else constant.text.strip())
    return sql_values.to_double(value) if (own.family, target.family) == ("exact", "float") else value


class _Binder:
    """Compiles the nodes of one condition and collects readers for the columns that they use."""

    def __init__(self, relation: Relation) -> None:
        self.readers: list[Callable[[Row], Value]] = []
        self._table = ".".join(relation.table)
        self._type_oids = {column.name: column.type_oid for column in relation.columns}
        self._slots: dict[tuple[str, bool], int] = {}

    def condition(self, node: Node, place: str) -> Condition:
        operand = self._operand(node)
        if operand.type is not None and operand.type.family != "boolean":
            raise self._refused(f"has {operand} as {place}", "compare it with something")
        return self._typed(operand, TYPES[sql_values.BOOLEAN])

    def _refused(self, fact: str, advice: str) -> ShapeError:
        return ShapeError(f"{self._table}: where {fact}; {advice}")

    def _type_oid(self, name: str) -> int:
        if name not in self._type_oids:
            raise self._refused(
                f'reads column "{name}", which the table does not have',
                "correct the name, and put it in double quotes if it has capitals",
            )
        return self._type_oids[name]

    def _slot(self, name: str, sql_type: SqlType | None) -> Evaluate:
        slot = self._slots.setdefault((name, sql_type is None), len(self.readers))
        if slot == len(self.readers):
            self.readers.append(_reader(self._table, name, sql_type))
        return operator.itemgetter(slot)

    def _column(self, name: str) -> _Operand:
        oid = self._type_oid(name)
        if oid not in TYPES:
            raise self._refused(
                f'reads column "{name}" of the type with OID {oid}, which is not supported',
                f'test it only with "{name}" IS [NOT] NULL',
            )
        return _Operand(TYPES[oid], self._slot(name, TYPES[oid]), f'column "{name}"')

    def _operand(self, node: Node) -> _Operand:
        match node:
            case ColumnRef(name):
                return self._column(name)
            case Constant(text, type_oid):
                label = "NULL" if text is None else f"the literal {shorten(text)}"
                return _Operand(None if type_oid is None else TYPES[type_oid], constantly(None), label, node)
            case Negation():
                return self._negation(node)
            case Arithmetic():
                return self._arithmetic(node)
            case _:
                return _Operand(TYPES[sql_values.BOOLEAN], self._boolean(node), "a condition")

    def _literal(self, operand: _Operand, target: SqlType) -> Value:
        if operand.constant is None:
            return None
        try:
            return read_literal(operand.constant, target)
        except ValueError as error:
            raise self._refused(
                f"has {operand.label}, which is not of type {(operand.type or target).name} ({error})",
                "write it as PostgreSQL prints that type",
            ) from error

    def _typed(self, operand: _Operand, target: SqlType) -> Evaluate:
        """The evaluation of the operand as ``target``, the type it is compared in."""
        if operand.constant is not None:
            return constantly(self._literal(operand, target))
        if operand.type is not None and (operand.type.family, target.family) == ("exact", "float"):
            return mapped(sql_values.to_double, operand.evaluate)
        return operand.evaluate

    def _common(self, operands: Sequence[_Operand], construct: str) -> SqlType:
        """The type that all operands are compared in; text if they are all untyped literals."""
        common, first = None, operands[0]
        for operand in operands:
            if operand.type is None:
                continue
            if common is None:
                common, first = operand.type, operand
                continue
            common = sql_values.common_type(common, operand.type)
            if common is None:
                raise self._refused(
                    f"has {first} {construct} {operand}, whose types are incompatible",
                    "compare a column with a literal of its own type",
                )
        return common or TYPES[sql_values.TEXT]

    def _negation(self, node: Negation) -> _Operand:
        operand = self._operand(node.operand)
        if operand.type is None or operand.type.family not in _NUMBERS:
            raise self._refused(f"has - before {operand}", "only numbers can be negated")
        evaluate = mapped(sql_values.negate, self._typed(operand, operand.type))
        return _Operand(operand.type, evaluate, "an expression")

    def _arithmetic(self, node: Arithmetic) -> _Operand:
        operands = [self._operand(node.left), self._operand(node.right)]
        for operand in operands:
            if operand.type is not None and operand.type.family != "exact":
                raise self._refused(
                    f"calculates {node.operator} with {operand}", "use integers and numeric, which are exact"
                )
        if all(operand.type is None for operand in operands):
            raise self._refused(f"calculates {node.operator} with quoted literals only", "write numbers unquoted")
        common = self._common(operands, node.operator)
        left, right = (self._typed(operand, common) for operand in operands)
        return _Operand(common, combined(sql_values.exact_arithmetic(node.operator), left, right), "an expression")

    def _boolean(self, node: Node) -> Condition:
        match node:
            case Junction(connective, parts):
                conditions = [self.condition(part, f"an operand of {connective}") for part in parts]
                return junction(conditions, decisive=connective == "OR")
            case Not(inner):
                return negated(self.condition(inner, "the operand of NOT"))
            case IsTruth(inner, truth):
                return is_truth(self.condition(inner, "the operand of IS TRUE or IS FALSE"), truth)
            case _:
                return self._test(node)

    def _test(self, node: Node) -> Condition:
        match node:
            case IsNull(inner):
                return self._is_null(inner)
            case Comparison():
                return self._comparison(node)
            case Membership():
                return self._membership(node)
            case Like():
                return self._like(node)
            case _:
                raise TypeError(f"{type(node).__name__} is not a condition")

    def _is_null(self, node: Node) -> Condition:
        if isinstance(node, ColumnRef):
            # Any type will do: the value is not parsed.
            self._type_oid(node.name)
            tested = self._slot(node.name, None)
        else:
            operand = self._operand(node)
            tested = self._typed(operand, operand.type or TYPES[sql_values.TEXT])
        return lambda values: tested(values) is None

    def _comparison(self, node: Comparison) -> Condition:
        operands = [self._operand(node.left), self._operand(node.right)]
        common = self._common(operands, node.written_as)
        if node.operator not in _ORDERINGS:
            self._check_real(operands, node.written_as)
        elif common.family in _TEXTS:
            raise self._refused(
                f"has {operands[0]} {node.written_as} {operands[1]}, but the order of text depends on the collation",
                "compare text with =, <>, IN or LIKE",
            )
        left, right = (self._typed(operand, common) for operand in operands)
        if node.operator == "IS DISTINCT FROM":
            return distinct(left, right)
        if node.operator == "IS NOT DISTINCT FROM":
            return negated(distinct(left, right))
        return compared(node.operator, left, right)

    def _membership(self, node: Membership) -> Condition:
        operands = [self._operand(node.operand), *(self._operand(item) for item in node.items)]
        common = self._common(operands, "IN")
        self._check_real(operands, "IN")
        return member(self._typed(operands[0], common), [self._literal(item, common) for item in operands[1:]])

    def _check_real(self, operands: Sequence[_Operand], construct: str) -> None:
        """Refuse ``real = 0.1``: no real equals 0.1, so it is false for every row, and IN would differ from =."""
        real = next((operand for operand in operands if operand.type is TYPES[sql_values.FLOAT4]), None)
        for operand in operands if real else ():
            if operand.constant is None or operand.type is None or operand.type.family != "exact":
                continue
            value = self._literal(operand, operand.type)
            if value is not None and not sql_values.is_single(value):
                raise self._refused(
                    f"has {real} {construct} {operand}, which no real equals", "put the literal in quotes"
                )

    def _like(self, node: Like) -> Condition:
        operand = self._operand(node.operand)
        if operand.type is not None and operand.type.family not in _TEXTS:
            raise self._refused(f"has {operand} {node.written_as} a pattern", f"use {node.written_as} with text")
        # Trailing blanks of character(n) count in LIKE, and only there, so a column is read as raw text.
        if isinstance(node.operand, ColumnRef):
            text = self._slot(node.operand.name, None)
        else:
            text = self._typed(operand, TYPES[sql_values.TEXT])
        return constantly(None) if node.pattern is None else mapped(node.pattern.matches, text)
