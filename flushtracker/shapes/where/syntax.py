"""Parses a ``where`` into a small tree; everything that the tree cannot represent is refused by name.

sqlglot parses the text, but it accepts more than PostgreSQL does, and parses some of it differently. So only what is
listed here is accepted: each symbol, each kind of node, each argument of a node. An operand without parentheses must
also bind tighter in PostgreSQL than its operator. A tree in which that always holds is the tree that PostgreSQL would
build, whatever precedence sqlglot assumes. (sqlglot adds parentheses of its own in one place, around a condition before
IS, and PostgreSQL implies them there too.)
"""

import re
from collections.abc import Callable
from typing import TypeAlias

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from flushtracker.errors import ShapeError
from flushtracker.shapes.where import sql_values
from flushtracker.shapes.where.like_pattern import LikePattern
from flushtracker.shapes.where.tokens import check_tokens, place, refused, shorten, too_deep
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

# Unquoted, these are not columns but session values.
_SESSION_VALUES = frozenset(
    ["user", "session_user", "current_user", "system_user", "current_role", "current_catalog", "current_schema",
     "current_date", "current_time", "current_timestamp", "localtime", "localtimestamp"]
)  # fmt: skip
_MAX_NESTING = 100
_NUMBERS = frozenset(number.oid for number in sql_values.TYPES.values() if number.family in ("exact", "float"))
_CAST_TYPES = {
    exp.DataType.Type.SMALLINT: sql_values.INT2,
    exp.DataType.Type.INT: sql_values.INT4,
    exp.DataType.Type.BIGINT: sql_values.INT8,
    exp.DataType.Type.DECIMAL: sql_values.NUMERIC,
    exp.DataType.Type.FLOAT: sql_values.FLOAT4,
    exp.DataType.Type.DOUBLE: sql_values.FLOAT8,
    exp.DataType.Type.BOOLEAN: sql_values.BOOLEAN,
    exp.DataType.Type.TEXT: sql_values.TEXT,
    exp.DataType.Type.VARCHAR: sql_values.VARCHAR,
    exp.DataType.Type.UUID: sql_values.UUID,
    exp.DataType.Type.DATE: sql_values.DATE,
    exp.DataType.Type.TIMESTAMP: sql_values.TIMESTAMP,
    exp.DataType.Type.TIMESTAMPTZ: sql_values.TIMESTAMPTZ,
}


def read_condition(text: str) -> tuple[Node, frozenset[str]]:
    """The tree of a ``where`` and the columns it reads; raises ``ShapeError`` naming what is not supported."""
    try:
        check_tokens(sqlglot.tokenize(text, dialect="postgres"))
        tree = sqlglot.parse_one(text, into=exp.Condition, dialect="postgres")
        return _read(tree, _LOOSEST, 0), frozenset(_column_name(column) for column in tree.find_all(exp.Column))
    except SqlglotError as error:
        raise ShapeError(f"where {shorten(text)} is not one SQL condition: {place(error)}; correct it") from error
    except RecursionError as error:
        raise too_deep() from error


def _read(node: exp.Expr, binding: int, depth: int) -> Node:
    """``binding`` is how tightly the node must bind at least to need no parentheses here."""
    kind = type(node)
    if kind not in _GRAMMAR:
        raise refused(_name_of(node))
    tightness, parts, reader = _GRAMMAR[kind]
    for name, part in node.args.items():
        if name not in parts and part:
            raise refused(f"{name.upper()} with {_name_of(node)}")
    if tightness < binding:
        raise refused(f"{_name_of(node)} as an operand without parentheses", "put parentheses around it")
    if depth > _MAX_NESTING:
        raise too_deep()
    result = reader(node, depth + 1)
    return Not(result) if node.args.get("negate") else result


def _name_of(node: exp.Expr) -> str:
    kind = type(node)
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", kind.__name__).upper()
    return _OPERATORS.get(kind) or _CONSTRUCTS.get(kind) or words


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
        raise refused(f"IS with {_name_of(right)}", "IS accepts NULL, TRUE, FALSE, UNKNOWN or DISTINCT FROM")
    return IsNull(operand)


def _read_comparison(node: exp.Expr, depth: int) -> Node:
    operator, tightness = _OPERATORS[type(node)], _GRAMMAR[type(node)][0]
    left = _read(node.this, tightness + 1, depth)
    return Comparison(operator, left, _read(node.args["expression"], tightness + 1, depth), operator)


def _read_between(node: exp.Expr, depth: int) -> Node:
    operand, low, high = (_read(node.args[part], _RANGE + 1, depth) for part in ("this", "low", "high"))
    return Junction("AND", (Comparison(">=", operand, low, "BETWEEN"), Comparison("<=", operand, high, "BETWEEN")))


def _read_in(node: exp.Expr, depth: int) -> Node:
    items = tuple(_read(item, _LOOSEST, depth) for item in node.args.get("expressions") or ())
    if not items:
        raise refused("IN without a list", "write IN with a list of literals")
    constants = tuple(item for item in items if isinstance(item, Constant))
    if len(constants) < len(items):
        raise refused("IN with an item that is not a literal", "compare with = and OR")
    return Membership(_read(node.this, _RANGE + 1, depth), constants)


def _read_like(node: exp.Expr, depth: int) -> Node:
    operand = _read(node.this, _RANGE + 1, depth)
    pattern = _read(node.args["expression"], _RANGE + 1, depth)
    name = node.key.upper()
    if not isinstance(pattern, Constant) or pattern.type_oid not in (None, sql_values.TEXT, sql_values.VARCHAR):
        raise refused(f"{name} with a pattern that is not a string literal", "use a string literal")
    if pattern.text is None:
        return Like(operand, None, ignore_case=name == "ILIKE")
    try:
        return Like(operand, LikePattern.parse(pattern.text, ignore_case=name == "ILIKE"), ignore_case=name == "ILIKE")
    except ValueError as error:
        raise refused(f"{name} with {error}", "change the pattern") from error


def _read_arithmetic(node: exp.Expr, depth: int) -> Node:
    operator, tightness = _OPERATORS[type(node)], _GRAMMAR[type(node)][0]
    left = _read(node.this, tightness, depth)
    right = _read(node.args["expression"], tightness + 1, depth)
    if operator == "%" and not _is_divisor(right):
        raise refused("% by anything but a nonzero number literal", "divide by a literal")
    return Arithmetic(operator, left, right)


def _is_divisor(node: Node) -> bool:
    if not isinstance(node, Constant) or node.text is None or node.type_oid is None:
        return False
    try:
        return sql_values.parse_numeric(node.text) != 0
    except ValueError:
        return False


def _read_minus(node: exp.Expr, depth: int) -> Node:
    operand = _read(node.this, _MINUS, depth)
    if isinstance(operand, Constant) and operand.text and operand.type_oid in _NUMBERS and operand.text[0].isdigit():
        return Constant(f"-{operand.text}", operand.type_oid)
    return Negation(operand)


def _read_cast(node: exp.Expr, depth: int) -> Node:
    target = node.args["to"]
    oid = _CAST_TYPES.get(target.this)
    if oid is None or any(part for name, part in target.args.items() if name != "this"):
        raise refused(f"a cast to {target.sql('postgres')}", "cast to a plain type without a length")
    operand = _read(node.this, _LOOSEST, depth)
    if not isinstance(operand, Constant):
        raise refused("a cast of something that is not a literal", "cast the literal that it is compared with")
    if operand.type_oid is not None and operand.type_oid != oid and not {operand.type_oid, oid} <= _NUMBERS:
        raise refused("a cast of a literal of another type", "write the literal in quotes")
    return Constant(operand.text, oid)


def _read_literal(node: exp.Expr, _depth: int) -> Node:
    text = str(node.this)
    if node.is_string:
        return Constant(text)
    try:
        return Constant(text, sql_values.number_type(text).oid)
    except ValueError as error:
        raise refused(f"the number {shorten(text)}", "write it in digits within the range of numeric") from error


def _read_column(node: exp.Expr, _depth: int) -> Node:
    return ColumnRef(_column_name(node))


def _column_name(node: exp.Expr) -> str:
    identifier = node.this
    if node.args.get("table"):
        raise refused("a column qualified by a table", "write only the name of the column")
    if type(identifier) is not exp.Identifier:
        raise refused(_name_of(identifier))
    # PostgreSQL folds only ASCII letters.
    name = str(identifier.this)
    if identifier.args.get("quoted"):
        return name
    name = "".join(letter.lower() if letter.isascii() else letter for letter in name)
    if name in _SESSION_VALUES:
        raise refused(f"{name}, a session value", f'for a column of that name, write "{name}" in double quotes')
    return name


def _read_parentheses(node: exp.Expr, depth: int) -> Node:
    return _read(node.this, _LOOSEST, depth)


def _read_boolean(node: exp.Expr, _depth: int) -> Node:
    return Constant("t" if node.this else "f", sql_values.BOOLEAN)


def _read_null(_node: exp.Expr, _depth: int) -> Node:
    return Constant(None)


_LOOSEST, _NOT, _IS, _COMPARISON, _RANGE, _SUM, _PRODUCT, _MINUS, _ATOM = 0, 3, 4, 5, 6, 7, 8, 9, 10
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
    exp.In: (_RANGE, frozenset(["this", "expressions", "field", "negate"]), _read_in),
    exp.Like: (_RANGE, _PAIR | {"negate"}, _read_like),
    exp.ILike: (_RANGE, _PAIR | {"negate"}, _read_like),
    exp.Add: (_SUM, _PAIR, _read_arithmetic),
    exp.Sub: (_SUM, _PAIR, _read_arithmetic),
    exp.Mul: (_PRODUCT, _PAIR, _read_arithmetic),
    exp.Mod: (_PRODUCT, _PAIR, _read_arithmetic),
    exp.Neg: (_MINUS, _ONE, _read_minus),
    exp.Cast: (_ATOM, frozenset(["this", "to"]), _read_cast),
    exp.Paren: (_ATOM, _ONE, _read_parentheses),
    exp.Column: (_ATOM, frozenset(["this", "table"]), _read_column),
    exp.Literal: (_ATOM, frozenset(["this", "is_string"]), _read_literal),
    exp.Boolean: (_ATOM, _ONE, _read_boolean),
    exp.Null: (_ATOM, frozenset(), _read_null),
}
_OPERATORS: dict[type[exp.Expr], str] = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
    exp.NullSafeEQ: "IS NOT DISTINCT FROM",
    exp.NullSafeNEQ: "IS DISTINCT FROM",
    exp.Add: "+",
    exp.Sub: "-",
    exp.Mul: "*",
    exp.Mod: "%",
}
_CONSTRUCTS: dict[type[exp.Expr], str] = {
    exp.Select: "a subquery",
    exp.Subquery: "a subquery",
    exp.Tuple: "a row of several values",
    exp.Concat: "string literals side by side",
    exp.Command: "a statement",
    exp.Block: "several statements",
    exp.Literal: "a literal",
    exp.Column: "a column",
    exp.Anonymous: "a function",
    exp.Star: "*",
    exp.Placeholder: "a parameter",
    exp.Parameter: "a parameter",
    exp.RegexpLike: "a regular expression",
}
