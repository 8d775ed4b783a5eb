"""The archive of Spark's classes: a JVM uses it, and one that does not fit does no harm."""

import mmap
import shlex
import subprocess
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from flushtracker.jvm.class_archive import archive_path, use_archive
from flushtracker.jvm.jars import SPARK_JARS
from flushtracker.jvm.java import check_java


def test_spark_maps_the_archive(spark: SparkSession) -> None:
    archive = archive_path(SPARK_JARS.paths())
    assert archive.exists(), "run make classes"
    jvm: Any = spark.sparkContext._jvm
    pid = jvm.java.lang.ProcessHandle.current().pid()
    assert str(archive.resolve()) in Path(f"/proc/{pid}/maps").read_text()


def test_the_archive_has_the_classes_of_both_jobs() -> None:
    archive = archive_path(SPARK_JARS.paths())
    with archive.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        for name in (
            b"org/apache/spark/deploy/SparkSubmit",
            b"org/apache/spark/sql/kafka010/KafkaMicroBatchStream",
            b"org/apache/spark/sql/execution/python/streaming/TransformWithStateInPySparkExec",
            b"org/apache/parquet/hadoop/ParquetFileWriter",
            b"io/delta/sql/DeltaSparkSessionExtension",
        ):
            assert content.find(name) > 0, name


def test_java_starts_in_silence_with_an_archive_that_does_not_fit(tmp_path: Path) -> None:
    jars = [tmp_path / "some folder" / "a.jar"]
    jars[0].parent.mkdir()
    assert not use_archive(jars)
    expected = _java_version("")
    for content in (b"", b"no archive at all" * 1000):
        archive_path(jars).write_bytes(content)
        # With "sharing" it would have loaded Java's own archive.
        assert _java_version(use_archive(jars)) == expected.replace(", sharing", "")


def _java_version(options: str) -> str:
    """What ``java -version`` prints; the options are split as Spark's launcher does."""
    command = [str(check_java().launcher), *shlex.split(options), "-version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout + done.stderr
