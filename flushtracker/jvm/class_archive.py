"""Class archives: the classes of Spark, and of the local broker, in the JVM's memory layout.

A JVM maps an archive instead of reading, verifying and laying out each class.

Java's class data sharing: https://docs.oracle.com/en/java/javase/17/vm/class-data-sharing.html. It is optional: the JVM
starts without the archive if Java, the class path or the jars' times differ from the archive's. The archive's name has
a hash of them, so that a change leads to a new archive.
"""

from collections.abc import Iterable, Sequence
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from flushtracker.jvm.java import Java
from flushtracker.jvm.spark_version import installed_version

# Otherwise Java writes to stdout that an archive does not match.
_SILENT: Final = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off", "-Xlog:class+path=off")


def spark_archive(jars: Sequence[Path], java: Java) -> Path:
    """The path of the archive for this Java, this Spark and these extra jars, whether it exists or not."""
    spark = find_spec("pyspark")
    spark_jars = Path(str(spark.origin)).parent / "jars" if spark else Path()
    return _archive_path(f"spark-{installed_version()}", [*jars, *sorted(spark_jars.glob("*.jar"))], java)


def broker_archive(jars: Sequence[Path], java: Java) -> Path:
    """The path of the archive for this Java and a broker with these jars, whether it exists or not."""
    return _archive_path("broker", jars, java)


def outdated_archives(archive: Path) -> Iterable[Path]:
    """Other archives of the same Spark, or of the broker; another checkout may use those of another Spark."""
    name = archive.stem.rpartition("-")[0]
    return {*archive.parent.glob(f"{name}-*.jsa")} - {archive}


def use_archive(path: Path) -> str:
    """The options for a JVM to use the archive; none if it does not exist."""
    return " ".join((_option("SharedArchiveFile", path), *_SILENT)) if path.exists() else ""


def write_archive(path: Path) -> str:
    """The options for a JVM to write the classes that it has loaded to ``path`` when it exits."""
    return " ".join((_option("ArchiveClassesAtExit", path), *_SILENT))


def _option(name: str, path: Path) -> str:
    return f'-XX:{name}="{path}"'


def _archive_path(name: str, jars: Sequence[Path], java: Java) -> Path:
    """The path beside the first jar; the hash is of Java and of all jars."""
    facts = [str(java.launcher.resolve()), java.version]
    for jar in jars:
        found = jar.stat()
        facts.append(f"{jar} {found.st_size} {found.st_mtime_ns}")
    return jars[0].parent / f"{name}-{sha256(repr(facts).encode()).hexdigest()[:12]}.jsa"
