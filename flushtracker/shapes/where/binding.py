"""Compiles a condition into a predicate for one table: resolves the types of its operands and parses its literals.

Operands get their types as in PostgreSQL: a column from the catalog, a number from its size, a quoted literal and NULL
from the other operands. Nothing is converted that PostgreSQL does not convert implicitly.
"""

import operator
from collections.abc import Callable, Container, Sequence
from functools import partial
from typing import TypeAlias

from flushtracker.errors import DecodeError
from flushtracker.shapes.where import sql_values
from flushtracker.shapes.where.letter_case import LetterCase, case_variants, has_other_letters
from flushtracker.shapes.where.number_values import is_single
from flushtracker.shapes.where.operands import Operand, Operands
from flushtracker.shapes.where.operators import (
    any_of,
    arithmetic,
    concatenation,
    contains,
    negation,
    overlap,
    text_cast,
)
from flushtracker.shapes.where.query_set import QuerySet
from flushtracker.shapes.where.sql_values import TEXTS, TYPES
from flushtracker.shapes.where.three_valued import (
    Condition,
    Evaluate,
    Values,
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
    AnyOf,
    Arithmetic,
    ArrayTest,
    CaseMapping,
    ColumnRef,
    Comparison,
    Concatenation,
    Constant,
    InQuery,
    IsNull,
    IsTruth,
    Junction,
    Like,
    Membership,
    Negation,
    Node,
    Not,
    Query,
    TextCast,
)
from flushtracker.wal.changes import Relation, Row

_ORDERINGS = frozenset(["<", "<=", ">", ">="])


QuerySets: TypeAlias = Callable[[Query], QuerySet]
"""The set of each subquery of a condition."""


def bind(
    condition: Node, relation: Relation, sets: QuerySets | None = None, by_bytes: Container[str] = ()
) -> Callable[[Row], bool | None]:
    """The predicate for rows of ``relation``; each column is read once per row, however often it occurs.

    A condition with subqueries needs their ``sets``, and is evaluated against their content at that time. Texts of the
    columns ``by_bytes`` are ordered by their bytes.
    """
    operands = Operands(relation)
    evaluate = _Binder(operands, sets, by_bytes).condition(condition, "the whole condition")
    readers, table = tuple(operands.readers), operands.table

    def matches(row: Row) -> bool | None:
        values = [read(row) for read in readers]
        try:
            return evaluate(values)
        except ArithmeticError as error:
            # The cause is dropped because it could quote a value.
            raise DecodeError(
                f"{table}: where cannot be evaluated for a row because of {error}, which is an error in PostgreSQL "
                "too; exclude such rows by a condition before it, as in: x <> 0 AND y / x > 1"
            ) from None

    return matches


class _Binder:
    def __init__(self, operands: Operands, sets: QuerySets | None, by_bytes: Container[str]) -> None:
        self._operands = operands
        self._sets = sets
        self._by_bytes = by_bytes
        self._refused = operands.refused

    def condition(self, node: Node, role: str) -> Condition:
        operand = self._operand(node)
        if not operand.is_one_of("boolean"):
            raise self._refused(f"has {operand} as {role}", "compare it with something")
        return self._operands.typed(operand, TYPES[sql_values.BOOLEAN])

    def _operand(self, node: Node) -> Operand:
        match node:
            case ColumnRef(name):
                return self._operands.column(name)
            case Constant():
                return self._literal(node)
            case TextCast() | Negation() | Arithmetic() | Concatenation():
                return self._expression(node)
            case CaseMapping():
                raise self._refused(
                    f"uses {node} other than in a comparison with literals", "compare it by =, <>, IN or LIKE"
                )
            case _:
                return Operand(TYPES[sql_values.BOOLEAN], self._boolean(node), "a condition")

    def _expression(self, node: TextCast | Negation | Arithmetic | Concatenation) -> Operand:
        match node:
            case TextCast(inner):
                return text_cast(self._operands, self._operand(inner))
            case Negation(inner):
                return negation(self._operands, self._operand(inner))
            case Arithmetic(symbol, left, right):
                return arithmetic(self._operands, symbol, [self._operand(left), self._operand(right)])
            case Concatenation(left, right):
                return concatenation(self._operands, [self._operand(left), self._operand(right)])

    def _literal(self, node: Constant) -> Operand:
        label = "NULL" if node.text is None else f"the literal {shorten(node.text)}"
        sql_type = None if node.type_oid is None else TYPES[node.type_oid]
        if node.enum is not None:
            sql_type = self._operands.enum(node.enum)
        return Operand(sql_type, constantly(None), label, node)

    def _boolean(self, node: Node) -> Condition:
        match node:
            case Junction(connective, parts):
                conditions = [self.condition(part, f"an operand of {connective}") for part in parts]
                return junction(conditions, decisive=connective == "OR")
            case Not(inner):
                return negated(self.condition(inner, "the operand of NOT"))
            case IsTruth(inner, truth):
                return is_truth(self.condition(inner, "the operand of IS TRUE, FALSE or UNKNOWN"), truth)
            case InQuery(operand, query):
                return self._in_query(self._operand(operand), query)
            case _:
                return self._test(node)

    def _test(self, node: Node) -> Condition:
        match node:
            case IsNull(inner):
                return self._is_null(inner)
            case Comparison(_, left, right):
                return self._settled([left, right], node.written_as, partial(self._comparison, node))
            case Membership(operand, items):
                return self._settled([operand, *items], "IN", self._membership)
            case Like():
                return self._like(node)
            case AnyOf(operand, array):
                return any_of(self._operands, self._operand(operand), self._operand(array))
            case ArrayTest(symbol, left, right):
                test = overlap if symbol == "&&" else contains
                return test(self._operands, self._operand(left), self._operand(right))
            case _:
                raise TypeError(f"{type(node).__name__} is not a condition")

    def _is_null(self, node: Node) -> Condition:
        match node:
            case ColumnRef(name):
                # Any type will do, since the value is not parsed.
                tested = self._operands.raw_column(name)
            case CaseMapping():
                tested = self._text_of(node)
            case _:
                operand = self._operand(node)
                tested = self._operands.typed(operand, operand.type or TYPES[sql_values.TEXT])
        return lambda values: tested(values) is None

    def _comparison(self, node: Comparison, operands: Sequence[Operand]) -> Condition:
        common = self._operands.common(operands, node.written_as)
        if node.operator not in _ORDERINGS:
            self._check_real(operands, node.written_as)
        elif common.family in TEXTS and not self._is_ordered(node):
            raise self._refused(
                f"has {operands[0]} {node.written_as} {operands[1]}, but the order of text depends on the collation",
                "compare text with =, <>, IN or LIKE",
            )
        elif common.family == "array":
            raise self._refused(f"has {operands[0]} {node.written_as} {operands[1]}", "compare arrays with =, @> or &&")
        left, right = (self._operands.typed(operand, common) for operand in operands)
        if node.operator == "IS DISTINCT FROM":
            return distinct(left, right)
        if node.operator == "IS NOT DISTINCT FROM":
            return negated(distinct(left, right))
        return compared(node.operator, left, right)

    def _is_ordered(self, node: Comparison) -> bool:
        """Whether it compares a column whose texts are ordered by bytes with a literal, which has its collation."""
        match node.left, node.right:
            case (ColumnRef(name), Constant()) | (Constant(), ColumnRef(name)):
                return name in self._by_bytes
        return False

    def _membership(self, operands: Sequence[Operand]) -> Condition:
        self._operands.common(operands, "IN")
        self._check_real(operands, "IN")
        types = sql_values.list_types(operands[0].type, [item.type for item in operands[1:]])
        items = [self._operands.literal(item, types.of_items, types.compared) for item in operands[1:]]
        return member(self._operands.typed(operands[0], types.compared), items)

    def _in_query(self, operand: Operand, query: Query) -> Condition:
        if self._sets is None:
            raise self._refused("has a subquery, but only one table is known here", "bind it with all of its tables")
        found = self._sets(query)
        common = self._operands.common([operand, found.operand], "IN")
        found.compare_as(common)
        item, contains = self._operands.typed(operand, common), found.contains
        return lambda values: contains(item(values))

    def _check_real(self, operands: Sequence[Operand], construct: str) -> None:
        """Refuse ``real = 0.1``: no real equals 0.1, so it is false for every row, and IN would differ from =."""
        real = next((operand for operand in operands if operand.type is TYPES[sql_values.FLOAT4]), None)
        for operand in operands if real else ():
            if operand.constant is None or operand.type is None or operand.type.family != "exact":
                continue
            value = self._operands.literal(operand, operand.type)
            if value is not None and not is_single(value):
                raise self._refused(
                    f"has {real} {construct} {operand}, which no real equals", "put the literal in quotes"
                )

    def _like(self, node: Like) -> Condition:
        matches = constantly(None) if node.pattern is None else mapped(node.pattern.matcher(), operator.itemgetter(0))
        cases: tuple[LetterCase, ...] = ("lower",) if node.ignore_case else ()
        if isinstance(node.operand, CaseMapping):
            return self._unanimous((node.operand.case, *cases), self._text_of(node.operand), matches)
        operand = self._operand(node.operand)
        if not operand.is_one_of(*TEXTS):
            raise self._refused(f"has {operand} {node.written_as} a pattern", f"use {node.written_as} with text")
        # Trailing blanks of character(n) count only in LIKE, so a column is read as raw text.
        if isinstance(node.operand, ColumnRef):
            text = self._operands.raw_column(node.operand.name)
        else:
            text = self._operands.typed(operand, TYPES[sql_values.TEXT])
        if node.ignore_case:
            return self._unanimous(cases, text, matches)
        return lambda values: matches([text(values)])

    def _text_of(self, mapping: CaseMapping) -> Evaluate:
        """The text that ``lower`` or ``upper`` is applied to."""
        operand = self._operand(mapping.operand)
        if not operand.is_one_of(*TEXTS):
            raise self._refused(f"uses {mapping} of {operand}", "use it with text")
        return self._operands.typed(operand, operand.type or TYPES[sql_values.TEXT])

    def _settled(
        self, nodes: Sequence[Node], written_as: str, compile_test: Callable[[Sequence[Operand]], Condition]
    ) -> Condition:
        """Compile a test of ``nodes``. One may be ``lower`` or ``upper`` if all others are literals."""
        mapping = next((node for node in nodes if isinstance(node, CaseMapping)), None)
        if mapping is None:
            return compile_test([self._operand(node) for node in nodes])
        operands = []
        for node in nodes:
            if node is mapping:
                operands.append(Operand(TYPES[sql_values.TEXT], operator.itemgetter(0), str(mapping)))
            elif isinstance(node, Constant) and not has_other_letters(node.text or ""):
                operands.append(self._operand(node))
            else:
                raise self._refused(
                    f"has {mapping} {written_as} something other than a literal without letters outside ASCII, whose "
                    "case depends on the collation",
                    "compare the text as it is stored",
                )
        return self._unanimous((mapping.case,), self._text_of(mapping), compile_test(operands))

    def _unanimous(self, cases: Sequence[LetterCase], text: Evaluate, test: Condition) -> Condition:
        """The outcome of ``test`` for a text that is mapped to these cases, one after the other, if it does not depend
        on the collation.
        """
        error = self._operands.table

        def outcome(values: Values) -> bool | None:
            value = text(values)
            if value is None:
                return test([None])
            variants = {value}
            for case in cases:
                variants = {variant for each in variants for variant in case_variants(each, case)}
            outcomes = {test([variant]) for variant in variants}
            if len(outcomes) > 1:
                raise DecodeError(
                    f"{error}: where cannot be evaluated for a row, because it has a letter whose {cases[0]} case "
                    "depends on the database's collation, such as İ or ß; compare the text as it is stored"
                )
            return outcomes.pop()

        return outcome
