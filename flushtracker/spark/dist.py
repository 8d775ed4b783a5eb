"""Writes what spark-submit ships to a cluster: ``python -m flushtracker.spark.dist DIR``.

``DIR/flushtracker.zip`` is for ``--py-files``: this package and sortedcontainers, the only package besides pandas,
pyarrow, deltalake and msgspec that executors import. ``DIR/jars/`` holds the jars for ``--jars``.
``DIR/log4j2.properties`` is for executors whose log is not rotated otherwise.
"""

import shutil
import sys
import zipfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from flushtracker.errors import ConfigError, FlushtrackerError
from flushtracker.jvm.jars import SPARK_JARS

_LOG_CONFIG: Final = Path(__file__).with_name("log4j2_executors.properties")
_PACKAGES: Final = ("flushtracker", "sortedcontainers")
# The oldest time in the zip format, given to all files so that the zip is reproducible.
_TIME: Final = (1980, 1, 1, 0, 0, 0)
_MODE: Final = 0o644 << 16


def write_dist(folder: Path) -> None:
    """Write the zip, the jars and the log's configuration, replacing those of an earlier call.

    Raises:
        ConfigError: a jar or a package is missing, or the folder cannot be written.
    """
    paths = SPARK_JARS.paths()
    jars = folder / "jars"
    try:
        jars.mkdir(parents=True, exist_ok=True)
        for stale in {*jars.glob("*.jar")} - {jars / path.name for path in paths}:
            stale.unlink()
        for path in paths:
            if path.resolve() != (jars / path.name).resolve():  # FLUSHTRACKER_JARS may name the folder itself.
                shutil.copyfile(path, jars / path.name)
        write_zip(folder / "flushtracker.zip")
        shutil.copyfile(_LOG_CONFIG, folder / "log4j2.properties")
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {error.strerror or error}; name another folder") from error


def write_zip(path: Path) -> None:
    """Write the packages that executors need as one zip; the same sources produce the same bytes on any machine.

    Nothing is compressed, because compressors differ between versions.
    """
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, file in sorted(_files()):
            entry = zipfile.ZipInfo(name, _TIME)
            entry.create_system = 3  # Unix on every platform: the mode below is a Unix mode.
            entry.external_attr = _MODE
            archive.writestr(entry, file.read_bytes())


def _files() -> Iterator[tuple[str, Path]]:
    """The packages' files, each with its name in the zip, without compiled bytecode."""
    for package in _PACKAGES:
        spec = find_spec(package)
        if spec is None or spec.origin is None:
            raise ConfigError(f"{package} is not installed: run `make dist` or `pip install -e .`")
        root = Path(spec.origin).parent
        for file in root.rglob("*"):
            if file.is_file() and "__pycache__" not in file.parts:
                yield file.relative_to(root.parent).as_posix(), file


def main() -> int:
    """Write to the folder named by the only argument."""
    if len(sys.argv) != 2:
        sys.stderr.write("flushtracker: expected one folder: python -m flushtracker.spark.dist DIR\n")
        return ConfigError.exit_code
    try:
        write_dist(Path(sys.argv[1]))
    except FlushtrackerError as error:
        sys.stderr.write(f"flushtracker: {error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
