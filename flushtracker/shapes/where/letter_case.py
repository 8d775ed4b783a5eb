"""What ``lower`` and ``upper`` make of a text, without knowing the collation that PostgreSQL uses.

Collations agree on ASCII letters, except those of Turkish, Azeri and Lithuanian, which are not supported here. What
becomes of other letters depends on the collation, and so is compared only with literals that have none: whatever such a
letter becomes, it equals no character of the literal. So it is left as it is. The exceptions are a few letters that may
become ASCII, or several characters: İ becomes i, i with a dot, or stays. A text with one of them has several variants,
and a condition has an outcome only if it is the same for all.
"""

from typing import Literal, TypeAlias

LetterCase: TypeAlias = Literal["lower", "upper"]


def has_other_letters(text: str) -> bool:
    """Whether ``text`` has a letter outside ASCII that differs between upper and lower case."""
    return not text.isascii() and any(not c.isascii() and c.lower() != c.upper() for c in text)


def case_variants(text: str, case: LetterCase) -> tuple[str, ...]:
    """The text in lower or upper case, in each way in which a collation may map its letters.

    >>> case_variants("Éric İ", "lower")
    ('Éric İ', 'Éric i', 'Éric i̇')
    """
    map_case = str.lower if case == "lower" else str.upper
    if text.isascii():
        return (map_case(text),)
    unmapped, simple, full = [], [], []
    for character in text:
        mapped = map_case(character)
        if character.isascii():
            one, many = mapped, mapped
            character = mapped  # noqa: PLW2901
        elif len(mapped) == 1 and not mapped.isascii():
            one, many = character, character
        else:
            one, many = mapped if len(mapped) == 1 else _simple(character), mapped
        unmapped.append(character)
        simple.append(one)
        full.append(many)
    return tuple(dict.fromkeys("".join(variant) for variant in (unmapped, simple, full)))


def _simple(character: str) -> str:
    """The mapping to a single character of a letter that has one to several; İ is the only one with both."""
    return "i" if character == "İ" else character
