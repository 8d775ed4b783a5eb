"""``Body``: the messages of an answer, in memory or in a temporary file, for any number of clients at once.

Small ones are in memory. Others are in unnamed files, so slow clients take no memory, and nothing is left however the
process ends.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from flushtracker.delta.temporary_file import temporary_failed, temporary_file
from flushtracker.serve.messages import SEPARATOR

PAGE_BYTES: Final = 10 << 20
"""The maximum size of an answer, unless a single transaction or row is larger."""

SMALL_BYTES: Final = 64 << 10
"""The maximum size of a body kept in memory."""

SLICE_BYTES: Final = 24 << 10
"""The size of one read and send, and so the most that the process keeps for a slow client."""

_DIRECT_BYTES: Final = 256 << 10
"""The most that the kernel is asked to send of a file at once."""


class PageFile:
    """A temporary file with one appender and many readers; it is deleted with this object.

    So it must not be part of a reference cycle: its disk space is freed with the last reference.
    """

    def __init__(self) -> None:
        self._file = temporary_file(1 << 20)
        self.length = 0
        self.is_kept = False
        """Whether the file is also kept for later requests, and not only for clients that it is being sent to."""

    def append(self, data: bytes) -> None:
        try:
            self._file.write(data)
        except OSError as error:
            raise temporary_failed(error) from error
        self.length += len(data)

    def flush(self) -> None:
        """Make appended data readable."""
        try:
            self._file.flush()
        except OSError as error:
            raise temporary_failed(error) from error

    def read(self, start: int, length: int) -> bytes:
        """Flushed bytes; raises ``SinkError``."""
        try:
            return os.pread(self._file.fileno(), length, start)
        except OSError as error:
            raise temporary_failed(error) from error

    def send(self, descriptor: int, start: int, length: int) -> int:
        """Have the kernel send flushed bytes to a socket; return how many it took. Raises ``OSError``."""
        return os.sendfile(descriptor, self._file.fileno(), start, min(length, _DIRECT_BYTES))


@dataclass(frozen=True, slots=True)
class Body:
    """Messages with separators: ``data``, or a part of ``file``."""

    data: bytes = b""
    file: PageFile | None = None
    start: int = 0
    length: int = 0

    @classmethod
    def of(cls, data: bytes) -> "Body":
        return cls(data, None, 0, len(data))

    @property
    def memory_bytes(self) -> int:
        return len(self.data)

    @property
    def disk_bytes(self) -> int:
        return 0 if self.file is None else self.length

    def slices(self) -> Iterator[bytes]:
        """The body in slices; raises ``SinkError``."""
        for place in range(0, self.length, SLICE_BYTES):
            yield self.slice(place)

    def slice(self, place: int) -> bytes:
        """The slice that begins after ``place`` bytes; raises ``SinkError``."""
        if self.file is None:
            return self.data[place : place + SLICE_BYTES]
        return self.file.read(self.start + place, min(SLICE_BYTES, self.length - place))

    def send(self, descriptor: int, place: int) -> int:
        """Have the kernel send of a file what comes after ``place``; return how much it took. Raises ``OSError``."""
        return 0 if self.file is None else self.file.send(descriptor, self.start + place, self.length - place)


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a log or of a shape's rows: where it ends, and whether that was the end when it was read."""

    body: Body
    tx: int
    rows: int = 0
    is_end: bool = False
    version: int = -1
    """The version of the shape log that ends here."""


def stored(data: bytes, large: Callable[[], PageFile] = PageFile) -> Body:
    """A small body in memory, another one at the end of the file that ``large`` returns. Raises ``SinkError``."""
    if len(data) <= SMALL_BYTES:
        return Body.of(data)
    file = large()
    body = Body(b"", file, file.length, len(data))
    file.append(data)
    file.flush()
    return body


def join(messages: Sequence[bytes]) -> bytes:
    return SEPARATOR.join(messages)
