"""Recordings: the messages of a replication stream in a file, in the order the server sent them.

A frame is ``wal_start`` (8 bytes), ``wal_end`` (8) and ``length`` (4), all big-endian, and then ``length`` bytes of
message. The file consists of frames, and is compressed if its name ends in ``.gz``.
"""

import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import BinaryIO, Final

from flushtracker.errors import ConfigError, DecodeError

_NAMES: Final = ("frames.bin.gz", "frames.bin")
_HEADER: Final = Struct(">QQI")
_MAX_LENGTH: Final = 2**30 - 1
"""The most that PostgreSQL allocates for one message; a greater length means damage."""


@dataclass(frozen=True, slots=True)
class RecordedMessage:
    """One message as the server sent it. Both LSNs are 0 if the message has no WAL position of its own."""

    wal_start: int
    wal_end: int
    data: bytes


def read_recording(path: Path) -> Iterator[RecordedMessage]:
    """Yield the frames of the recording at ``path``, a file or a directory with one; only one frame is in memory.

    A missing file raises at once, damage when the iteration reaches it.

    Raises:
        ConfigError: there is no recording at ``path``, or it cannot be opened. DecodeError: the file is empty, cut off
            or damaged. Positions count uncompressed bytes.
    """
    return _frames(_find(path))


def _find(path: Path) -> Path:
    if path.is_file():
        return path
    candidates = [path / name for name in _NAMES]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    looked_for = " nor ".join(str(place) for place in (path, *candidates))
    raise ConfigError(f"no recording found: neither {looked_for} is a file; name a recording's file or directory")


def _frames(file: Path) -> Iterator[RecordedMessage]:
    position = 0
    with _open(file) as stream:
        while header := _read(stream, _HEADER.size, file, position, "a frame's header"):
            wal_start, wal_end, length = _HEADER.unpack(header)
            if length > _MAX_LENGTH:
                raise _damaged(file, position + 16, f"a length of at most {_MAX_LENGTH}", f"{length}")
            position += _HEADER.size
            data = _read(stream, length, file, position, "a message")
            if len(data) != length:
                raise _damaged(file, position, f"a message of {length} bytes", "the end")
            position += length
            yield RecordedMessage(wal_start, wal_end, data)
    if position == 0:
        raise _damaged(file, position, "a frame's header", "the end")


def _open(file: Path) -> BinaryIO | gzip.GzipFile:
    try:
        return gzip.open(file) if file.suffix == ".gz" else file.open("rb")
    except OSError as error:
        raise ConfigError(f"recording {file} cannot be opened: {error.strerror}; make it readable") from error


def _read(stream: BinaryIO | gzip.GzipFile, size: int, file: Path, position: int, what: str) -> bytes:
    """Read exactly ``size`` bytes, or none at the end of the file."""
    try:
        data = stream.read(size)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise _damaged(file, position, f"{what} of {size} bytes", f"damaged compression ({error})") from error
    if data and len(data) != size:
        raise _damaged(file, position, f"{what} of {size} bytes", f"{len(data)} and the end")
    return data


def _damaged(file: Path, position: int, expected: str, found: str) -> DecodeError:
    return DecodeError(
        f"recording {file}: byte {position} should start {expected}, found {found}; copy or record it again"
    )
