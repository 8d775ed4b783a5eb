"""Makes files and names on local disks durable, so that they survive a power failure.

A file's content is durable once the file has been synced, and its name once its folder has been. Neither implies the
other, and the kernel may write either first.
"""

import errno
import os
from collections.abc import Iterable
from pathlib import Path


def sync(path: Path) -> None:
    """Make the content of a file durable, or the names in a folder; raises ``OSError``."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some file systems cannot sync folders: names are then durable in other ways, or never.
        if error.errno != errno.EINVAL or not path.is_dir():
            raise
    finally:
        os.close(descriptor)


def sync_files(folder: Path, names: Iterable[str]) -> None:
    """Make files below ``folder`` and their names durable; each is synced once. Raises ``OSError``."""
    found = [folder / name for name in names]
    for path in found:
        sync(path)
    for parent in {parent for path in found for parent in path.parents if parent.is_relative_to(folder)}:
        sync(parent)


def make_folder(path: Path) -> None:
    """Create a folder and missing parents, durably; raises ``OSError``."""
    missing = [each for each in (path, *path.parents) if not each.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        sync(folder.parent)
