"""PostgreSQL's text format of COPY: one line for each row, its values separated by tabs."""

import re
from collections.abc import Iterable
from typing import Final

_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
# Any other escaped character stands for itself; the server writes only these and the backslash.
_ESCAPED: Final = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


def values_of(line: str) -> list[str | None]:
    r"""The values of a line, without its line break; ``None`` is NULL.

    >>> values_of("1\t\\N\t\ta\\tb\\\\c")
    ['1', None, '', 'a\tb\\c']
    """
    if "\\" not in line:
        return [*line.split("\t")]
    return [None if text == r"\N" else _ESCAPE.sub(_unescaped, text) for text in line.split("\t")]


def lines_of(rows: Iterable[bytes]) -> list[str]:
    """The rows of a copy, as libpq returns them: each with its line break, in UTF-8."""
    return [str(row, "utf-8")[:-1] for row in rows]


def _unescaped(escape: re.Match[str]) -> str:
    return _ESCAPED.get(escape[1], escape[1])
