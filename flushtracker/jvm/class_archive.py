"""The class archive: Spark's classes as its JVM lays them out in memory, so that it maps them instead of loading them.

Java's class data sharing: https://docs.oracle.com/en/java/javase/17/vm/class-data-sharing.html. It is optional: the JVM
checks that Java, the class path and the jars' times are those of the archive, and else starts without any.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

# Java would write on stdout that an archive does not fit.
_SILENT: Final = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off", "-Xlog:class+path=off")


def archive_path(jars: Sequence[Path]) -> Path:
    """Where the archive is: beside the jars."""
    return jars[0].parent / "spark.jsa"


def use_archive(jars: Sequence[Path]) -> str:
    """The options for a JVM that uses the archive if there is one; else none."""
    path = archive_path(jars)
    return " ".join((_option("SharedArchiveFile", path), *_SILENT)) if path.exists() else ""


def write_archive(path: Path) -> str:
    """The options for a JVM that writes what it has loaded to ``path`` when it ends."""
    return " ".join((_option("ArchiveClassesAtExit", path), *_SILENT))


def _option(name: str, path: Path) -> str:
    return f'-XX:{name}="{path}"'
