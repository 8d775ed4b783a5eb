"""``SentFiles``: limits the open files of answers and events that are being sent.

A file dropped from the cache takes disk space until it has been sent, however slow its clients are. So slow clients are
disconnected once another client needs the space. Clients of a file that is still cached take no space from others, only
one of the open files.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from flushtracker.serve.body import Body, PageFile
from flushtracker.serve.refusals import UnavailableError

MOST_FILES: Final = 400
"""Each may be sent to any number of clients."""

LATE_S: Final = 30.0
"""No client is disconnected earlier."""


@dataclass(eq=False, slots=True)
class _Sending:
    file: PageFile
    began_s: float
    abort: Callable[[], None]


class SentFiles:
    """At most :data:`MOST_FILES`; none is added while those dropped from the cache have ``most_bytes``.

    For the event loop.
    """

    def __init__(self, most_bytes: int, now_s: Callable[[], float] = time.monotonic) -> None:
        self._most_bytes = most_bytes
        self._now_s = now_s
        self._files: Counter[PageFile] = Counter()
        self._sendings: dict[_Sending, None] = {}
        """In the order of their start."""

    def __len__(self) -> int:
        return len(self._files)

    @contextmanager
    def sending(self, body: Body, abort: Callable[[], None]) -> Iterator[None]:
        """Enter this while a body is sent. Its file is open that long, or until ``abort`` is called to disconnect the
        client.

        Raises:
            UnavailableError: too many files are being sent to others, none of them for long.
        """
        file = body.file
        if file is None:
            yield
            return
        if file not in self._files:
            self._make_room(file)
        sending = _Sending(file, self._now_s(), abort)
        self._sendings[sending] = None
        self._files[file] += 1
        try:
            yield
        finally:
            self._end(sending)

    def _make_room(self, file: PageFile) -> None:
        for each in list(self._sendings):
            if self._has_room(file) or self._now_s() - each.began_s < LATE_S:
                break
            if len(self._files) >= MOST_FILES or not each.file.is_kept:
                self._end(each)
                each.abort()
        if not self._has_room(file):
            raise UnavailableError("too many answers are being sent; try again", 5)

    def _end(self, sending: _Sending) -> None:
        # One that was disconnected has already ended.
        if sending in self._sendings:
            del self._sendings[sending]
            self._files[sending.file] -= 1
            if not self._files[sending.file]:
                del self._files[sending.file]

    def _has_room(self, file: PageFile) -> bool:
        """Whether another file may be sent; always, if all files so far are cached and the limit of files is not
        reached.
        """
        dropped_bytes = [each.length for each in self._files if not each.is_kept]
        more_bytes = 0 if file.is_kept else file.length
        is_free = not dropped_bytes or sum(dropped_bytes) + more_bytes <= self._most_bytes
        return is_free and len(self._files) < MOST_FILES
