"""``UnsyncedDisk``: what a power failure leaves of a folder, for any program that writes there.

A power failure can leave many states. Two of them are enough to find a missing sync: the one with only what was synced,
and the one with all names but without unsynced contents. In both, a name is durable once its folder was synced, and
contents once their file was synced.
"""

import os
import random
import shutil
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Final, NamedTuple

from flushtracker.trials.power_failure.sync_watch import Call, SyncWatch

_NOT_FOLLOWED: Final = {
    "io_submit": "submits its input and output to the kernel (io_submit)",
    "msync": "syncs memory (msync)",
    "open": "opens a file with O_SYNC or O_DSYNC",
    "openat": "opens a file with O_SYNC or O_DSYNC",
    "pwritev2": "syncs as it writes (pwritev2)",
}


class _Entry(NamedTuple):
    """What a name refers to; ``target`` is ``None`` unless it is a symbolic link."""

    inode: int
    is_folder: bool
    target: str | None


@dataclass(slots=True)
class _Synced:
    """What was synced: the mode of each inode, and the names in each folder. The store has the files' contents."""

    modes: dict[int, int]
    names: dict[int, Mapping[str, _Entry]]


class UnsyncedDisk:
    """The folder ``root``, which must exist. Its name and all it contains at first count as durable.

    Only syncs of programs started by :meth:`command` count. ``store`` must be on the same disk. ``not_followed`` says
    how a program has made something durable in a way that is not supported here; states may then have less than a power
    failure would leave.
    """

    def __init__(self, root: Path, store: Path) -> None:
        self.root, self._store = root, store
        self.not_followed: str | None = None
        self._lock = Lock()
        self._synced = _Synced({}, {})
        store.mkdir()
        self._sync_all()
        self._watch = SyncWatch(self._handle)

    def command(self, command: Sequence[str]) -> list[str]:
        """Return the command that runs ``command`` so that its syncs count."""
        return self._watch.command(command)

    def close(self) -> None:
        """Stop watching; nothing that :meth:`command` started may be running."""
        self._watch.close()

    def leave_synced(self, target: Path) -> None:
        """Create the state in ``target`` that has only what was synced, as if the kernel had not written back anything
        itself.
        """
        with self._lock:
            self._leave_folder(self.root.stat().st_ino, target)

    def leave_names(self, target: Path, seed: int) -> None:
        """Create the state in ``target`` that has all names, and a random prefix of contents that were not synced.

        Some prefixes end at a line end, so that nothing shows that the next line is missing. Nothing may write to the
        folder during this call.
        """
        chance = random.Random(seed)  # noqa: S311  a reproducible state
        shutil.copytree(self.root, target, symlinks=True, ignore=_special_files)
        with self._lock:
            for path in sorted(self.root.rglob("*")):
                if stat.S_ISREG(path.lstat().st_mode):
                    left, content = target / path.relative_to(self.root), path.read_bytes()
                    part = chance.randint(0, len(content))
                    part = chance.choice([0, len(content), part, content.rfind(b"\n", 0, part) + 1])
                    synced = self._content(path.stat().st_ino)
                    left.write_bytes(content[:part] if synced is None else synced)

    def replace(self, left: Path) -> None:
        """Replace the folder by a state that a power failure left; all of it is then durable."""
        shutil.rmtree(self.root)
        left.rename(self.root)
        with self._lock:
            shutil.rmtree(self._store)
            self._store.mkdir()
            self._synced = _Synced({}, {})
        self._sync_all()

    def _handle(self, call: Call) -> bool:
        if call.name in _NOT_FOLLOWED:
            self.not_followed = _NOT_FOLLOWED[call.name]
            return False
        if call.name in {"sync", "syncfs"}:
            self._sync_all()
            return False
        # The descriptor is in the argument's low half.
        descriptor = Path(f"/proc/{call.thread_id}/fd/{call.first_argument & 0xFFFFFFFF}")
        try:
            path, found = descriptor.readlink(), descriptor.stat()
        except PermissionError:
            self.not_followed = "syncs as another user"
            return False
        if not path.is_relative_to(self.root.resolve()) or not _is_kept(found.st_mode):
            return False
        self._sync(descriptor, found)
        return True

    def _sync_all(self) -> None:
        for path in (self.root, *self.root.rglob("*")):
            with suppress(FileNotFoundError):
                found = path.lstat()
                if _is_kept(found.st_mode):
                    self._sync(path, found)

    def _sync(self, path: Path, found: os.stat_result) -> None:
        with self._lock:
            if stat.S_ISDIR(found.st_mode):
                self._synced.names[found.st_ino] = _names(path)
            else:
                self._store_content(path, found.st_ino)
            self._synced.modes[found.st_ino] = stat.S_IMODE(found.st_mode)

    def _store_content(self, path: Path, inode: int) -> None:
        writing = self._store / "writing"
        shutil.copyfile(path, writing)
        writing.rename(self._store / f"{inode}")
        # A hard link keeps the inode of a deleted file from being reused. `path` may be a link in /proc, which is
        # followed only if a descriptor is passed. If no name leads to the file, nothing needs it.
        here = os.open(self._store, os.O_RDONLY)
        with suppress(OSError):
            os.link(path, f"{inode}.inode", src_dir_fd=here, dst_dir_fd=here)
        os.close(here)

    def _content(self, inode: int) -> bytes | None:
        stored = self._store / f"{inode}"
        return stored.read_bytes() if stored.exists() else None

    def _leave_folder(self, inode: int, target: Path) -> None:
        target.mkdir()
        for name, entry in self._synced.names.get(inode, {}).items():
            left = target / name
            if entry.target is not None:
                left.symlink_to(entry.target)
            elif entry.is_folder:
                self._leave_folder(entry.inode, left)
            else:
                left.write_bytes(self._content(entry.inode) or b"")
                left.chmod(self._synced.modes.get(entry.inode, 0o600))
        target.chmod(self._synced.modes.get(inode, 0o700))


def _names(folder: Path) -> dict[str, _Entry]:
    found: dict[str, _Entry] = {}
    for entry in os.scandir(folder):
        target = str(Path(folder, entry.name).readlink()) if entry.is_symlink() else None
        if target is not None or entry.is_file() or entry.is_dir():
            found[entry.name] = _Entry(entry.inode(), entry.is_dir(follow_symlinks=False), target)
    return found


def _special_files(folder: str, names: list[str]) -> list[str]:
    """Return names of sockets and the like, which have no contents."""
    modes = {name: (Path(folder) / name).lstat().st_mode for name in names}
    return [name for name, mode in modes.items() if not (_is_kept(mode) or stat.S_ISLNK(mode))]


def _is_kept(mode: int) -> bool:
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode)
