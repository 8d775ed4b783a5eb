"""``ShapesEdit``: the shapes file, changed as a whole or not at all.

The new content is written beside the file, read by the reader that capture uses, and renamed over the file; so capture
never reads half of it. A lock excludes other commands. Before the rename the file is compared with what was read, which
detects an editor.
"""

import fcntl
import os
import pwd
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final

from flushtracker.disk_sync import sync
from flushtracker.errors import ConfigError, FlushtrackerError, ShapeError
from flushtracker.shapes.shapes_file import ShapesFile, read_shapes

_LOCK_TIMEOUT_S: Final = 10.0
_LOCK_PAUSE_S: Final = 0.05
_BOM: Final = "\ufeff"


class ShapesEdit:
    """The file at ``path``, whose content is ``text`` and means ``shapes``; make one with :func:`edited`."""

    def __init__(self, path: Path, content: bytes) -> None:
        self.path = path
        self.shapes = read_shapes(path)
        self._content = content
        decoded = content.decode()
        self._bom = _BOM if decoded.startswith(_BOM) else ""
        self.text = decoded.removeprefix(_BOM)

    def replace(self, text: str, verify: Callable[[ShapesFile], None]) -> None:
        """Replace the file's content by ``text``, unless it cannot be read, or ``verify`` raises for its meaning.

        Raises:
            ConfigError: nothing was changed.
        """
        descriptor, name = tempfile.mkstemp(prefix=f".{self.path.name}.", suffix=".new", dir=self.path.parent)
        new = Path(name)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write((self._bom + text).encode())
                self._keep_rights(file)
                file.flush()
                os.fsync(file.fileno())
            verify(self._read(new))
            if self.path.read_bytes() != self._content:
                raise ConfigError(
                    f"{self.path} was changed meanwhile by another program; nothing was edited, try again"
                )
            new.replace(self.path)
        finally:
            with suppress(FileNotFoundError):
                new.unlink()
        # The rename is durable where the file system can make it so.
        with suppress(OSError):
            sync(self.path.parent)

    def _read(self, new: Path) -> ShapesFile:
        """Parse the new content; the edit must not introduce errors."""
        shapes = read_shapes(new, f"{self.path}, as it would be,")
        known = {fault.shape_id for fault in self.shapes.faults}
        refuse([fault.error for fault in shapes.faults if fault.shape_id not in known])
        return shapes

    def _keep_rights(self, file: IO[bytes]) -> None:
        """Give the new file the rights of the old; raises ``ConfigError`` if a user could no longer read it."""
        now = self.path.stat()
        # Only root may change the owner. A member of the group may set the group.
        for owner in (now.st_uid, -1):
            with suppress(PermissionError):
                os.fchown(file.fileno(), owner, now.st_gid)
                break
        os.fchmod(file.fileno(), now.st_mode & 0o7777)
        lost = lost_reader(now, os.fstat(file.fileno()))
        if lost is not None:
            raise ConfigError(
                f"{self.path} cannot be changed by this user: {lost} could no longer read it, and that may be how "
                "capture reads it. Run the command as the file's owner or as root; nothing was changed"
            )


def refuse(errors: Sequence[FlushtrackerError]) -> None:
    """Raise the errors of shapes as one, if there are any."""
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise ShapeError("; ".join(map(str, errors)))


def lost_reader(before: os.stat_result, after: os.stat_result) -> str | None:
    """Who can read a file with the rights ``before``, and may be unable to with ``after``; both have the same mode.

    root can read everything, and everybody can read a file that is readable by all.
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
    """Open the file for an edit and lock it against other commands. Follows a symbolic link.

    Raises:
        ConfigError: the file cannot be read, written or locked, or is not a file of shapes.
    """
    read_shapes(path)
    real = path.resolve()
    try:
        with _locked(real) as file:
            yield ShapesEdit(real, file.read())
    except OSError as error:
        raise ConfigError(f"{path} cannot be changed: {error.strerror or error}; nothing was changed") from error


@contextmanager
def _locked(path: Path) -> Iterator[IO[bytes]]:
    deadline = time.monotonic() + _LOCK_TIMEOUT_S
    while True:
        with path.open("r+b") as file:
            if _try_lock(file) and os.fstat(file.fileno()).st_ino == path.stat().st_ino:
                yield file
                return
        # Another command holds the lock, or has replaced the file.
        if time.monotonic() > deadline:
            raise ConfigError(f"{path} is locked by another process; nothing was changed")
        time.sleep(_LOCK_PAUSE_S)


def _try_lock(file: IO[bytes]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
