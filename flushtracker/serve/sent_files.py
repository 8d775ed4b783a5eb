"""``SentFiles``: the files of answers and events that are being sent, of which only so many may be open.

A file that is dropped from what is kept takes its place on the disk until it has been sent, however slow its clients.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from flushtracker.serve.body import Body, PageFile
from flushtracker.serve.refusals import UnavailableError

MOST_FILES: Final = 400
"""Each for any number of clients."""


class SentFiles:
    """At most :data:`MOST_FILES` of ``most_bytes`` in all, or one alone. For the event loop."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._files: Counter[PageFile] = Counter()

    def __len__(self) -> int:
        return len(self._files)

    @contextmanager
    def sending(self, body: Body) -> Iterator[None]:
        """While a body is sent: its file is open that long; raises ``UnavailableError`` for too many files."""
        file = body.file
        if file is None:
            yield
            return
        if file not in self._files and not self._has_room(file.length):
            raise UnavailableError("too many answers are being sent; try again", 5)
        self._files[file] += 1
        try:
            yield
        finally:
            self._files[file] -= 1
            if not self._files[file]:
                del self._files[file]

    def _has_room(self, length: int) -> bool:
        """Whether another file may be sent."""
        sent_bytes = sum(each.length for each in self._files)
        return len(self._files) < MOST_FILES and (not self._files or sent_bytes + length <= self._most_bytes)
