"""A ``where`` as a server takes it: with the schema of each enum that a cast names, whatever the ``search_path``."""

from typing import Final

import sqlglot
from sqlglot.tokenizer_core import Token, TokenType

from flushtracker.wal.changes import Relation

_NAMES: Final = frozenset([TokenType.VAR, TokenType.IDENTIFIER])
_BEFORE_TYPE: Final = frozenset([TokenType.DCOLON, TokenType.ALIAS])


def server_text(where: str, relation: Relation) -> str:
    """``where``, which is valid for ``relation``, for a session with an empty ``search_path``; else as it is written.

    A name without a schema is that of a column's type (:meth:`~.operands.Operands.enum`), which may be in any.
    """
    enums = {column.user_type.enum for column in relation.columns if column.user_type is not None}
    schemas = {enum.name: enum.schema for enum in enums if enum is not None}
    if not schemas:
        return where
    tokens = sqlglot.tokenize(where, dialect="postgres")
    names = [
        token
        for before, token, after in zip(tokens, tokens[1:], [*tokens[2:], None], strict=False)
        if before.token_type in _BEFORE_TYPE and token.token_type in _NAMES and not _is_dot(after)
    ]
    text = where
    for token in reversed(names):
        name = token.text if token.token_type is TokenType.IDENTIFIER else token.text.lower()
        if name in schemas:
            text = f"{text[: token.start]}{_quoted(schemas[name])}.{_quoted(name)}{text[token.end + 1 :]}"
    return text


def _is_dot(token: Token | None) -> bool:
    return token is not None and token.token_type is TokenType.DOT


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
