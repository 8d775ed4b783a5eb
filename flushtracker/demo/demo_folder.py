"""The folder of a demo: emptied when a run starts, and one run's alone while it lasts."""

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from flushtracker.errors import ConfigError

_MARK: Final = "demo.lock"
"""A file that tells a demo's folder from others, and is locked while the demo runs."""


@contextmanager
def demo_folder(folder: Path) -> Iterator[None]:
    """Inside, ``folder`` is there, was emptied of what an earlier demo left, and no other demo can have it.

    Raises:
        ConfigError: another demo runs in it, it holds what is not a demo's, or it cannot be written.
    """
    try:
        lock = _claim(folder)
    except OSError as error:
        raise ConfigError(
            f"the demo cannot have {folder}: {error.strerror or error}; name another folder with --data"
        ) from error
    with lock:
        yield


def _claim(folder: Path) -> IO[str]:
    mark = folder / _MARK
    if folder.exists() and not mark.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} holds what no demo has put there; name another folder with --data")
    folder.mkdir(parents=True, exist_ok=True)
    lock = mark.open("a")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise ConfigError(f"a demo runs in {folder} already; stop it, or name another folder with --data") from None
    for path in list(folder.iterdir()):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path != mark:
            path.unlink()
    return lock
