"""Reads the leaves of sqlglot's tree, columns and literals, and names the constructs that are not supported."""

import re
from collections.abc import Sequence
from dataclasses import replace

from sqlglot import exp

from flushtracker.shapes.where import sql_values
from flushtracker.shapes.where.tokens import refused, shorten
from flushtracker.shapes.where.tree import ColumnRef, Constant, EnumName, Node, TextCast

# Unquoted, these are not columns but session values.
_SESSION_VALUES = frozenset(
    ["user", "session_user", "current_user", "system_user", "current_role", "current_catalog", "current_schema",
     "current_date", "current_time", "current_timestamp", "localtime", "localtimestamp"]
)  # fmt: skip
NUMBERS = frozenset(number.oid for number in sql_values.TYPES.values() if number.family in ("exact", "float"))
_INTEGER_ARRAYS = frozenset(oid for oid, item in sql_values.ARRAYS.items() if item in NUMBERS)
_ARRAY_ESCAPE = re.compile(r'["\\]')
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
    exp.DataType.Type.TIME: sql_values.TIME,
    exp.DataType.Type.INTERVAL: sql_values.INTERVAL,
}


def name_of(node: exp.Expr) -> str:
    kind = type(node)
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", kind.__name__).upper()
    return OPERATORS.get(kind) or _CONSTRUCTS.get(kind) or words


def read_literal(node: exp.Expr, _depth: int) -> Node:
    text = str(node.this)
    if node.is_string:
        return Constant(text)
    try:
        return Constant(text, sql_values.number_type(text).oid)
    except ValueError as error:
        raise refused(f"the number {shorten(text)}", "write it in digits within the range of numeric") from error


def read_column(node: exp.Expr, _depth: int) -> Node:
    return ColumnRef(column_name(node))


def column_name(node: exp.Expr) -> str:
    identifier = node.this
    if node.args.get("table"):
        raise refused("a column qualified by a table", "write only the name of the column")
    if type(identifier) is not exp.Identifier:
        raise refused(name_of(identifier))
    name = folded(identifier)
    if name in _SESSION_VALUES and not identifier.args.get("quoted"):
        raise refused(f"{name}, a session value", f'for a column of that name, write "{name}" in double quotes')
    return name


def folded(identifier: exp.Identifier) -> str:
    """The name in the catalog: PostgreSQL folds only ASCII letters, and only of names without quotes."""
    name = str(identifier.this)
    if identifier.args.get("quoted"):
        return name
    return "".join(letter.lower() if letter.isascii() else letter for letter in name)


def read_cast(operand: Node, target: exp.DataType) -> Node:
    oid, enum = _cast_oid(target), _enum_name(target)
    if oid is None and enum is None:
        raise refused(f"a cast to {target.sql('postgres')}", "cast to a plain type without a length")
    if not isinstance(operand, Constant):
        if oid in (sql_values.TEXT, sql_values.VARCHAR):
            return TextCast(operand)
        raise refused(
            "a cast of something that is not a literal", "cast the literal that it is compared with, or cast to text"
        )
    if {operand.type_oid, oid} <= _INTEGER_ARRAYS:
        return Constant(operand.text, oid)
    is_number = {operand.type_oid, oid} <= NUMBERS
    if not (operand.is_untyped or is_number or (operand.type_oid, operand.enum) == (oid, enum)):
        raise refused("a cast of a literal of another type", "write the literal in quotes")
    return Constant(operand.text, oid, enum)


def array_literal(items: Sequence[Node], *, is_cast: bool) -> Constant:
    """``ARRAY[...]`` of literals as the literal that it equals; without a type of its own if a cast gives it one."""
    advice = "write an array of integers or of strings, or a quoted literal, as in '{1,2}'"
    constants = [item for item in items if isinstance(item, Constant)]
    oids = {sql_values.TEXT if item.type_oid is None else item.type_oid for item in constants if item.text is not None}
    if len(constants) < len(items) or any(item.enum for item in constants):
        raise refused("ARRAY[...] with something other than plain literals", advice)
    if oids == {sql_values.INT4, sql_values.INT8}:
        oids = {sql_values.INT8}
    array_oids = [oid for oid, item_oid in sql_values.ARRAYS.items() if {item_oid} == oids]
    if not array_oids and not (is_cast and not oids):
        raise refused("ARRAY[...] of this type, or of several", advice)
    texts = ["NULL" if item.text is None else _ARRAY_ESCAPE.sub(r"\\\g<0>", item.text) for item in constants]
    quoted = [text if item.text is None else f'"{text}"' for item, text in zip(constants, texts, strict=True)]
    is_open = is_cast and oids <= {sql_values.TEXT} and all(item.type_oid is None for item in constants)
    return Constant("{" + ",".join(quoted) + "}", None if is_open else array_oids[0])


def _enum_name(target: exp.DataType) -> EnumName | None:
    """The name of a type that is not built in, or of an array of such a type in one dimension."""
    if target.this is exp.DataType.Type.ARRAY and len(target.expressions) == 1:
        item = target.expressions[0]
        name = _enum_name(item) if isinstance(item, exp.DataType) else None
        return None if name is None or name.is_array else replace(name, is_array=True)
    kind = target.args.get("kind")
    if target.this is not exp.DataType.Type.USERDEFINED or target.expressions:
        return None
    if type(kind) is exp.Identifier:
        return EnumName(None, folded(kind))
    if type(kind) is exp.Dot and type(kind.this) is exp.Identifier and type(kind.expression) is exp.Identifier:
        return EnumName(folded(kind.this), folded(kind.expression))
    return None


def _cast_oid(target: exp.DataType) -> int | None:
    """The OID of a type without a length, or of an array of such a type in one dimension."""
    items = target.expressions
    if target.this is exp.DataType.Type.ARRAY and len(items) == 1 and isinstance(items[0], exp.DataType):
        item_oid = _CAST_TYPES.get(items[0].this) if _is_plain(items[0]) else None
        return next((oid for oid, item in sql_values.ARRAYS.items() if item == item_oid), None)
    return _CAST_TYPES.get(target.this) if _is_plain(target) else None


def _is_plain(target: exp.DataType) -> bool:
    return not any(part for name, part in target.args.items() if name != "this")


def read_boolean(node: exp.Expr, _depth: int) -> Node:
    return Constant("t" if node.this else "f", sql_values.BOOLEAN)


def read_null(_node: exp.Expr, _depth: int) -> Node:
    return Constant(None)


OPERATORS: dict[type[exp.Expr], str] = {
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
    exp.Div: "/",
    exp.Mod: "%",
    exp.DPipe: "||",
    exp.ArrayContainsAll: "@>",
    exp.ArrayContainedBy: "<@",
    exp.ArrayOverlaps: "&&",
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
    exp.Any: "ANY(...)",
    exp.RegexpLike: "a regular expression",
}
