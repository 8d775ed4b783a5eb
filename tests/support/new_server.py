"""``new_server``: a server as initdb makes it, without a run of initdb for each.

initdb takes longer than many tests: the server makes its catalog by executing SQL. So it runs once in a process, and
each server gets a copy of the files, with a system identifier of its own, because sources are named for it.
"""

import atexit
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Final

from flushtracker.local.postgres import LocalPostgres, packaged_binaries

_IDENTIFIER_IN_WAL: Final = 24
"""Where the header of a WAL file's first page has it."""
_POLYNOMIAL: Final = 0x82F63B78


@contextmanager
def server_folder() -> Iterator[Path]:
    """A folder that the server's user can access; pytest's own folders are closed to other users."""
    with tempfile.TemporaryDirectory(prefix="flushtracker-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


@contextmanager
def running_server(binaries: Path | None = None) -> Iterator[LocalPostgres]:
    """A server with new data in a folder of its own, while the block runs."""
    with server_folder() as folder, new_server(folder / "server", binaries) as server:
        yield server


def new_server(folder: Path, binaries: Path | None = None) -> LocalPostgres:
    """A server with new data in ``folder``; not started yet. ``binaries`` are those of :class:`LocalPostgres`."""
    server = _template(binaries or packaged_binaries()).copy_to(folder)
    _identify(server.data, secrets.randbits(62))
    return server


@cache
def _template(binaries: Path) -> LocalPostgres:
    folder = Path(tempfile.mkdtemp(prefix="flushtracker-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    folder.chmod(0o755)
    with LocalPostgres(folder / "template", binaries=binaries) as server:
        return server


def _identify(data: Path, identifier: int) -> None:
    """Give a stopped cluster another system identifier, in its control file and in its WAL."""
    new = identifier.to_bytes(8, "little")
    control = data / "global" / "pg_control"
    content = control.read_bytes()
    end = _checked_bytes(content)
    checked = new + content[8:end]
    control.write_bytes(checked + _crc32c(checked).to_bytes(4, "little") + content[end + 4 :])
    for segment in (data / "pg_wal").glob("0*"):
        with segment.open("r+b") as wal:
            wal.seek(_IDENTIFIER_IN_WAL)
            wal.write(new)


def _checked_bytes(content: bytes) -> int:
    """How many bytes of a control file its checksum is of; it comes after them, elsewhere in each version."""
    checksum = 0
    for end in range(0, len(content), 4):
        if end > 0 and int.from_bytes(content[end : end + 4], "little") == checksum:
            return end
        checksum = _crc32c(content[end : end + 4], checksum)
    raise AssertionError("the control file has no valid checksum")


def _crc32c(content: bytes, before: int = 0) -> int:
    """The checksum, also of what continues bytes whose checksum was ``before``.

    >>> hex(_crc32c(b"123456789"))
    '0xe3069283'
    """
    crc = before ^ 0xFFFFFFFF
    for byte in content:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (_POLYNOMIAL if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF
