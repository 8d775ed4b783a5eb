"""The tokens of a ``where``, by PostgreSQL's lexical rules, and the wording of refusals.

Anything that supported versions of PostgreSQL read differently is refused by name. PostgreSQL treats every non-ASCII
character as part of a name, even blanks such as U+00A0.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, NoReturn, TypeAlias

from flushtracker.errors import ShapeError

TokenKind: TypeAlias = Literal["word", "name", "string", "number", "symbol", "end"]
QUERY_FORM: Final = "write value [NOT] IN (SELECT column FROM schema.table WHERE condition)"
"""The accepted form of subqueries, as advice."""
MAX_PARENTHESES: Final = 20
_SPACE: Final = re.compile(r"(?:[ \t\n\r\f]+|--[^\n\r]*)+")
_COMMENT: Final = re.compile(r"/\*|\*/")
_WORD: Final = re.compile(r"[A-Za-z_\x80-\U0010ffff][A-Za-z0-9_$\x80-\U0010ffff]*")
_NUMBER: Final = re.compile(r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_AFTER_NUMBER: Final = re.compile(r"[A-Za-z0-9_$.\x80-\U0010ffff]+")
_QUOTED: Final = {
    "'": re.compile(r"'([^']*(?:''[^']*)*)'(?!')"),
    '"': re.compile(r'"((?=[^"]|"")[^"]*(?:""[^"]*)*)"(?!")'),
}
_OPERATOR: Final = re.compile(r"[-+*/<>=~!@#%^&|`?]+")
_COMMENT_IN_OPERATOR: Final = re.compile(r"--|/\*")
# PostgreSQL ends an operator before a sign, unless it has one of these.
_KEEPS_SIGN: Final = re.compile(r"[~!@#%^&|`?]")
_PUNCTUATION: Final = re.compile(r"::|[()\[\],.]")
_OPERATORS: Final = frozenset(["=", "<>", "!=", "<", "<=", ">", ">=", "+", "-", "*", "/", "%", "||", "@>", "<@", "&&"])
_PREFIXES: Final = {
    "e": "a string with backslash escapes, E'...'", "b": "a bit string, B'...'", "x": "a bit string, X'...'",
    "n": "a national string, N'...'",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Token:
    """``text[start:end]`` of a condition. ``value`` is a word in lower case, or the text between quotes.

    A *word* is a name without quotes, or a keyword; a *name* is one in double quotes.
    """

    kind: TokenKind
    value: str
    start: int
    end: int

    def is_symbol(self, *symbols: str) -> bool:
        return self.kind == "symbol" and self.value in symbols

    def is_word(self, *words: str) -> bool:
        return self.kind == "word" and self.value in words


def shorten(text: str) -> str:
    line = " ".join(text.split())
    return f'"{line}"' if len(line) <= 60 else f'"{line[:57]}..."'


def refused(construct: str, advice: str = "use comparisons of columns and literals") -> ShapeError:
    return ShapeError(f"where uses {construct}, which is not supported; {advice}")


def too_deep() -> ShapeError:
    return refused(
        "conditions nested too deeply", f"use at most {MAX_PARENTHESES} levels of parentheses and 100 of operators"
    )


def malformed(text: str, at: int, fact: str) -> ShapeError:
    line, column = text.count("\n", 0, at) + 1, at - (text.rfind("\n", 0, at) + 1) + 1
    near = shorten(text[at : at + 30]) if text[at:].strip() else "the end"
    return ShapeError(
        f"where {shorten(text)} is not one SQL condition: line {line}, column {column}, near {near}: {fact}; correct it"
    )


def tokenize(text: str) -> list[Token]:
    """The tokens, ending with one of kind ``end``; raises ``ShapeError``.

    >>> [token.value for token in tokenize("Größe<-1 /* all */ AND \\"a\\"\\"b\\" = 'it''s'")]
    ['größe', '<', '-', '1', 'and', 'a"b', '=', "it's", '']
    """
    if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
        raise refused("a character that PostgreSQL cannot store", "remove U+0000 and lone surrogates")
    return [*_tokens(text), Token("end", "", len(text), len(text))]


def folded(name: str) -> str:
    """A name without quotes as in the catalog: PostgreSQL folds only ASCII letters."""
    return "".join(letter.lower() if letter.isascii() else letter for letter in name)


def _tokens(text: str) -> Iterator[Token]:
    at = _skip(text, 0)
    while at < len(text):
        token = _token(text, at)
        yield token
        at = _skip(text, token.end)


def _skip(text: str, at: int) -> int:
    """The place after blanks and comments, which may be nested."""
    while True:
        if (space := _SPACE.match(text, at)) is not None:
            at = space.end()
        if not text.startswith("/*", at):
            return at
        start, depth = at, 0
        for mark in _COMMENT.finditer(text, at):
            depth += 1 if mark[0] == "/*" else -1
            at = mark.end()
            if not depth:
                break
        if depth:
            raise malformed(text, start, "the comment has no end")


def _token(text: str, at: int) -> Token:
    first = text[at]
    if (number := _NUMBER.match(text, at)) is not None:
        return _number(text, number)
    if (word := _WORD.match(text, at)) is not None:
        return _word(text, word)
    if first in _QUOTED:
        quoted = _QUOTED[first].match(text, at)
        if quoted is None:
            raise malformed(text, at, f"the {first} has no counterpart, or nothing is between the two")
        return Token("string" if first == "'" else "name", quoted[1].replace(first * 2, first), at, quoted.end())
    if (found := _OPERATOR.match(text, at)) is not None:
        return _operator(found)
    if (mark := _PUNCTUATION.match(text, at)) is not None:
        return Token("symbol", mark[0], at, mark.end())
    if first == ";":
        raise refused("a semicolon", "write one condition, without a semicolon at its end")
    if first == "$":
        raise refused("the operator $, of parameters and dollar quotes", "write a literal in single quotes")
    if first == ":":
        raise refused("the operator :", "write a literal, or :: for a cast")
    raise malformed(text, at, f"PostgreSQL has no use for the character U+{ord(first):04X}")


def _number(text: str, number: re.Match[str]) -> Token:
    if (after := _AFTER_NUMBER.match(text, number.end())) is not None:
        _refuse_blanks(text, after)
        raise refused(f"the number {shorten(number[0] + after[0])}", "write it in decimal digits, and a space after it")
    return Token("number", number[0], number.start(), number.end())


def _word(text: str, word: re.Match[str]) -> Token:
    following = text[word.end() : word.end() + 2]
    if following[:1] == "'" and (prefix := _PREFIXES.get(word[0].lower())) is not None:
        raise refused(prefix, "write a plain literal in single quotes")
    if word[0] in ("U", "u") and following in ("&'", '&"'):
        raise refused("Unicode escapes, U&", "write the characters themselves")
    _refuse_blanks(text, word)
    return Token("word", folded(word[0]), word.start(), word.end())


def _refuse_blanks(text: str, word: re.Match[str]) -> None:
    """Refuse characters that look like blanks but are not."""
    for place, character in enumerate(word[0], word.start()):
        if not character.isascii() and not character.isprintable():
            fact = f"to PostgreSQL, U+{ord(character):04X} is part of a name; write an ordinary space"
            raise malformed(text, place, fact)


def _operator(found: re.Match[str]) -> Token:
    operator = found[0]
    if (comment := _COMMENT_IN_OPERATOR.search(operator)) is not None:
        operator = operator[: comment.start()]
    if not _KEEPS_SIGN.search(operator):
        # The whole may be signs.
        while len(operator) > 1 and operator[-1] in "+-":
            operator = operator[:-1]
    if operator not in _OPERATORS:
        has_sign = operator[-1] in "+-"
        raise refused(
            f"the operator {operator}",
            "put a space before the sign" if has_sign else "use comparisons of columns and literals",
        )
    return Token("symbol", "<>" if operator == "!=" else operator, found.start(), found.start() + len(operator))


def unexpected(text: str, token: Token) -> NoReturn:
    if token.kind == "word" and token.value in _CONSTRUCTS:
        raise refused(_CONSTRUCTS[token.value])
    if token.is_symbol("["):
        raise refused("the operator [")
    if token.is_symbol("%"):
        raise refused("the operator % without a value before it, as in a parameter", "write a literal")
    if token.kind == "string":
        raise refused("string literals side by side, or one after something else", "write one literal")
    raise malformed(text, token.start, "this is not expected here")


_CONSTRUCTS: Final = {
    "at": "AT TIME ZONE", "case": "CASE", "collate": "COLLATE", "operator": "OPERATOR(...)", "overlaps": "OVERLAPS",
    "similar": "SIMILAR TO", "escape": "ESCAPE without LIKE", "select": "a subquery other than with IN",
}  # fmt: skip
