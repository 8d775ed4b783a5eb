"""Parses a ``where`` into a small tree; everything that the tree cannot represent is refused by name.

sqlglot parses the text, but it accepts more than PostgreSQL does, and parses some of it differently. So only what is
listed here is accepted: each symbol, each kind of node, each argument of a node. An operand without parentheses must
also bind tighter in PostgreSQL than its operator. A tree in which that always holds is the tree that PostgreSQL would
build, whatever precedence sqlglot assumes. (sqlglot adds parentheses of its own in one place, around a condition before
IS, and PostgreSQL implies them there too.)
"""

from collections.abc import Callable
from typing import TypeAlias

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from flushtracker.errors import ShapeError
from flushtracker.shapes.where import sql_values
from flushtracker.shapes.where.leaves import (
    NUMBERS,
    OPERATORS,
    array_literal,
    column_name,
    name_of,
    read_boolean,
    read_cast,
    read_column,
    read_literal,
    read_null,
)
from flushtracker.shapes.where.letter_case import LetterCase, case_variants, has_other_letters
from flushtracker.shapes.where.like_pattern import LikePattern
from flushtracker.shapes.where.number_values import parse_numeric
from flushtracker.shapes.where.query_syntax import read_query
from flushtracker.shapes.where.tokens import check_tokens, place, refused, shorten, too_deep
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
)

_MAX_NESTING = 100


def read_condition(text: str) -> tuple[Node, frozenset[str]]:
    """The tree of a ``where`` and the columns it reads; raises ``ShapeError`` naming what is not supported."""
    try:
        check_tokens(sqlglot.tokenize(text, dialect="postgres"))
        tree = sqlglot.parse_one(text, into=exp.Condition, dialect="postgres")
        columns = (column for column in tree.find_all(exp.Column) if column.find_ancestor(exp.Select) is None)
        return _read(tree, _LOOSEST, 0), frozenset(map(column_name, columns))
    except SqlglotError as error:
        raise ShapeError(f"where {shorten(text)} is not one SQL condition: {place(error)}; correct it") from error
    except RecursionError as error:
        raise too_deep() from error


def _read(node: exp.Expr, binding: int, depth: int) -> Node:
    """``binding`` is how tightly the node must bind at least to need no parentheses here."""
    kind = type(node)
    if kind not in _GRAMMAR:
        raise refused(name_of(node))
    tightness, parts, reader = _GRAMMAR[kind]
    for name, part in node.args.items():
        if name not in parts and part:
            raise refused(f"{name.upper()} with {name_of(node)}")
    if tightness < binding:
        raise refused(f"{name_of(node)} as an operand without parentheses", "put parentheses around it")
    if depth > _MAX_NESTING:
        raise too_deep()
    result = reader(node, depth + 1)
    return Not(result) if node.args.get("negate") else result


def _read_junction(node: exp.Expr, depth: int) -> Node:
    # A chain of a thousand ORs is a tree a thousand deep, so it is walked without recursion.
    operands, rest = [], [node]
    while rest:
        operand = rest.pop()
        if type(operand) is type(node):
            rest += [operand.args["expression"], operand.args["this"]]
        else:
            operands.append(operand)
    tightness = _GRAMMAR[type(node)][0]
    return Junction(node.key.upper(), tuple(_read(operand, tightness + 1, depth) for operand in operands))


def _read_not(node: exp.Expr, depth: int) -> Node:
    return Not(_read(node.this, _NOT, depth))


def _read_is(node: exp.Expr, depth: int) -> Node:
    operand, right = _read(node.this, _IS + 1, depth), node.args["expression"]
    if type(right) is exp.Boolean:
        return IsTruth(operand, bool(right.this))
    if type(right) is not exp.Null:
        raise refused(f"IS with {name_of(right)}", "IS accepts NULL, TRUE, FALSE, UNKNOWN or DISTINCT FROM")
    return IsNull(operand)


def _read_comparison(node: exp.Expr, depth: int) -> Node:
    operator, tightness = OPERATORS[type(node)], _GRAMMAR[type(node)][0]
    left, right = _read(node.this, tightness + 1, depth), node.args["expression"]
    quantified = _quantified(right)
    if quantified is not None:
        quantifier, operand = quantified
        array = _read(operand, _LOOSEST, depth)
        if (quantifier, operator) not in (("ANY", "="), ("ALL", "<>")) or not isinstance(array, ColumnRef | Constant):
            raise refused(
                f"{operator} {quantifier}(...) of this array",
                "write value = ANY(array), or value <> ALL(array), of a column or a literal",
            )
        return AnyOf(left, array) if quantifier == "ANY" else Not(AnyOf(left, array))
    return Comparison(operator, left, _read(right, tightness + 1, depth), operator)


def _quantified(node: exp.Expr) -> tuple[str, exp.Expr] | None:
    """The array of ``ANY(array)`` or ``ALL(array)``; the latter is a function to sqlglot."""
    if type(node) is exp.Any:
        return "ANY", node.this
    if type(node) is exp.Anonymous and str(node.this).upper() == "ALL" and len(node.expressions) == 1:
        return "ALL", node.expressions[0]
    return None


def _read_between(node: exp.Expr, depth: int) -> Node:
    operand, low, high = (_read(node.args[part], _RANGE + 1, depth) for part in ("this", "low", "high"))
    return Junction("AND", (Comparison(">=", operand, low, "BETWEEN"), Comparison("<=", operand, high, "BETWEEN")))


def _read_in(node: exp.Expr, depth: int) -> Node:
    if (query := node.args.get("query")) is not None:
        operand = _read(node.this, _RANGE + 1, depth)
        return InQuery(operand, read_query(query, lambda condition: _read(condition, _LOOSEST, depth)))
    items = tuple(_read(item, _LOOSEST, depth) for item in node.args.get("expressions") or ())
    if not items:
        raise refused("IN without a list", "write IN with a list of literals")
    constants = tuple(item for item in items if isinstance(item, Constant))
    if len(constants) < len(items):
        raise refused("IN with an item that is not a literal", "compare with = and OR")
    return Membership(_read(node.this, _RANGE + 1, depth), constants)


def _read_like(node: exp.Expr, depth: int) -> Node:
    return _like(node, "\\", depth)


def _read_escape(node: exp.Expr, depth: int) -> Node:
    like, escape = node.this, _read(node.args["expression"], _RANGE + 1, depth)
    if type(like) not in (exp.Like, exp.ILike):
        raise refused("ESCAPE without LIKE", "write LIKE 'pattern' ESCAPE 'character'")
    if not isinstance(escape, Constant) or not escape.is_untyped or escape.text is None or len(escape.text) > 1:
        raise refused("ESCAPE with anything but one character in quotes, or none", "write it as in ESCAPE '!'")
    result = _like(like, escape.text, depth)
    return Not(result) if like.args.get("negate") else result


def _like(node: exp.Expr, escape: str, depth: int) -> Node:
    operand = _read(node.this, _RANGE + 1, depth)
    pattern = _read(node.args["expression"], _RANGE + 1, depth)
    name, ignore_case = node.key.upper(), type(node) is exp.ILike
    if not isinstance(pattern, Constant) or not pattern.may_be_text:
        raise refused(f"{name} with a pattern that is not a string literal", "use a string literal")
    if ignore_case and isinstance(operand, CaseMapping):
        # It would map the case of each letter twice, of which only one is examined for what collations make of it.
        raise refused(f"ILIKE of {operand}", "use LIKE")
    if pattern.text is None:
        return Like(operand, None, ignore_case)
    if (ignore_case or isinstance(operand, CaseMapping)) and has_other_letters(pattern.text):
        raise refused(
            f"{name} with a non-ASCII letter, whose case mapping depends on the database's collation",
            "change the pattern",
        )
    try:
        return Like(operand, LikePattern.parse(pattern.text, ignore_case=ignore_case, escape=escape), ignore_case)
    except ValueError as error:
        raise refused(f"{name} with {error}", "change the pattern") from error


def _read_arithmetic(node: exp.Expr, depth: int) -> Node:
    operator, tightness = OPERATORS[type(node)], _GRAMMAR[type(node)][0]
    left = _read(node.this, tightness, depth)
    right = _read(node.args["expression"], tightness + 1, depth)
    if operator in ("/", "%") and isinstance(right, Constant) and _is_zero(right):
        raise refused(f"{operator} by zero, which is an error in every row", "divide by something else")
    return Arithmetic(operator, left, right)


def _is_zero(divisor: Constant) -> bool:
    try:
        return divisor.text is not None and parse_numeric(divisor.text.strip()) == 0
    except ValueError:
        return False


def _read_minus(node: exp.Expr, depth: int) -> Node:
    operand = _read(node.this, _MINUS, depth)
    if not isinstance(operand, Constant) or operand.type_oid not in NUMBERS or not operand.text:
        return Negation(operand)
    text = operand.text.removeprefix("-") if operand.text.startswith("-") else f"-{operand.text}"
    literal = node.this
    while isinstance(literal, (exp.Paren, exp.Neg)):
        literal = literal.this
    if type(literal) is exp.Literal:
        # A number literal gets its type after its sign: -2147483648 is an integer.
        return Constant(text, sql_values.number_type(text).oid)
    return Constant(text, operand.type_oid) if operand.text[0].isdigit() else Negation(operand)


def _read_cast(node: exp.Expr, depth: int) -> Node:
    if type(node.this) is exp.Array:
        return read_cast(_read_array(node.this, depth, is_cast=True), node.args["to"])
    return read_cast(_read(node.this, _LOOSEST, depth), node.args["to"])


def _read_array(node: exp.Expr, depth: int, *, is_cast: bool = False) -> Node:
    items = [_read(item, _LOOSEST, depth) for item in node.args.get("expressions") or ()]
    return array_literal(items, is_cast=is_cast)


def _read_case(node: exp.Expr, depth: int) -> Node:
    case: LetterCase = "lower" if type(node) is exp.Lower else "upper"
    operand = _read(node.this, _LOOSEST, depth)
    if not isinstance(operand, Constant) or operand.text is None:
        return CaseMapping(case, operand)
    if not operand.may_be_text or len(variants := case_variants(operand.text, case)) > 1:
        raise refused(f"{case}(...) of this literal", "write the result as a literal")
    if has_other_letters(operand.text):
        raise refused(f"{case}(...) of a literal with a non-ASCII letter", "compare the text as it is stored")
    return Constant(variants[0], sql_values.TEXT)


def _read_concatenation(node: exp.Expr, depth: int) -> Node:
    return Concatenation(_read(node.this, _OTHER, depth), _read(node.args["expression"], _OTHER + 1, depth))


def _read_array_test(node: exp.Expr, depth: int) -> Node:
    left, right = _read(node.this, _OTHER, depth), _read(node.args["expression"], _OTHER + 1, depth)
    if type(node) is exp.ArrayContainedBy:
        return ArrayTest("@>", right, left)
    return ArrayTest(OPERATORS[type(node)], left, right)


def _read_parentheses(node: exp.Expr, depth: int) -> Node:
    return _read(node.this, _LOOSEST, depth)


_LOOSEST, _NOT, _IS, _COMPARISON, _RANGE, _OTHER, _SUM, _PRODUCT, _MINUS, _ATOM = 0, 3, 4, 5, 6, 7, 8, 9, 10, 11
_PAIR = frozenset(["this", "expression"])
_ONE = frozenset(["this"])
_Reader: TypeAlias = Callable[[exp.Expr, int], Node]
# Each accepted kind of node: how tightly it binds in PostgreSQL, the arguments it may have, and its reader.
_GRAMMAR: dict[type[exp.Expr], tuple[int, frozenset[str], _Reader]] = {
    exp.Or: (1, _PAIR, _read_junction),
    exp.And: (2, _PAIR, _read_junction),
    exp.Not: (_NOT, _ONE, _read_not),
    exp.Is: (_IS, _PAIR | {"negate"}, _read_is),
    exp.NullSafeEQ: (_IS, _PAIR, _read_comparison),
    exp.NullSafeNEQ: (_IS, _PAIR, _read_comparison),
    exp.EQ: (_COMPARISON, _PAIR, _read_comparison),
    exp.NEQ: (_COMPARISON, _PAIR, _read_comparison),
    exp.LT: (_COMPARISON, _PAIR, _read_comparison),
    exp.LTE: (_COMPARISON, _PAIR, _read_comparison),
    exp.GT: (_COMPARISON, _PAIR, _read_comparison),
    exp.GTE: (_COMPARISON, _PAIR, _read_comparison),
    exp.Between: (_RANGE, frozenset(["this", "low", "high", "negate"]), _read_between),
    exp.In: (_RANGE, frozenset(["this", "expressions", "field", "negate", "query"]), _read_in),
    exp.Like: (_RANGE, _PAIR | {"negate"}, _read_like),
    exp.ILike: (_RANGE, _PAIR | {"negate"}, _read_like),
    exp.Escape: (_RANGE, _PAIR, _read_escape),
    exp.DPipe: (_OTHER, _PAIR | {"safe"}, _read_concatenation),
    exp.ArrayContainsAll: (_OTHER, _PAIR, _read_array_test),
    exp.ArrayContainedBy: (_OTHER, _PAIR, _read_array_test),
    exp.ArrayOverlaps: (_OTHER, _PAIR, _read_array_test),
    exp.Add: (_SUM, _PAIR, _read_arithmetic),
    exp.Sub: (_SUM, _PAIR, _read_arithmetic),
    exp.Mul: (_PRODUCT, _PAIR, _read_arithmetic),
    exp.Div: (_PRODUCT, _PAIR | {"typed", "safe"}, _read_arithmetic),
    exp.Mod: (_PRODUCT, _PAIR, _read_arithmetic),
    exp.Neg: (_MINUS, _ONE, _read_minus),
    exp.Lower: (_ATOM, _ONE, _read_case),
    exp.Upper: (_ATOM, _ONE, _read_case),
    exp.Cast: (_ATOM, frozenset(["this", "to"]), _read_cast),
    exp.Array: (_ATOM, frozenset(["expressions"]), _read_array),
    exp.Paren: (_ATOM, _ONE, _read_parentheses),
    exp.Column: (_ATOM, frozenset(["this", "table"]), read_column),
    exp.Literal: (_ATOM, frozenset(["this", "is_string"]), read_literal),
    exp.Boolean: (_ATOM, _ONE, read_boolean),
    exp.Null: (_ATOM, frozenset(), read_null),
}
