"""Error texts in the documents, truncated."""

from typing import Final

_MOST: Final = 500


def bounded(text: str) -> str:
    """The text, truncated to 500 characters: a library's error may contain a whole response.

    >>> bounded("x" * 501) == "x" * 499 + "…", bounded("x" * 500) == "x" * 500
    (True, True)
    """
    return text if len(text) <= _MOST else text[: _MOST - 1] + "…"
