"""``UnsyncedDisk``: what is left of a folder after a power failure, for any program that writes there.

``unsynced_disk.c`` is preloaded into the program and all that it starts, and records what they sync; statically linked
programs do not take part. A power failure leaves one of many states. Two of them find what is missing: the one with
nothing but what was synced, and the one with all names and nothing of the contents that were not.
"""

import random
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_SOURCE: Final = Path(__file__).with_suffix(".c")


def preloaded(folder: Path) -> Path:
    """The library, compiled into ``folder``; raises if there is no C compiler."""
    library = folder / "unsynced_disk.so"
    if not library.exists():
        command = ["cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(_SOURCE), "-ldl"]
        subprocess.run(command, check=True)
    return library


@dataclass(frozen=True, slots=True)
class _Synced:
    """What has been synced by a moment: contents of files, and names in folders, by inode."""

    contents: dict[int, bytes]
    names: dict[int, dict[str, tuple[int, bool]]]
    """The inode behind each name, and whether it is a folder."""


class UnsyncedDisk:
    """The folder ``root``, which must exist, and whose own name counts as durable; ``store`` is on the same disk."""

    def __init__(self, root: Path, store: Path) -> None:
        self.root, self._store = root, store
        store.mkdir()

    def environment(self) -> dict[str, str]:
        """The environment variables of the programs whose syncs count."""
        return {"LD_PRELOAD": str(preloaded(self._store.parent)), "SYNCED_TO": str(self._store)}

    def leave_synced(self, target: Path) -> None:
        """Put the state into ``target`` that has only what was synced: as if the kernel had written nothing itself."""
        self._leave_folder(self._synced(), self.root.stat().st_ino, target)

    def leave_names(self, target: Path, seed: int) -> None:
        """Put the state into ``target`` that has all names, and of each content that was not synced a random part.

        Nothing may write to the folder meanwhile.
        """
        synced, chance = self._synced(), random.Random(seed)  # noqa: S311  a reproducible state
        shutil.copytree(self.root, target, symlinks=True)
        for path in sorted(self.root.rglob("*")):
            if path.is_file():
                left, inode = target / path.relative_to(self.root), path.stat().st_ino
                content = path.read_bytes()
                part = chance.choice([0, len(content), chance.randint(0, len(content))])
                left.write_bytes(synced.contents.get(inode, content[:part]))

    def _synced(self) -> _Synced:
        synced = _Synced({}, {})
        for record in sorted(self._records(), key=lambda path: int(path.name.partition("-")[0])):
            inode = int(record.stem.partition("-")[2])
            if record.suffix == ".file":
                synced.contents[inode] = record.read_bytes()
            else:
                entries = (line.split(" ", 2) for line in record.read_text().splitlines())
                synced.names[inode] = {name: (int(number), is_folder == "1") for number, is_folder, name in entries}
        return synced

    def _records(self) -> Iterator[Path]:
        return (path for path in self._store.iterdir() if path.suffix in {".file", ".folder"})

    def _leave_folder(self, synced: _Synced, inode: int, target: Path) -> None:
        target.mkdir()
        for name, (number, is_folder) in synced.names.get(inode, {}).items():
            if is_folder:
                self._leave_folder(synced, number, target / name)
            else:
                (target / name).write_bytes(synced.contents.get(number, b""))
