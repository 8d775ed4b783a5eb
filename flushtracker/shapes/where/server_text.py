"""Rewrites a ``where`` so that a server can evaluate it with only ``pg_catalog`` in its ``search_path``.

Columns are quoted, because a ``where`` may use an SQL keyword, such as ``order``, as the name of a column. A cast to an
enum gets the type's schema.
"""

from collections.abc import Iterator
from typing import Final

import sqlglot
from sqlglot import exp
from sqlglot.tokenizer_core import Token, TokenType

from flushtracker.shapes.item_key import quoted
from flushtracker.shapes.where.leaves import folded
from flushtracker.wal.changes import Relation

_NAMES: Final = frozenset([TokenType.VAR, TokenType.IDENTIFIER])
_END: Final = TokenType.SEMICOLON
_BEFORE_TYPE: Final = frozenset([TokenType.DCOLON, TokenType.ALIAS])


def server_text(where: str, relation: Relation) -> str:
    """``where``, which is valid for ``relation``, with each column quoted, and each enum's schema.

    A name without a schema is that of a column's type (:meth:`~.operands.Operands.enum`), which may be in any.
    """
    text = where = _without_end(where)
    for start, end, name in sorted([*_columns(where), *_enums(where, relation)], reverse=True):
        text = f"{text[:start]}{name}{text[end + 1 :]}"
    return text


def _without_end(where: str) -> str:
    """The condition without a semicolon at its end."""
    ends = (token.start for token in sqlglot.tokenize(where, dialect="postgres") if token.token_type is _END)
    return where[: next(ends, len(where))]


def _columns(where: str) -> Iterator[tuple[int, int, str]]:
    """The start and end of each unquoted column, and its name in the catalog, quoted."""
    tree = sqlglot.parse_one(where, into=exp.Condition, dialect="postgres")
    for column in tree.find_all(exp.Column):
        identifier = column.this
        if isinstance(identifier, exp.Identifier) and not identifier.quoted:
            yield identifier.meta["start"], identifier.meta["end"], quoted(folded(identifier))


def _enums(where: str, relation: Relation) -> Iterator[tuple[int, int, str]]:
    """The start and end of each enum that is named without a schema, and its name with the schema."""
    enums = {column.user_type.enum for column in relation.columns if column.user_type is not None}
    schemas = {enum.name: enum.schema for enum in enums if enum is not None}
    tokens = sqlglot.tokenize(where, dialect="postgres")
    for before, token, after in zip(tokens, tokens[1:], [*tokens[2:], None], strict=False):
        if before.token_type in _BEFORE_TYPE and token.token_type in _NAMES and not _is_dot(after):
            name = token.text if token.token_type is TokenType.IDENTIFIER else token.text.lower()
            if name in schemas:
                yield token.start, token.end, f"{quoted(schemas[name])}.{quoted(name)}"


def _is_dot(token: Token | None) -> bool:
    return token is not None and token.token_type is TokenType.DOT
