"""LIKE patterns: ``%`` matches any text, ``_`` any one character, and an escape makes the next character literal."""

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LikePattern:
    r"""A pattern split at ``%`` into pieces of fixed length; each is searched for after the previous one.

    The leftmost match of each piece is sufficient, so the time is bounded by the text's length times the pattern's.

    >>> LikePattern.parse(r"50\%_%").matches("50%\nmore")
    True
    """

    pieces: tuple[re.Pattern[str], ...]
    last_length: int

    @classmethod
    def parse(cls, pattern: str, *, ignore_case: bool = False, escape: str = "\\") -> "LikePattern":
        """Parse a pattern; raises ``ValueError`` if it ends in its escape character.

        ``ignore_case`` applies to ASCII letters only. ``escape`` is one character, or empty for none.
        """
        pieces: list[list[str]] = [[]]
        characters = iter(pattern)
        for character in characters:
            if character == escape:
                if (escaped := next(characters, None)) is None:
                    raise ValueError("a pattern that ends in its escape character")
                pieces[-1].append(re.escape(escaped))
            elif character == "%":
                pieces.append([])
            elif character == "_":
                pieces[-1].append(".")
            else:
                pieces[-1].append(re.escape(character))
        flags = re.DOTALL | (re.IGNORECASE | re.ASCII if ignore_case else 0)
        return cls(tuple(re.compile("".join(piece), flags) for piece in pieces), len(pieces[-1]))

    def matches(self, text: str) -> bool:
        first, last = self.pieces[0], self.pieces[-1]
        if len(self.pieces) == 1:
            return first.fullmatch(text) is not None
        if not (found := first.match(text)):
            return False
        end = found.end()
        for piece in self.pieces[1:-1]:
            if not (found := piece.search(text, end)):
                return False
            end = found.end()
        start_of_last = len(text) - self.last_length
        return start_of_last >= end and last.fullmatch(text, start_of_last) is not None
