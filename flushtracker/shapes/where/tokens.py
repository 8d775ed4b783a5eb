"""Checks of a ``where`` before sqlglot builds a tree of it, and the wording of refusals.

A tree no longer shows alternative spellings of an operator or function calls that sqlglot resolves to operators, and
there is no tree for nesting too deep for sqlglot's recursion. The tokens show all three.
"""

import re

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
    ["AND", "OR", "NOT", "IN", "BETWEEN", "FROM", "CAST", "IS", "ANY", "ALL", "LOWER", "UPPER"]
)
_MAX_PARENTHESES = 20


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
    depth = prefixes = 0
    for before, token, following in zip([None, *tokens[:-1]], tokens, [*tokens[1:], None], strict=True):
        _check_token(before, token, following)
        depth += {"(": 1, ")": -1}.get(_symbol(token), 0)
        prefixes = prefixes + 1 if token.text.upper() in ("NOT", "-", "+") else 0
        if depth > _MAX_PARENTHESES or prefixes > _MAX_PARENTHESES:
            raise too_deep()


def _symbol(token: Token) -> str:
    quoted = (TokenType.STRING, TokenType.IDENTIFIER)
    return "" if token.token_type in quoted else token.text


def _may_precede_parenthesis(token: Token) -> bool:
    return token.token_type is not TokenType.IDENTIFIER and token.text.upper() in _BEFORE_PARENTHESIS


def _check_token(before: Token | None, token: Token, following: Token | None) -> None:
    kind, name = token.token_type, token.token_type.name
    called = following is not None and _symbol(following) == "("
    if kind is TokenType.SEMICOLON:
        raise refused("several statements", "write a single condition")
    if kind is TokenType.SELECT:
        raise refused("a subquery")
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
