"""``flushtracker dist DIR``: what spark-submit ships to a cluster.

``DIR/flushtracker.zip`` is for ``--py-files``: this package and sortedcontainers, the only package besides pandas,
pyarrow, deltalake and msgspec that executors import. ``DIR/jars/`` holds the jars for ``--jars``, ``DIR/jobs/`` the
scripts of the jobs. ``DIR/log4j2.properties`` is for executors whose log is not rotated otherwise.
"""

import argparse
import shutil
import zipfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from flushtracker.errors import ConfigError
from flushtracker.jvm.jars import SPARK_JARS

_LOG_CONFIG: Final = Path(__file__).with_name("log4j2_executors.properties")
_JOBS: Final = Path(__file__).parents[1] / "jobs"
"""A link to ``jobs`` in the repository; a folder with the scripts in a wheel."""
_PACKAGES: Final = ("flushtracker", "sortedcontainers")
# The oldest time in the zip format, given to all files so that the zip is reproducible.
_TIME: Final = (1980, 1, 1, 0, 0, 0)
_MODE: Final = 0o644 << 16


def run(arguments: argparse.Namespace) -> int:
    """Fetch the jars if they are missing, and write everything to the folder that is named."""
    SPARK_JARS.fetch()
    write_dist(arguments.folder)
    return 0


def write_dist(folder: Path) -> None:
    """Write the zip, the jars, the scripts and the log's configuration to a new or empty folder.

    Raises:
        ConfigError: a jar or a package is missing, or the folder has files or cannot be written.
    """
    jars = SPARK_JARS.paths()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise ConfigError(f"{folder} is not empty: name a new folder")
        (folder / "jars").mkdir()
        for jar in jars:
            shutil.copyfile(jar, folder / "jars" / jar.name)
        (folder / "jobs").mkdir()
        for script in _JOBS.glob("*.py"):
            shutil.copyfile(script, folder / "jobs" / script.name)
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
            raise ConfigError(f"{package} is not installed: run pip install flushtracker")
        root = Path(spec.origin).parent
        for file in root.rglob("*"):
            if file.is_file() and "__pycache__" not in file.parts:
                yield file.relative_to(root.parent).as_posix(), file
