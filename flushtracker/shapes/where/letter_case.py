"""Map a text with ``lower`` or ``upper``, without knowing the collation that PostgreSQL uses.

Collations agree on ASCII letters, except those of Turkish, Azeri and Lithuanian, which are refused
(:mod:`~.case_probes`). They differ on other letters, so a text is compared only with literals without such letters.
Whatever such a letter becomes, it equals no character of the literal, and is left unchanged. The exceptions are a few
letters that may become ASCII, or several characters: İ becomes i, i with a dot, or stays. A text with one of them has
several variants, and a condition has an outcome only if it is the same for all.
"""

import re
import unicodedata
from functools import lru_cache
from typing import Literal, TypeAlias

LetterCase: TypeAlias = Literal["lower", "upper"]


def has_other_letters(text: str) -> bool:
    """Whether ``text`` has a letter outside ASCII that may differ between upper and lower case on some server.

    That includes letters with only one case, or none, in Python's Unicode, since the server's may be newer.
    """
    return not text.isascii() and any(not c.isascii() and _may_have_case(c) for c in text)


def _may_have_case(character: str) -> bool:
    return character.lower() != character.upper() or unicodedata.category(character) in _CASED


def case_variants(text: str, case: LetterCase) -> tuple[str, ...]:
    """The text in lower or upper case, in each way that a collation may map its letters.

    >>> case_variants("Éric İ", "lower")
    ('Éric İ', 'Éric i', 'Éric i̇')
    """
    map_case = str.lower if case == "lower" else str.upper
    if text.isascii():
        return (map_case(text),)
    unmapped = text.translate(_ASCII[case])
    undecided = _undecided(case)
    if not undecided.search(text):
        return (unmapped,)
    simple = undecided.sub(lambda found: _single(found[0], map_case(found[0])), unmapped)
    full = undecided.sub(lambda found: map_case(found[0]), unmapped)
    return tuple(dict.fromkeys((unmapped, simple, full)))


_CASED = frozenset(["Lu", "Ll", "Lt", "Cn"])
_UPPER = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_ASCII: dict[LetterCase, dict[int, int]] = {
    "lower": str.maketrans(_UPPER, _UPPER.lower()),
    "upper": str.maketrans(_UPPER.lower(), _UPPER),
}


@lru_cache
def _undecided(case: LetterCase) -> re.Pattern[str]:
    """Matches the letters outside ASCII that may become ASCII, or several characters."""
    map_case = str.lower if case == "lower" else str.upper
    letters = [character for character in map(chr, range(0x80, 0x110000)) if character.isalpha()]
    return re.compile(f"[{''.join(c for c in letters if len(map_case(c)) > 1 or map_case(c).isascii())}]")


def _single(character: str, mapped: str) -> str:
    """The mapping to one character; among the letters that also map to several, only İ maps to ASCII."""
    return mapped if len(mapped) == 1 else "i" if character == "İ" else character
