"""Paths and small files on any file system that Spark can write, through Hadoop: ``file:``, ``hdfs:``, ``s3a:``."""

from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from pyspark.sql import SparkSession

from flushtracker.errors import ConfigError

_TEMPORARY: Final = ".writing"


class HadoopFiles:
    """The file system under ``folder``. Every call raises one of ``java_errors.JAVA_ERRORS`` if the storage fails."""

    def __init__(self, spark: SparkSession, folder: str) -> None:
        self.folder = folder
        self._jvm: Any = spark.sparkContext._jvm
        self._system = self._path().getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())

    def names(self, name: str = "") -> list[str]:
        """The names in the folder, or in one of its subfolders; empty if it does not exist."""
        path = self._path(name)
        if not self._system.exists(path):
            return []
        return [status.getPath().getName() for status in self._system.listStatus(path)]

    def read(self, name: str) -> bytes | None:
        """The content of a file, ``None`` if it does not exist."""
        if not self._system.exists(self._path(name)):
            return None
        stream = self._system.open(self._path(name))
        try:
            return bytes(stream.readAllBytes())
        finally:
            stream.close()

    def write(self, name: str, content: bytes) -> bool:
        """Write a file, replacing an existing one; return whether the storage did so.

        A crash leaves it complete or missing, never partial.
        """
        temporary = self._path(name + _TEMPORARY)
        stream = self._system.create(temporary, True)  # noqa: FBT003  Java's overwrite
        try:
            stream.write(bytearray(content))
        finally:
            stream.close()
        self.delete(name)
        return bool(self._system.rename(temporary, self._path(name)))

    def delete(self, name: str) -> None:
        """Delete a file; a missing one is not an error."""
        self._system.delete(self._path(name), False)  # noqa: FBT003  Java's recursive

    def move_folder(self, target: str) -> bool:
        """Rename the folder itself; return whether the storage did so.

        An object store renames objects one by one, so a crash may leave parts in both places.
        """
        return bool(self._system.rename(self._path(), self._jvm.org.apache.hadoop.fs.Path(target)))

    def is_local(self) -> bool:
        """Whether the folder is on this machine's disks."""
        return str(self._system.getUri().getScheme()) == "file"

    def is_on_s3a(self) -> bool:
        """Whether Hadoop's S3A reads and writes the folder; a platform may have another client for its scheme."""
        return str(self._system.getClass().getName()) == "org.apache.hadoop.fs.s3a.S3AFileSystem"

    def write_no_checksums(self) -> None:
        """Stop Hadoop from writing checksum files for local files in this process; Spark removes them anyway."""
        self._system.setWriteChecksum(False)

    def _path(self, name: str = "") -> Any:
        path = self._jvm.org.apache.hadoop.fs.Path
        return path(self.folder, name) if name else path(self.folder)


def spark_path(path: str) -> str:
    """The absolute path; a URI (``s3a://…``, ``file:/…``) is returned unchanged."""
    return path if "://" in path or path.startswith("file:") else str(Path(path).absolute())


def checkpoint_path(path: str) -> str:
    """Like :func:`spark_path`; raises ``ConfigError`` for a path from which Spark could not read its state back."""
    absolute = spark_path(path)
    if strange := sorted({character for character in absolute if quote(character, safe=":/@+,=~") != character}):
        raise ConfigError(
            f"the checkpoint {absolute} contains {' '.join(map(repr, strange))}, and Spark cannot read its state "
            f"back from such a path; choose another"
        )
    return absolute
