"""Mutates the tokens and blanks of conditions: much of it is refused, and some of it means something else than before.

Every keyword of the server occurs, and what other databases, or only some readers of SQL, accept.
"""

import re
from collections.abc import Sequence
from random import Random
from typing import Final

_PIECES: Final = re.compile(
    r"""\s+|'(?:[^']|'')*'|"(?:[^"]|"")*"|[A-Za-z_][\w$]*|[0-9.]+(?:[eE][+-]?[0-9]+)?|::|.""", re.S
)
_INSERTED: Final = (
    *("+", "-", "*", "/", "%", "=", "<", ">", "<>", "!=", "<=", ">=", "||", "@>", "<@", "&&"),
    *("::", ".", ",", "(", ")", "[", "]", ";", "^", "~", "!", "?", "$", "$1", ":", ":="),
    *("=>", "==", "<=>", "|", "&", "#", "{#", "#}", "`", "\\"),
    *("NOT", "AND", "OR", "IS", "IS NULL", "IS UNKNOWN", "IS NOT UNKNOWN", "NOT NULL", "ISNULL", "NOTNULL", "IN"),
    *("IS TRUE", "IS NOT DISTINCT FROM", "BETWEEN", "SYMMETRIC", "LIKE", "ILIKE", "ESCAPE", "ESCAPE '!'", "ANY", "ALL"),
    *("ARRAY", "ARRAY[1]", "CAST", "AS", "NULL", "TRUE", "FALSE", "lower", "upper", "(1)", "(", ")", "AS int", "[]"),
    *("::text", "::int", "::real", "::mood", "::check", "::numeric", "::text[]", "text", "int", "date", "interval"),
    *("double precision", "time with time zone", "timestamp without time zone", "char", "float", "decimal", "string"),
    *("'a'", "'1'", "'0.1'", "''", "'t'", "E'a'", "U&'a'", "N'a'", "B'1'", "X'1F'", "$$a$$", '"t1"', '"T1"', '"text"'),
    *("0", "1", "1.", ".5", "1e3", "1e", "0x1F", "1_000", "5::int", "+5", "-5", "+'0.1'", "-'1'::int", "- -1", "1 1"),
    *("t1", "j1", "b1", "n1", "r1", "m1", "aj1", "T1", "t1.t1", "pg_temp.t1", "in", "order", "user", "check", "table"),
    *("/* c */", "/* /* n */ */", "-- c\n", "--", "/*", "*/", "/*/", "\u00a0", "\u2003", "\u2028", "\u3000", "\ufeff"),
    *("\v", "\f", "\r", "\n", "\t", " ", "\u200b", "é", "COLLATE \"C\"", "AT TIME ZONE 'UTC'", "OPERATOR(=)", "ROW"),
)  # fmt: skip


_WITHIN: Final = (
    *(" ", "\v", "\f", "\n", "\u00a0", "\u2003", "\x1f", "\x85", "-", "+", "0", "1", ".", "e", "ı", "İ"),
    *("inf", "{", "}", ","),
)
"""Text that is inserted into literals; types differ in the blanks that they ignore."""


def mutated(rng: Random, condition: str, keywords: Sequence[str]) -> str:
    """The condition with one to three pieces deleted, repeated, exchanged, replaced, inserted, joined, or extended."""
    pieces = _PIECES.findall(condition)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        at = rng.randrange(len(pieces)) if pieces else 0
        found = rng.choice(keywords) if rng.random() < 0.15 else rng.choice(_INSERTED)
        match rng.randrange(7):
            case 0:
                del pieces[at : at + 1]
            case 1:
                pieces[at:at] = [*pieces[at : at + 1], rng.choice(["", " "])]
            case 2:
                other = rng.randrange(len(pieces)) if pieces else 0
                pieces[at : at + 1], pieces[other : other + 1] = pieces[other : other + 1], pieces[at : at + 1]
            case 3:
                pieces[at : at + 1] = [found]
            case 4:
                pieces[at:at] = [rng.choice(["", " "]), found, rng.choice(["", " "])]
            case 5:
                blanks = [place for place, piece in enumerate(pieces) if piece.isspace()]
                if blanks:
                    pieces[rng.choice(blanks)] = rng.choice(
                        ["", "", "\n", "/**/", "--\n", "\u00a0", "\u3000", "\f", "\v"]
                    )
            case 6:
                _insert_into_literal(rng, pieces)
    return "".join(pieces)


def _insert_into_literal(rng: Random, pieces: list[str]) -> None:
    literals = [place for place, piece in enumerate(pieces) if piece.startswith("'")]
    if literals:
        place = rng.choice(literals)
        text = pieces[place]
        inside = rng.choice([1, len(text) - 1, rng.randrange(1, len(text))])
        pieces[place] = text[:inside] + rng.choice(_WITHIN) + text[inside:]
