"""``StateRows``: the rows that a shape had after some transaction, as pages in a temporary file.

A page begins after so many rows, in the order of their inserts, and a client goes on there with any server: the order
is the same wherever the rows are made, as long as the shape has the same snapshot.
"""

from typing import Final

from flushtracker.serve.body import PAGE_BYTES, Body, Page, PageFile
from flushtracker.serve.handle import Handle
from flushtracker.serve.messages import SEPARATOR
from flushtracker.serve.seen_shape import ShapeFacts


class StateRows:
    """``handle`` is that of a client that begins with these rows, which are those after the transaction ``tx``.

    ``version`` is that of the shape log in which they were the newest; -1 for rows of an earlier transaction.
    """

    def __init__(self, handle: Handle, facts: ShapeFacts, tx: int, file: PageFile, version: int) -> None:
        self.handle: Final = handle
        self.facts: Final = facts
        self.tx: Final = tx
        self.version: Final = version
        self._file = file
        self._pages: dict[int, Page] = {}
        self._first = self._start = self._rows = self._held = 0

    @property
    def disk_bytes(self) -> int:
        return self._file.length

    @property
    def rows(self) -> int:
        return self._rows

    def add(self, messages: list[bytes]) -> None:
        """Add rows; a page ends before the row that would make it too large."""
        parts = list[bytes]()
        for message in messages:
            size = len(message) + len(SEPARATOR)
            if self._held and self._held + size > PAGE_BYTES:
                self._write(parts)
                parts = []
                self._end_page(is_end=False)
            parts += [SEPARATOR, message] if self._held else [message]
            self._held += size
            self._rows += 1
        self._write(parts)

    def finish(self) -> None:
        """All rows are added."""
        self._end_page(is_end=True)
        self._file.finish()

    def page(self, rows: int) -> Page | None:
        """The page that begins after so many rows; ``None`` if none does."""
        return self._pages.get(rows)

    def _write(self, parts: list[bytes]) -> None:
        if parts:
            self._file.append(b"".join(parts))

    def _end_page(self, *, is_end: bool) -> None:
        body = Body(b"", self._file, self._start, self._file.length - self._start)
        self._pages[self._first] = Page(body, self.tx, 0 if is_end else self._rows, is_end, self.version)
        self._first, self._start, self._held = self._rows, self._file.length, 0
