"""``ShapesEdit``: a file of the shapes, replaced, added or deleted as a whole or not at all.

The new content is written beside the file and renamed over it, so capture never reads half of it. A lock on the folder
excludes other commands. Before the rename the file is compared with what was read, to detect edits by other programs.
"""

import fcntl
import os
import pwd
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final

from flushtracker.config.yaml_tree import read_files
from flushtracker.disk_sync import sync
from flushtracker.errors import ConfigError, FlushtrackerError, ShapeError
from flushtracker.shapes.shapes_file import ShapesFile, parse_shapes

_LOCK_TIMEOUT_S: Final = 10.0
_LOCK_PAUSE_S: Final = 0.05


class ShapesEdit:
    """The shapes at ``path``, a file or a folder; ``shapes`` is the content of ``files``. Create one with
    :func:`edited`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files = read_files(path)
        self.shapes = parse_shapes(self.files)

    def parse(self, changes: Mapping[Path, bytes | None]) -> ShapesFile:
        """Parse the files with changed content; ``None`` stands for a deleted file.

        Raises:
            ConfigError: a shape without errors now would have one.
        """
        files = {**self.files, **changes}
        shapes = parse_shapes({file: content for file, content in files.items() if content is not None})
        known = {fault.shape_id for fault in self.shapes.faults}
        refuse([fault.error for fault in shapes.faults if fault.shape_id not in known])
        return shapes

    def write(self, file: Path, content: bytes | None) -> None:
        """Give a file this content, or delete it if that is ``None``; writes through a symbolic link.

        Raises:
            ConfigError: the file has changed since it was read, or a user could no longer read it; nothing was changed.
                OSError: nothing was changed.
        """
        target = file if content is None else file.resolve()
        if content is None:
            self._require_unchanged(file)
            file.unlink()
        else:
            self._replace(file, target, content)
        # Make the change durable if the file system can.
        with suppress(OSError):
            sync(target.parent)

    def _replace(self, file: Path, target: Path, content: bytes) -> None:
        # A hidden name; a file of a killed command may have it.
        new = target.with_name(f".{target.name}.new")
        new.unlink(missing_ok=True)
        try:
            with new.open("xb") as opened:
                opened.write(content)
                _copy_rights(target if file in self.files else target.parent, opened)
                opened.flush()
                os.fsync(opened.fileno())
            self._require_unchanged(file)
            new.replace(target)
        finally:
            new.unlink(missing_ok=True)

    def _require_unchanged(self, file: Path) -> None:
        content = file.read_bytes() if file.exists() else None
        if content != self.files.get(file):
            raise ConfigError(f"{file} was changed meanwhile by another program; nothing was edited, try again")


def _copy_rights(other: Path, file: IO[bytes]) -> None:
    """Give a new file the permissions of the one that it replaces, or of its folder.

    Raises:
        ConfigError: a user who can read that could not read the file.
    """
    now = other.stat()
    # Only root may change the owner; a member of the group may set the group.
    for owner in (now.st_uid, -1):
        with suppress(PermissionError):
            os.fchown(file.fileno(), owner, now.st_gid)
            break
    os.fchmod(file.fileno(), now.st_mode & 0o666)
    lost = lost_reader(now, os.fstat(file.fileno()))
    if lost is not None:
        raise ConfigError(
            f"{other} cannot be changed by this user: {lost} could no longer read it, and that may be how capture "
            "reads it. Run the command as its owner or as root; nothing was changed"
        )


def refuse(errors: Sequence[FlushtrackerError]) -> None:
    """Raise the errors of shapes as one, if there are any."""
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise ShapeError("; ".join(map(str, errors)))


def lost_reader(before: os.stat_result, after: os.stat_result) -> str | None:
    """Who can read a file with the permissions ``before`` but perhaps not with ``after``; both have the same mode.

    root can read everything, and everyone can read a world-readable file.
    """
    mode = before.st_mode
    if mode & stat.S_IROTH:
        return None
    if mode & stat.S_IRGRP and after.st_gid != before.st_gid:
        return f"its group, {before.st_gid},"
    if before.st_uid in {after.st_uid, 0}:
        return None
    if mode & stat.S_IRGRP and _is_member(before.st_uid, before.st_gid):
        return None
    return f"its owner, {before.st_uid},"


def _is_member(user: int, group: int) -> bool:
    try:
        found = pwd.getpwuid(user)
    except KeyError:
        return False
    return group in os.getgrouplist(found.pw_name, found.pw_gid)


@contextmanager
def edited(path: Path) -> Iterator[ShapesEdit]:
    """Open the shapes at ``path`` for an edit, and lock their folder against other commands.

    Raises:
        ConfigError: they cannot be read, written or locked, or are not shapes.
    """
    try:
        with _locked(path if path.is_dir() else path.resolve().parent):
            yield ShapesEdit(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be changed: {error.strerror or error}; nothing was changed") from error


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    deadline = time.monotonic() + _LOCK_TIMEOUT_S
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        while not _try_lock(descriptor):
            if time.monotonic() > deadline:
                raise ConfigError(f"{folder} is locked by another process; nothing was changed")
            time.sleep(_LOCK_PAUSE_S)
        yield
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
