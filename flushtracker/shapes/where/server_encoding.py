"""How a condition depends on the encoding of the server's database.

The server compares texts in its own encoding, capture in UTF-8. In most encodings each character corresponds to exactly
one in UTF-8, so both agree. The exceptions:

- SQL_ASCII has no characters: the server counts bytes, and may map the case of each byte.
- In EUC_JP and EUC_TW some characters have two codes, which become one character in UTF-8. In EUC_JIS_2004 some become
  two characters, as do others. None of these is in ASCII, so a text is ASCII on both sides or on neither.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from flushtracker.shapes.where.column_types import type_of
from flushtracker.shapes.where.sql_values import TEXTS, SqlType
from flushtracker.shapes.where.tree import (
    AnyOf,
    CaseMapping,
    ColumnRef,
    Comparison,
    Constant,
    IsNull,
    Like,
    Membership,
    Node,
    Query,
    children,
)
from flushtracker.wal.changes import Relation

SQL_ASCII: Final = "SQL_ASCII"
AMBIGUOUS: Final = frozenset(["EUC_JIS_2004", "EUC_JP", "EUC_TW"])
"""Encodings in which different texts may become the same in UTF-8."""
_UNCOUNTED: Final = frozenset([SQL_ASCII, "EUC_JIS_2004"])
"""Encodings whose number of characters differs from UTF-8."""
_CONVERT: Final = "or convert the database to UTF8"


def encoding_reasons(condition: Node, relation: Relation, encoding: str) -> Iterator[str]:
    """Why the server, whose database has this encoding, may judge rows of ``relation`` differently from capture."""
    if encoding in _UNCOUNTED and any(isinstance(node, Like) and _counts(node) for node in within(condition)):
        yield f"uses _ in LIKE, of which {encoding} counts other characters than UTF-8; use %, {_CONVERT}"
    if encoding == SQL_ASCII and any(_maps_case(node) for node in within(condition)):
        yield f"ignores or maps case, which {encoding} does byte by byte; compare text as it is stored, {_CONVERT}"
    if encoding in AMBIGUOUS and (columns := _ambiguous(condition, relation)):
        fact = f"compares column {', '.join(columns)}, of which different texts of {encoding} may be one in UTF-8"
        yield f"{fact}; compare it with literals in ASCII alone, {_CONVERT}"


def may_have_other_letters(sql_type: SqlType | None) -> bool:
    """Whether values of the type (``None`` if unknown) may have characters outside ASCII."""
    if sql_type is None:
        return True
    if sql_type.item is not None:
        return may_have_other_letters(sql_type.item)
    return sql_type.family in TEXTS or any(not label.isascii() for label in sql_type.labels)


def within(node: Node) -> Iterator[Node]:
    yield node
    for child in _children(node):
        yield from within(child)


def _children(node: Node) -> Iterator[Node]:
    """The children without subqueries, which are conditions on other tables."""
    return (child for child in children(node) if not isinstance(child, Query))


def _counts(like: Like) -> bool:
    return like.pattern is not None and like.pattern.has_single_wildcard


def _maps_case(node: Node) -> bool:
    return isinstance(node, CaseMapping) or (isinstance(node, Like) and node.ignore_case)


def _ambiguous(condition: Node, relation: Relation) -> list[str]:
    """The text columns that are compared with more than ASCII literals."""
    types = {column.name: type_of(column) for column in relation.columns}
    read = {node.name for node in _compared(condition) if isinstance(node, ColumnRef)}
    return sorted(name for name in read if name in types and may_have_other_letters(types[name]))


def _compared(node: Node) -> Iterator[Node]:
    """The nodes within ``node``, except tests whose outcome non-ASCII characters cannot change."""
    match node:
        case IsNull(ColumnRef()):
            return
        case Comparison(_, left, right) if _is_plain([left, right]):
            return
        case AnyOf(left, right) if _is_plain([left, right]):
            return
        case Membership(operand, items) if _is_plain([operand, *items]):
            return
        case Like(operand, pattern) if _is_plain([operand]) and (pattern is None or pattern.is_ascii):
            return
    yield node
    for child in _children(node):
        yield from _compared(child)


def _is_plain(operands: Sequence[Node]) -> bool:
    """Whether the operands are one column, in any case mapping, and ASCII literals."""
    others = [each for each in operands if not isinstance(each, Constant)]
    inner = [each.operand if isinstance(each, CaseMapping) else each for each in others]
    literals = [each for each in operands if isinstance(each, Constant)]
    is_ascii = all((each.text or "").isascii() for each in literals)
    return is_ascii and len(inner) <= 1 and all(isinstance(each, ColumnRef) for each in inner)
