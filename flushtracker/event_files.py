"""Streams as directories of JSON-lines files, one event per line: a transport without a broker.

Spark's file source reads a directory as a stream. It reads files in the order of their modification times, in
milliseconds, ignores names that start with a dot, and never reads a path twice. So a file is complete and durable
before it gets its name, names are never reused, and modification times strictly increase, even if the clock does not.
"""

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from flushtracker.disk_sync import make_folder, sync
from flushtracker.errors import ConfigError, FlushtrackerError

_NAME: Final = re.compile(r"(?P<number>[0-9]{12,})\.jsonl", re.ASCII)
_NS_PER_MS: Final = 1_000_000


def stream_files(directory: Path) -> list[Path]:
    """The published files of a stream in the order in which Spark reads them; none if the directory does not exist."""
    if not directory.is_dir():
        return []
    visible = (path for path in directory.iterdir() if not path.name.startswith((".", "_")))
    return sorted(visible, key=lambda path: (path.stat().st_mtime_ns, path.name))


def require_empty(directories: Iterable[Path], remedy: str) -> None:
    """Raise ``ConfigError`` if one of the streams already has files; the message ends with ``remedy``."""
    for directory in directories:
        if files := stream_files(directory):
            raise ConfigError(f"stream {directory} already has files ({len(files)}, up to {files[-1].name}); {remedy}")


def read_lines(file: Path) -> Iterator[str]:
    """The lines of a file, without line ends. Only a line feed ends a line: JSON may contain Unicode's other breaks."""
    with file.open(encoding="utf-8", newline="\n") as lines:
        for line in lines:
            yield line.removesuffix("\n")


class StreamWriter:
    """Publishes one stream in ``directory``, which it creates if missing; it must be the only writer there.

    It continues after existing files. When you archive files, leave the newest: in an empty directory names and times
    start over, and a reader that knows the old ones would skip the new files. ``now_ns`` is the clock.

    Raises:
        ConfigError: the directory cannot be created or read.
    """

    def __init__(self, directory: Path, now_ns: Callable[[], int] = time.time_ns) -> None:
        self.directory = directory
        self._now_ns = now_ns
        self._last_number = -1
        self._last_ms = 0
        try:
            make_folder(directory)
            files = stream_files(directory)
            if files:
                self._last_number = max(_number(file) for file in files)
                self._last_ms = files[-1].stat().st_mtime_ns // _NS_PER_MS
        except OSError as error:
            raise ConfigError(
                f"stream {directory} cannot be used: {error.strerror}; name a writable directory"
            ) from error

    def publish(self, lines: Iterable[str]) -> Path | None:
        """Publish ``lines`` as the stream's next file, durable when this returns. Without lines, ``None`` and no file.

        Raises:
            ValueError: a line contains a line break; nothing was published.
            FlushtrackerError: the file cannot be written; readers see nothing of it, and the call may be repeated.
        """
        texts = list(lines)
        if not texts:
            return None
        if any("\n" in text or "\r" in text for text in texts):
            raise ValueError(f"stream {self.directory}: a line contains a line break and would be read as two events")
        number = self._last_number + 1
        file = self.directory / f"{number:012}.jsonl"
        mtime_ms = max(self._now_ns() // _NS_PER_MS, self._last_ms + 1)
        try:
            self._write(file, "".join(f"{text}\n" for text in texts).encode(), mtime_ms * _NS_PER_MS)
        except OSError as error:
            raise FlushtrackerError(
                f"stream {self.directory}: file {file.name} cannot be written: {error.strerror}; fix that and retry"
            ) from error
        self._last_number, self._last_ms = number, mtime_ms
        return file

    def _write(self, file: Path, data: bytes, mtime_ns: int) -> None:
        hidden = file.with_name(f".{file.name}")
        with hidden.open("wb") as stream:
            stream.write(data)
            stream.flush()
            os.utime(hidden, ns=(mtime_ns, mtime_ns))
            os.fsync(stream.fileno())
        hidden.rename(file)
        # The name is durable only once the directory is synced.
        sync(self.directory)


def _number(file: Path) -> int:
    """The number in a file name of a writer, -1 for any other name."""
    named = _NAME.fullmatch(file.name)
    return -1 if named is None else int(named["number"])
