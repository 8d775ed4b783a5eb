"""PostgreSQL's arrays, parsed strictly from the server's text: ``{1,NULL}``, ``{"a b",c}``, ``[0:1]={1,2}``.

Two arrays are equal if their bounds and their items are, and NULL items equal each other. Parsers raise ``ValueError``,
which the caller completes with the table and the column.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

_BOUNDS = re.compile(r"((?:\[[+-]?[0-9]{1,10}:[+-]?[0-9]{1,10}\]){1,6})=")
_BOUND = re.compile(r"\[([+-]?[0-9]{1,10}):([+-]?[0-9]{1,10})\]")
# A quoted item, a bare one, or punctuation. A bare item has no quotes, braces, commas, backslashes or blanks.
_TOKEN = re.compile(r'\s*(?:"((?:[^"\\]|\\.)*)"|([^\s{},"\\]+)|([{},]))\s*', re.DOTALL | re.ASCII)
_MAX_DIMENSIONS = 6
_INT4 = 1 << 31
_Bounds: TypeAlias = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class ArrayValue:
    """``bounds`` has the lower bound and the length of each dimension; ``items`` has the items of all dimensions."""

    bounds: _Bounds
    items: tuple[Any, ...]


def array_parser(parse_item: Callable[[str], Any]) -> Callable[[str], ArrayValue]:
    """A parser of arrays whose items ``parse_item`` parses.

    >>> array_parser(int)("{{1,2},{3,NULL}}")
    ArrayValue(bounds=((1, 2), (1, 2)), items=(1, 2, 3, None))
    """

    def parse_array(text: str) -> ArrayValue:
        prefix = _BOUNDS.match(text)
        items: list[Any] = []
        lengths = _Reader(text, prefix.end() if prefix else 0, parse_item).read(items)
        bounds = tuple((1, length) for length in lengths)
        if prefix:
            stated = [(int(low), int(high) - int(low) + 1) for low, high in _BOUND.findall(prefix[1])]
            if tuple(length for _, length in stated) != lengths:
                raise ValueError("an array whose bounds do not fit its items")
            if any(not -_INT4 <= low < _INT4 - length for low, length in stated):
                raise ValueError("an array whose bounds are out of range")
            bounds = tuple(stated)
        return ArrayValue(bounds, tuple(items))

    return parse_array


class _Reader:
    """Reads the tokens of an array's text."""

    def __init__(self, text: str, position: int, parse_item: Callable[[str], Any]) -> None:
        self._text, self._position, self._parse_item = text, position, parse_item

    def read(self, items: list[Any]) -> tuple[int, ...]:
        """The lengths of the dimensions, none for an empty array; appends the items."""
        self._expect("{")
        lengths = () if self._skip("}") else self._rest(items, 1)
        if self._position != len(self._text):
            raise ValueError("an array with text after its end")
        return lengths

    def _rest(self, items: list[Any], depth: int) -> tuple[int, ...]:
        """Read the rest after an opening brace; all items must have the same dimensions."""
        if depth > _MAX_DIMENSIONS:
            raise ValueError("an array of more than 6 dimensions")
        count, inner = 0, None
        while True:
            found = self._rest(items, depth + 1) if self._skip("{") else self._item(items)
            if inner is not None and inner != found:
                raise ValueError("an array of unequal rows")
            inner, count = found, count + 1
            if self._skip("}"):
                return (count, *inner)
            self._expect(",")

    def _item(self, items: list[Any]) -> tuple[int, ...]:
        quoted, bare, _ = self._next().groups()
        if quoted is not None:
            items.append(self._parse_item(re.sub(r"\\(.)", r"\1", quoted, flags=re.DOTALL)))
        elif bare is not None:
            items.append(None if bare.upper() == "NULL" else self._parse_item(bare))
        else:
            raise ValueError("an array that lacks an item")
        return ()

    def _next(self) -> re.Match[str]:
        match = _TOKEN.match(self._text, self._position)
        if not match:
            raise ValueError("not an array")
        self._position = match.end()
        return match

    def _skip(self, punctuation: str) -> bool:
        match = _TOKEN.match(self._text, self._position)
        if not match or match[3] != punctuation:
            return False
        self._position = match.end()
        return True

    def _expect(self, punctuation: str) -> None:
        if not self._skip(punctuation):
            raise ValueError("not an array")
