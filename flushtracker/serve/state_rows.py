"""``StateRows``: the rows that a shape had after some transaction, as pages in a temporary file.

A thread adds them, and each page can be sent once the next one has begun, while the rest is computed.

A page begins after a number of rows, in the order of their inserts. As long as the shape has the same snapshot, that
order is the same on all servers. So a client can continue with any of them.
"""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from flushtracker.serve.body import PAGE_BYTES, Body, Page, PageFile
from flushtracker.serve.handle import Handle
from flushtracker.serve.messages import SEPARATOR
from flushtracker.serve.refusals import UnavailableError
from flushtracker.serve.seen_shape import ShapeFacts
from flushtracker.serve.single_flight import WAIT_S


class StateRows:
    """``handle`` is for clients that start with these rows, which are those after the transaction ``tx``.

    ``version`` is the version of the shape log in which they were the newest; -1 for rows of an earlier transaction.
    """

    def __init__(self, handle: Handle, facts: ShapeFacts, tx: int, file: PageFile, version: int) -> None:
        self.handle: Final = handle
        self.facts: Final = facts
        self.tx: Final = tx
        self.version: Final = version
        self.file: Final = file
        self._pages: dict[int, Page] = {}
        self._first = self._start = self._rows = self._held = 0
        self._is_complete = False
        self.is_broken = False
        """Whether it failed after it was shown, so that it gets no more pages."""
        self._waiting = set[asyncio.Future[None]]()

    @property
    def disk_bytes(self) -> int:
        return self.file.length

    @property
    def rows(self) -> int:
        return self._rows

    # In the thread that makes them.

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Enter this while rows are added; at its end, the rows are complete."""
        try:
            yield
            self._end_page(is_end=True)
            self._is_complete = True
        except BaseException:
            self.is_broken = True
            raise

    def add(self, messages: list[bytes]) -> bool:
        """Add rows, and return whether a page has ended: before the row that would make it too large."""
        pages = len(self._pages)
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
        return len(self._pages) > pages

    def _write(self, parts: list[bytes]) -> None:
        if parts:
            self.file.append(b"".join(parts))

    def _end_page(self, *, is_end: bool) -> None:
        self.file.flush()
        body = Body(b"", self.file, self._start, self.file.length - self._start)
        self._pages[self._first] = Page(body, self.tx, 0 if is_end else self._rows, is_end, self.version)
        self._first, self._start, self._held = self._rows, self.file.length, 0

    # On the event loop.

    async def page(self, rows: int) -> Page | None:
        """The page that begins after ``rows`` rows, once it is complete; ``None`` if there is none.

        Raises:
            UnavailableError: the rows could not be made, or not in time.
        """
        end_s = time.monotonic() + WAIT_S
        while rows not in self._pages and not self._is_complete:
            if self.is_broken:
                raise UnavailableError("the rows could not be made; try again")
            if time.monotonic() > end_s:
                raise UnavailableError("the rows take long; try again")
            future = asyncio.get_running_loop().create_future()
            self._waiting.add(future)
            try:
                await asyncio.wait({future}, timeout=max(end_s - time.monotonic(), 0))
            finally:
                self._waiting.discard(future)
        return self._pages.get(rows)

    def wake(self) -> None:
        for future in self._waiting:
            if not future.done():
                future.set_result(None)
