"""The patterns of LIKE: ``%`` is any text, ``_`` any one character, and ``\\`` takes the next character as it is."""

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LikePattern:
    r"""A pattern cut at its ``%`` into pieces of fixed length; each is looked for after the one before.

    Taking the leftmost place for each piece is enough, so no text takes longer than its length times the pattern's.

    >>> LikePattern.parse(r"50\%_%").matches("50%\nmore")
    True
    """

    pieces: tuple[re.Pattern[str], ...]
    last_length: int

    @classmethod
    def parse(cls, pattern: str, *, ignore_case: bool = False) -> "LikePattern":
        """Raises ``ValueError`` for a pattern that ends in its escape character.

        With ``ignore_case``, also for a letter outside ASCII: what its other case is depends on the collation of the
        database. A text may hold any letters: those outside ASCII are taken as they are, and match no ASCII letter.
        """
        pieces: list[list[str]] = [[]]
        characters = iter(pattern)
        for character in characters:
            if character == "%":
                pieces.append([])
            elif character == "_":
                pieces[-1].append(".")
            elif character == "\\":
                if (escaped := next(characters, None)) is None:
                    raise ValueError("a pattern that ends in its escape character")
                pieces[-1].append(re.escape(escaped))
            else:
                pieces[-1].append(re.escape(character))
        if ignore_case and any(c.lower() != c.upper() for c in pattern if not c.isascii()):
            raise ValueError("a letter outside ASCII, whose other case depends on the database's collation")
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
