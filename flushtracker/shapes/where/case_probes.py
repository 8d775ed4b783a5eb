"""Checks that a server's ``lower`` and ``upper`` under a collation match what conditions assume here.

:func:`probes` returns texts to map, and :func:`is_expected` checks the server's result against the assumptions of
:func:`~.letter_case.case_variants`:

- letters in ASCII become letters in ASCII, as everywhere but in Turkish, Azeri and the like;
- another letter stays one character that no literal may have, or becomes one of its variants;
- everything else stays unchanged, as does the number of characters (Lithuanian adds dots, Greek removes accents).

The probes are each letter on its own, letters with a mark after them, which some languages map together, and all other
characters up to U+1FFFF. Nothing above that has a case.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from flushtracker.shapes.where.letter_case import LetterCase, case_variants, has_other_letters

_END: Final = 0x20000
_SURROGATES: Final = range(0xD800, 0xE000)
_BLOCK: Final = 1024
# Letters before which known languages map marks, and others.
_MARKED: Final = "aAzZiIjJ\u012f\u012e\u03b1\u0391\u03b9\u0399\u03c9\u03a9\u0443\u0423"
_MARKS: Final = range(0x300, 0x370)


@lru_cache(maxsize=1)
def probes() -> tuple[str, ...]:
    """The texts to map, without NUL characters."""
    characters = [chr(code) for code in range(1, _END) if code not in _SURROGATES]
    letters = [each for each in characters if each.lower() != each.upper()]
    marked = [letter + chr(mark) for letter in _MARKED for mark in _MARKS]
    return (*letters, *marked, *_blocks(sorted(set(characters) - set(letters))))


def _blocks(characters: list[str]) -> Iterator[str]:
    for start in range(0, len(characters), _BLOCK):
        yield "".join(characters[start : start + _BLOCK])


def is_expected(text: str, mapped: str, case: LetterCase) -> bool:
    """Whether the server may map ``text``, one of the probes, to ``mapped``.

    >>> is_expected("I", "ı", "lower"), is_expected("ß", "SS", "upper"), is_expected("é", "É", "upper")
    (False, True, True)
    """
    if len(text) == 1:
        return _is_expected(text, mapped, case)
    return len(text) == len(mapped) and all(
        before == after or _is_expected(before, after, case) for before, after in zip(text, mapped, strict=True)
    )


def _is_expected(character: str, mapped: str, case: LetterCase) -> bool:
    if character.isascii() or not has_other_letters(character):
        return (mapped,) == case_variants(character, case)
    is_other = len(mapped) == 1 and has_other_letters(mapped)
    return is_other or mapped in case_variants(character, case)
