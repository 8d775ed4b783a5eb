"""``Body``: messages of an answer, in memory or in a temporary file, for any number of clients at once.

Small ones are in memory. Others are in files without names, so what waits for slow clients takes no memory, and nothing
is left of it however the process ends.
"""

import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Final

from flushtracker.delta.storage import storage_reason
from flushtracker.errors import SinkError
from flushtracker.serve.messages import SEPARATOR

PAGE_BYTES: Final = 10 << 20
"""The most of one answer, except for a single transaction or row that is larger."""

SMALL_BYTES: Final = 64 << 10
"""The most of a body that is kept in memory."""

SLICE_BYTES: Final = 24 << 10
"""What is read and sent at once, and so the most that the process keeps for a client that does not take it."""


class PageFile:
    """A temporary file that one appends to and many read; it is deleted with this object.

    So nothing may keep it in a cycle of references: the disk is free when the last one to use it has gone.
    """

    def __init__(self) -> None:
        try:
            self._file: IO[bytes] = tempfile.TemporaryFile(buffering=1 << 20)  # noqa: SIM115
        except OSError as error:
            raise _failed(error) from error
        self.length = 0

    def append(self, data: bytes) -> None:
        try:
            self._file.write(data)
        except OSError as error:
            raise _failed(error) from error
        self.length += len(data)

    def flush(self) -> None:
        """Let what was appended be read."""
        try:
            self._file.flush()
        except OSError as error:
            raise _failed(error) from error

    def read(self, start: int, length: int) -> bytes:
        """Some bytes that were flushed; raises ``SinkError``."""
        try:
            return os.pread(self._file.fileno(), length, start)
        except OSError as error:
            raise _failed(error) from error


@dataclass(frozen=True, slots=True)
class Body:
    """Messages with separators between them: ``data``, or a part of ``file``."""

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
        """The body, some at a time; raises ``SinkError``."""
        if self.file is None:
            for start in range(0, len(self.data), SLICE_BYTES):
                yield self.data[start : start + SLICE_BYTES]
            return
        end = self.start + self.length
        for start in range(self.start, end, SLICE_BYTES):
            yield self.file.read(start, min(SLICE_BYTES, end - start))


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a log or of a shape's rows: from where it goes on, and whether that was the end when it was read."""

    body: Body
    tx: int
    rows: int = 0
    is_end: bool = False
    version: int = -1
    """The version of the shape log whose end this is."""


def join(messages: Sequence[bytes]) -> bytes:
    return SEPARATOR.join(messages)


def _failed(error: OSError) -> SinkError:
    return SinkError(f"temporary files in {tempfile.gettempdir()} cannot be used: {storage_reason(error)}")
