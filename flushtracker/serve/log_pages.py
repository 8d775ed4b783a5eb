"""``LogPages``: divides the transactions of a log into pages, for one read."""

from collections.abc import Callable
from typing import Final

from flushtracker.serve.body import PAGE_BYTES, Page, PageFile, join, stored
from flushtracker.serve.messages import SEPARATOR

MOST_PAGES: Final = 32
"""The number of pages of one read kept for later requests."""


class LogPages:
    """Collects transactions into pages; each page ends with the end of a transaction."""

    def __init__(self, tx: int, check: Callable[[], None]) -> None:
        self._tx = tx
        self._check = check
        self._file: PageFile | None = None
        self._held: list[bytes] = []
        self._size = 0
        self._pages: list[Page] = []

    def add(self, tx: int, messages: list[bytes]) -> bool:
        """Add a transaction; false if there are enough pages and it was not added."""
        self._check()
        size = sum(map(len, messages)) + len(messages) * len(SEPARATOR)
        if self._held and self._size + size > PAGE_BYTES:
            if len(self._pages) + 1 == MOST_PAGES:
                return False
            self._flush()
        self._held += messages
        self._size += size
        self._tx = tx
        return True

    def cut(self) -> list[Page]:
        self._flush()
        return self._pages

    def end(self, tx: int, version: int) -> list[Page]:
        """The pages of a log that ends, in a version of the table, with the transaction ``tx``."""
        self._tx = max(tx, self._tx)
        self._flush(is_end=True, version=version)
        return self._pages

    def _flush(self, *, is_end: bool = False, version: int = -1) -> None:
        body = stored(join(self._held), self._shared_file)
        self._pages.append(Page(body, self._tx, 0, is_end, version))
        self._held, self._size = [], 0

    def _shared_file(self) -> PageFile:
        self._file = self._file or PageFile()
        return self._file
