"""Checks of a ``where`` before sqlglot builds a tree of it, and the wording of refusals.

A tree no longer shows alternative spellings of an operator or function calls that sqlglot resolves to operators, and
there is no tree for nesting too deep for sqlglot's recursion. The tokens show all three.
"""

import re

from sqlglot.dialects.postgres import Postgres
from sqlglot.errors import SqlglotError
from sqlglot.tokenizer_core import Token, TokenType

from flushtracker.errors import ShapeError

_SYMBOLS = frozenset(
    [
        "=",
        "<>",
        "!=",
        "<",
        "<=",
        ">",
        ">=",
        "+",
        "-",
        "*",
        "/",
        "%",
        "(",
        ")",
        ",",
        "::",
        ".",
        "]",
        "||",
        "@>",
        "<@",
        "&&",
    ]
)
_WORD = re.compile(r"[^\W\d][\w$]*(?:\s+[^\W\d][\w$]*)*")
_BEFORE_PARENTHESIS = frozenset(
    ["AND", "OR", "NOT", "IN", "BETWEEN", "FROM", "WHERE", "CAST", "IS", "ANY", "ALL", "LOWER", "UPPER"]
)
# The names that PostgreSQL has for the types of casts. sqlglot knows those of other databases as well, such as STRING.
_TYPES = frozenset(
    ["BIGINT", "BOOL", "BOOLEAN", "CHAR VARYING", "CHARACTER VARYING", "DATE", "DEC", "DECIMAL", "DOUBLE PRECISION",
     "FLOAT", "FLOAT4", "FLOAT8", "INT", "INT2", "INT4", "INT8", "INTEGER", "INTERVAL", "NUMERIC", "REAL", "SMALLINT",
     "TEXT", "TIME", "TIMESTAMP", "TIMESTAMPTZ", "UUID", "VARCHAR"]
)  # fmt: skip
# In quotes, only the names that the catalog has: "integer", for example, is no type.
_CATALOG_TYPES = frozenset(
    ["bool", "date", "float4", "float8", "int2", "int4", "int8", "interval", "numeric", "text", "time", "timestamp",
     "timestamptz", "uuid", "varchar"]
)  # fmt: skip
# PostgreSQL reads these and a sign right after them as one operator.
_ABSORBING = re.compile(r"[!@%&|]")
_BEFORE_TYPE = (TokenType.DCOLON, TokenType.ALIAS)
_MAX_PARENTHESES = 20
QUERY_FORM = "write value [NOT] IN (SELECT column FROM schema.table WHERE condition)"
"""What is accepted of subqueries, as advice."""


def shorten(text: str) -> str:
    """``text`` on one line, for a message."""
    line = " ".join(text.split())
    return f'"{line}"' if len(line) <= 60 else f'"{line[:57]}..."'


def refused(construct: str, advice: str = "use comparisons of columns and literals") -> ShapeError:
    return ShapeError(f"where uses {construct}, which is not supported; {advice}")


def too_deep() -> ShapeError:
    return refused(
        "conditions nested too deeply", f"use at most {_MAX_PARENTHESES} levels of parentheses and 100 of operators"
    )


def place(error: SqlglotError) -> str:
    details = getattr(error, "errors", None)
    if not details or not details[0].get("line"):
        return "it cannot be parsed to its end"
    found = details[0]
    return f"line {found['line']}, column {found['col']}, near {shorten(str(found.get('highlight')))}"


def check_tokens(tokens: list[Token]) -> None:
    """Refuse symbols that a tree would rename, calls that it would resolve, and nesting too deep for sqlglot."""
    while tokens and tokens[-1].token_type is TokenType.SEMICOLON:
        tokens = tokens[:-1]
    if not tokens:
        raise ShapeError("where is empty; leave it out to match every row")
    depth, prefixes, opening = 0, 0, tokens[0]
    for before, token, following in zip([None, *tokens[:-1]], tokens, [*tokens[1:], None], strict=True):
        if token.token_type is TokenType.SELECT and _symbol(opening).upper() != "IN":
            raise refused("a subquery other than with IN", QUERY_FORM)
        if token.token_type is TokenType.EXISTS:
            raise refused("EXISTS(...)", QUERY_FORM)
        opening = before if before is not None and _symbol(token) == "(" else token
        _check_token(before, token, following)
        if following is not None:
            _check_spacing(token, following)
        depth += {"(": 1, ")": -1}.get(_symbol(token), 0)
        prefixes = prefixes + 1 if token.text.upper() in ("NOT", "-", "+") else 0
        if depth > _MAX_PARENTHESES or prefixes > _MAX_PARENTHESES:
            raise too_deep()


def _symbol(token: Token) -> str:
    quoted = (TokenType.STRING, TokenType.IDENTIFIER)
    return "" if token.token_type in quoted else token.text


def _may_precede_parenthesis(token: Token) -> bool:
    return token.token_type is not TokenType.IDENTIFIER and token.text.upper() in _BEFORE_PARENTHESIS


def _check_spacing(token: Token, following: Token) -> None:
    """Refuse what PostgreSQL reads as other tokens, or as none."""
    pair = f"{token.text}{following.text}"
    if _symbol(token) == "," and _symbol(following) == ")":
        raise refused("a comma without a value after it", "leave it out")
    if token.end + 1 != following.start:
        return
    if token.token_type is TokenType.NUMBER and _WORD.match(_symbol(following)):
        raise refused(shorten(pair), "put a space after the number")
    if _symbol(following) in ("+", "-") and _ABSORBING.search(_symbol(token)):
        raise refused(f"the operator {pair}", "put a space before the sign")


def _check_token(before: Token | None, token: Token, following: Token | None) -> None:
    _check_type(before, token, following)
    kind, name = token.token_type, token.token_type.name
    called = following is not None and _symbol(following) == "("
    if kind is TokenType.SEMICOLON:
        raise refused("several statements", "write a single condition")
    if kind is TokenType.CASE:
        raise refused("CASE")
    if name.endswith("STRING") and kind is not TokenType.STRING:
        raise refused(f"a {name.replace('_', ' ').lower()}", "write a plain literal in single quotes")
    if kind is TokenType.IDENTIFIER or _WORD.fullmatch(token.text):
        if called and kind is not TokenType.STRING and not _may_precede_parenthesis(token):
            raise refused(f"{token.text}(...)", "use neither functions nor type lengths")
    elif token.text == "[":
        # An array type, as in ::text[], or ARRAY[...]; anything else is a subscript.
        is_type = following is not None and _symbol(following) == "]"
        if not is_type and (before is None or _symbol(before).upper() != "ARRAY"):
            raise refused("the operator [")
    elif kind not in (TokenType.STRING, TokenType.NUMBER) and token.text not in _SYMBOLS:
        raise refused(f"the operator {token.text}")


def _check_type(before: Token | None, token: Token, following: Token | None) -> None:
    """Refuse what PostgreSQL does not accept as a type, or before a literal as its type."""
    after = None if following is None else following.token_type
    if token.token_type is TokenType.ARRAY and after is not TokenType.L_BRACKET:
        raise refused("ARRAY without [...]", "write an array type as in ::int[]")
    if _symbol(token) == "]" and after is TokenType.STRING:
        raise refused("an array type before its literal", "write the type after the literal, as in '{1,2}'::int[]")
    is_cast = before is not None and before.token_type in _BEFORE_TYPE
    if token.token_type is TokenType.IDENTIFIER and is_cast and token.text.upper() in _TYPES:
        if token.text not in _CATALOG_TYPES:
            raise refused(f'a cast to "{token.text}"', "write the type's name without quotes")
        return
    if token.token_type not in Postgres.Parser.TYPE_TOKENS:
        return
    if after is TokenType.NUMBER:
        raise refused(f"{token.text.upper()} before a number", "write the type after the number, as in 1::int")
    is_type = after is TokenType.STRING or is_cast
    if is_type and " ".join(token.text.upper().split()) not in _TYPES:
        raise refused(
            f"a cast to {token.text.upper()}", "use PostgreSQL's name of a type; a type of your own needs quotes"
        )
