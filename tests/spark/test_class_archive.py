"""The class archives of Spark and of the local broker: a JVM uses them, and one that does not fit does no harm."""

import mmap
import shlex
import subprocess
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import SparkSession

from flushtracker.jvm.class_archive import broker_archive, outdated_archives, spark_archive, use_archive
from flushtracker.jvm.jars import BROKER_JARS, SPARK_JARS
from flushtracker.jvm.java import Java, check_java
from flushtracker.local.broker import LocalBroker


def test_spark_maps_the_archive(spark: SparkSession) -> None:
    archive = spark_archive(SPARK_JARS.paths(), check_java())
    assert archive.exists(), "run make classes"
    jvm: Any = spark.sparkContext._jvm
    pid = jvm.java.lang.ProcessHandle.current().pid()
    assert str(archive.resolve()) in Path(f"/proc/{pid}/maps").read_text(), "the archive does not fit"


def test_a_broker_maps_its_archive(tmp_path: Path) -> None:
    archive = broker_archive(BROKER_JARS.paths(), check_java())
    assert archive.exists(), "run make classes"
    broker = LocalBroker(tmp_path)
    with broker:
        assert broker._process
        maps = Path(f"/proc/{broker._process.pid}/maps").read_text()
    assert str(archive.resolve()) in maps, "the archive does not fit"


def test_the_archive_has_the_classes_of_both_jobs() -> None:
    archive = spark_archive(SPARK_JARS.paths(), check_java())
    with archive.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        for name in (
            b"org/apache/spark/deploy/SparkSubmit",
            b"org/apache/spark/sql/kafka010/KafkaMicroBatchStream",
            b"org/apache/spark/sql/execution/python/streaming/FlatMapGroupsInPandasWithStateExec",
            b"org/apache/spark/sql/execution/python/MapInArrowExec",
            b"io/delta/sql/DeltaSparkSessionExtension",
        ):
            assert content.find(name) > 0, name


def test_java_starts_in_silence_with_an_archive_that_does_not_fit(tmp_path: Path) -> None:
    archive = tmp_path / "some folder" / "spark.jsa"
    archive.parent.mkdir()
    assert not use_archive(archive)
    expected = _java_version("")
    for content in (b"", b"no archive at all" * 1000):
        archive.write_bytes(content)
        # With "sharing" it would have loaded Java's own archive.
        assert _java_version(use_archive(archive)) == expected.replace(", sharing", "")


@pytest.mark.parametrize("archive_path", [spark_archive, broker_archive])
def test_another_java_and_other_jars_have_another_archive(
    archive_path: Callable[[Sequence[Path], Java], Path], tmp_path: Path
) -> None:
    """Only earlier ones of the same kind are outdated then."""
    jar = tmp_path / "a.jar"
    jar.write_bytes(b"1")
    java = check_java()
    first = archive_path([jar], java)
    assert archive_path([jar], java) == first
    assert archive_path([jar], replace(java, version="another")) != first
    jar.write_bytes(b"12")
    second = archive_path([jar], java)
    assert second != first

    for path in (first, second, tmp_path / "spark-0.0.0-1.jsa"):
        path.touch()
    assert outdated_archives(second) == {first}


def test_no_class_is_in_spark_and_in_its_extra_jars() -> None:
    """On the class path the extra jars come first, so theirs would win."""
    spark = Path(pyspark.__file__).parent / "jars"
    extra, own = (set().union(*map(_classes, jars)) for jars in (SPARK_JARS.paths(), spark.glob("*.jar")))
    assert extra & own <= {"org/apache/spark/unused/UnusedStubClass.class"}


def _classes(jar: Path) -> set[str]:
    return {name for name in zipfile.ZipFile(jar).namelist() if name.endswith(".class") and "META-INF" not in name}


def _java_version(options: str) -> str:
    """What ``java -version`` prints; the options are split as Spark's launcher does."""
    command = [str(check_java().launcher), *shlex.split(options), "-version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout + done.stderr
