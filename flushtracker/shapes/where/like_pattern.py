"""LIKE patterns: ``%`` matches any text, ``_`` any one character, and an escape makes the next character literal."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile

_LITERAL = re.compile(r"\\.", re.DOTALL)
"""A character that ``re.escape`` has escaped."""
_RUN = re.compile(r"\\.|\.{2,}", re.DOTALL)
"""Such a character, or a run of wildcards."""


@dataclass(frozen=True, slots=True)
class LikePattern:
    r"""A pattern split at ``%`` into pieces of fixed length; each is searched for after the previous one.

    ``pieces`` are regular expressions, compiled only for a matcher: of a million patterns, most are never matched.
    Every text that matches starts with ``prefix``, which is empty if that is not known.

    >>> LikePattern.parse(r"50\%_%").matches("50%\nmore")
    True
    >>> LikePattern.parse(r"50\%_%").prefix
    '50%'
    """

    pieces: tuple[str, ...]
    flags: re.RegexFlag
    last_length: int
    prefix: str

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
        flags = re.DOTALL | (re.IGNORECASE | re.ASCII if ignore_case else re.RegexFlag(0))
        # An escaped character is its own last character.
        prefix = "".join(piece[-1] for piece in takewhile(lambda piece: piece != ".", pieces[0]))
        # Clients' handles have a digest of these.
        expressions = tuple("".join(piece) for piece in pieces)
        return cls(expressions, flags, len(pieces[-1]), "" if ignore_case else prefix)

    @property
    def has_single_wildcard(self) -> bool:
        r"""Whether it has a ``_`` that is not escaped, so that it counts characters.

        >>> LikePattern.parse(r"a\_.%").has_single_wildcard, LikePattern.parse(r"a\__").has_single_wildcard
        (False, True)
        """
        return any("." in _LITERAL.sub("", piece) for piece in self.pieces)

    @property
    def is_ascii(self) -> bool:
        return all(piece.isascii() for piece in self.pieces)

    def matcher(self) -> Callable[[str], bool]:
        """Compile the pattern: the returned function returns whether a text matches."""
        return partial(_matches, [re.compile(with_runs(piece), self.flags) for piece in self.pieces], self.last_length)

    def matches(self, text: str) -> bool:
        """Whether one text matches; for many, use :meth:`matcher`."""
        return self.matcher()(text)


def with_runs(piece: str) -> str:
    r"""The expression of a piece with each run of wildcards as one, which a search skips in one step.

    It tries each place of a text, and no other thread runs meanwhile.

    >>> with_runs(r"...\..")
    '.{3}\\..'
    """
    return _RUN.sub(lambda run: run[0] if run[0].startswith("\\") else f".{{{len(run[0])}}}", piece)


def _matches(pieces: Sequence[re.Pattern[str]], last_length: int, text: str) -> bool:
    """The leftmost match of each piece is sufficient: the time is bounded by the text's length times the pattern's."""
    first, last = pieces[0], pieces[-1]
    if len(pieces) == 1:
        return first.fullmatch(text) is not None
    if not (found := first.match(text)):
        return False
    end = found.end()
    for piece in pieces[1:-1]:
        if not (found := piece.search(text, end)):
            return False
        end = found.end()
    start_of_last = len(text) - last_length
    return start_of_last >= end and last.fullmatch(text, start_of_last) is not None
