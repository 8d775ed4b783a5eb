"""``demo_folder``: the demo's folder, which it empties, and locks against other demos."""

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from flushtracker.errors import ConfigError

_LOCK: Final = "demo.lock"
"""Marks a demo's folder; locked while the demo runs."""


@contextmanager
def demo_folder(folder: Path) -> Iterator[None]:
    """Create or empty ``folder``, and lock it against other demos inside the block.

    Raises:
        ConfigError: another demo uses it, it has files of something else, or it cannot be written.
    """
    try:
        lock = _lock_and_empty(folder)
    except OSError as error:
        raise ConfigError(
            f"the demo cannot use {folder}: {error.strerror or error}; name another folder with --data"
        ) from error
    with lock:
        yield


def _lock_and_empty(folder: Path) -> IO[str]:
    mark = folder / _LOCK
    if folder.exists() and not mark.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} has files that are not from a demo; name another folder with --data")
    folder.mkdir(parents=True, exist_ok=True)
    lock = mark.open("a")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise ConfigError(f"another demo is running in {folder}; stop it, or name another folder with --data") from None
    for path in list(folder.iterdir()):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path != mark:
            path.unlink()
    return lock
