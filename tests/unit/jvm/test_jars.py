"""Java and the jars: the errors on a machine that lacks one of them, and what a fetch leaves behind."""

import os
import re
import shutil
import sys
import time
import zipfile
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from flushtracker.errors import ConfigError
from flushtracker.jvm import ivy_jars
from flushtracker.jvm.ivy_jars import JarSet
from flushtracker.jvm.jar_lock import read_lock, read_sums, sha256_of, sums_file
from flushtracker.jvm.jars import ABFS_JARS, BROKER_JARS, GCS_JARS, S3_JARS, SPARK_JARS
from flushtracker.jvm.java import Java, check_java
from flushtracker.jvm.spark_version import LOCKED, installed_version, supported_minor
from tests.jar_sums import LOCKS
from tests.support.processes import run_to_end

INSTALL = "install a JDK 17 or 21 (on Debian or Ubuntu: apt install openjdk-17-jre-headless), or set JAVA_HOME"
DELTA = f"delta-spark_{supported_minor(installed_version())}_2.13"
_HADOOP = {"4.0": "3.4.1", "4.1": "3.4.2", "4.2": "3.5.0"}
"""That of each pyspark."""
ALTERNATIVES = (
    "Set FLUSHTRACKER_MAVEN to the URL of another Maven repository, or FLUSHTRACKER_JARS to a folder with the jars"
)


def fake_java(folder: Path, script: str) -> Path:
    """A ``java`` that runs these lines of shell."""
    folder.mkdir(parents=True, exist_ok=True)
    launcher = folder / "java"
    launcher.write_text(f"#!/bin/sh\n{script}\n")
    launcher.chmod(0o755)
    return launcher


def printing(version: str) -> str:
    return f"echo '{version}' >&2"


def on_path(folder: Path) -> dict[str, str]:
    return {"PATH": str(folder)}


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout without jars, set as the module's own."""
    (tmp_path / "checkout").mkdir()
    (tmp_path / "checkout" / "pyproject.toml").touch()
    monkeypatch.setattr(ivy_jars, "_CHECKOUT", tmp_path / "checkout")
    return tmp_path / "checkout"


def put_jars(folder: Path, *omitted: str, jars: JarSet = SPARK_JARS) -> None:
    for name in jars.names():
        if name not in omitted:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            with zipfile.ZipFile(folder / name, "w") as jar:
                jar.writestr("x", "x")


def put_pyspark(folder: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    """A package of that name and version, which is found before the real one."""
    (folder / "pyspark").mkdir()
    (folder / "pyspark" / "__init__.py").touch()
    (folder / "pyspark" / "version.py").write_text(f'__version__: str = "{version}"\n')
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    monkeypatch.delitem(sys.modules, "pyspark", raising=False)


@pytest.mark.parametrize(
    ("version", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('Picked up JAVA_TOOL_OPTIONS: -Dx=1\njava version "21-ea"', 21),
    ],
)
def test_a_supported_java_is_accepted(tmp_path: Path, version: str, major: int) -> None:
    """Other output of its launcher is ignored."""
    launcher = fake_java(tmp_path, f"cat >&2 <<'END'\n{version}\nEND")
    java = check_java({"PATH": f"{tmp_path}:{os.environ['PATH']}"})

    assert java == Java(launcher, major)
    assert java.warning is None


@pytest.mark.parametrize(("version", "major"), [("1.8.0_392", 8), ("11.0.2", 11), ("16", 16)])
def test_an_old_java_is_refused(tmp_path: Path, version: str, major: int) -> None:
    """The message has its version, the version needed, and what to do."""
    launcher = fake_java(tmp_path, printing(f'openjdk version "{version}"'))
    with pytest.raises(ConfigError) as caught:
        check_java(on_path(tmp_path))
    assert str(caught.value) == f"{launcher} is Java {major}, and Spark needs 17 or newer: {INSTALL} to one"


def test_a_missing_java_is_refused(tmp_path: Path) -> None:
    """The message says what to install."""
    with pytest.raises(ConfigError) as caught:
        check_java(on_path(tmp_path))
    assert str(caught.value) == f"Spark needs Java, and there is no java on the PATH: {INSTALL}"


def test_the_java_check_needs_no_package(tmp_path: Path) -> None:
    """`make` runs it before anything is installed; a refusal is one line, with a configuration error's exit code."""
    done = run_to_end(
        [sys.executable, "-S", "-m", "flushtracker.jvm.java"], cwd=Path(__file__).parents[3], env=on_path(tmp_path)
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"flushtracker: Spark needs Java, and there is no java on the PATH: {INSTALL}\n"


@pytest.mark.parametrize(
    ("jars", "counts", "some"),
    [
        (SPARK_JARS, dict.fromkeys(LOCKED, 11), {"delta-storage-4.4.0.jar", "kafka-clients-3.9.2.jar"}),
        (BROKER_JARS, {"default": 46}, {"kafka_2.13-4.2.0.jar", "slf4j-simple-1.7.36.jar"}),
        (S3_JARS, dict.fromkeys(LOCKED, 36), {"s3-2.35.4.jar", "analyticsaccelerator-s3-1.3.1.jar"}),
        (ABFS_JARS, {"4.0": 1, "4.1": 1, "4.2": 2}, set()),
        (GCS_JARS, {"4.2": 1}, {"hadoop-gcp-3.5.0.jar"}),
    ],
    ids=lambda each: each.owner if isinstance(each, JarSet) else "",
)
def test_every_jar_is_locked(jars: JarSet, counts: dict[str, int], some: set[str]) -> None:
    """Each has its exact version and no transitive dependencies, for each Spark."""
    locked = {name: [jar.file_name for jar in found] for name, found in read_lock(jars.ivy_xml).items()}
    assert {name: len(set(found)) for name, found in locked.items()} == counts
    assert {name: len(found) for name, found in locked.items()} == counts
    dependencies = re.findall("<dependency .*", jars.ivy_xml.read_text())
    assert len(dependencies) >= max(counts.values())
    assert all('transitive="false"' in line for line in dependencies)
    assert all(some <= set(found) for found in locked.values())
    if (chosen := (jars.of_spark and supported_minor(installed_version())) or "default") in locked:
        assert jars.names() == tuple(f"{jars.folder}{name}" for name in locked[chosen])


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
def test_every_jar_has_its_sum(lock: Path) -> None:
    """In a file that sha256sum reads; none is of a jar that is no longer locked."""
    sums = read_sums(lock)
    assert sums.keys() == {jar.file_name for jars in read_lock(lock).values() for jar in jars}
    assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in sums.values())


@pytest.mark.parametrize(("minor", "version"), LOCKED.items())
def test_each_spark_has_its_own_delta_and_kafka_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, minor: str, version: str
) -> None:
    """The pyspark that is installed chooses them; all else is the same."""
    put_pyspark(tmp_path, monkeypatch, version)
    assert installed_version() == version
    own = {f"delta-spark_{minor}_2.13-4.4.0.jar", f"spark-sql-kafka-0-10_2.13-{version}.jar"}
    names = set(SPARK_JARS.names())
    assert len(names) == 11
    assert {name for name in names if "_2.13-" in name and "token" not in name} == own
    for jars, module in ((S3_JARS, "s3/hadoop-aws"), (ABFS_JARS, "abfs/hadoop-azure")):
        assert [name for name in jars.names() if "hadoop" in name] == [f"{module}-{_HADOOP[minor]}.jar"]


def test_a_store_that_a_spark_has_no_jars_for_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hadoop has a file system for Google's store from 3.5 on."""
    put_pyspark(tmp_path, monkeypatch, LOCKED["4.2"])
    assert GCS_JARS.names() == ("gcs/hadoop-gcp-3.5.0.jar",)
    (tmp_path / "pyspark" / "version.py").write_text('__version__: str = "4.1.3"\n')
    with pytest.raises(ConfigError) as caught:
        GCS_JARS.fetch({})
    assert str(caught.value) == (
        "there are no jars for Spark on Google Cloud Storage with Spark 4.1, but with 4.2: install that, or name jars "
        "of another publisher in spark.jars of the section spark"
    )


def test_the_delta_that_is_installed_allows_each_spark() -> None:
    """One release of the package, so that a change of pyspark alone is a change of Spark."""
    assert metadata.version("delta-spark") == "4.4.0"
    required = [Requirement(line) for line in metadata.requires("delta-spark") or []]
    (pyspark,) = (each for each in required if each.name == "pyspark")
    assert [version for version in LOCKED.values() if version not in pyspark.specifier] == []


@pytest.mark.parametrize("version", ["3.5.7", "4.3.0"])
def test_a_spark_that_this_release_does_not_know_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    """Before a JVM starts: there is no Delta for it."""
    put_pyspark(tmp_path, monkeypatch, version)
    with pytest.raises(ConfigError) as caught:
        SPARK_JARS.paths({})
    assert str(caught.value) == (
        f"this is Spark {version}, and this release has jars for 4.0, 4.1, 4.2: run pip install 'flushtracker[spark]', "
        f"or choose a cluster of one of them"
    )


def test_jars_that_were_fetched_are_found_without_java(checkout: Path) -> None:
    """A second fetch, which is part of every `make`, does not start Java either."""
    put_jars(checkout / ".jars")
    nowhere = {"PATH": "/nonexistent"}

    assert SPARK_JARS.fetch(nowhere) == SPARK_JARS.paths(nowhere)
    assert SPARK_JARS.paths(nowhere) == [checkout / ".jars" / name for name in SPARK_JARS.names()]


def test_jars_that_were_never_fetched_are_reported_with_the_command(checkout: Path) -> None:
    """A job reports it before it starts Spark."""
    with pytest.raises(ConfigError) as caught:
        SPARK_JARS.paths({})
    assert str(caught.value) == (
        f"11 of 11 extra jars for Spark are not in {checkout}/.jars: run `python -m flushtracker.jvm.jars spark`, "
        "or set FLUSHTRACKER_JARS to a folder that has them"
    )


def test_an_installed_wheel_keeps_its_jars_in_the_users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All programs find them there, whatever the current directory is."""
    monkeypatch.setattr(ivy_jars, "_CHECKOUT", tmp_path / "site-packages")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for environ, cache in (({}, "home/.cache"), ({"XDG_CACHE_HOME": str(tmp_path / "other")}, "other")):
        put_jars(tmp_path / cache / "flushtracker")
        assert {path.parent for path in SPARK_JARS.paths(environ)} == {tmp_path / cache / "flushtracker"}


def test_a_folder_of_jars_is_used_as_it_is(tmp_path: Path) -> None:
    """Nothing is fetched into it; each jar that is missing or broken is named."""
    folder = tmp_path / "mine"
    put_jars(folder, "commons-pool2-2.13.1.jar")
    environ = {"FLUSHTRACKER_JARS": str(folder)}
    (folder / "delta-storage-4.4.0.jar").write_text("<html>Log in to the proxy</html>")
    for lookup in (SPARK_JARS.paths, SPARK_JARS.fetch):
        with pytest.raises(ConfigError) as caught:
            lookup(environ)
        assert str(caught.value) == (
            f"FLUSHTRACKER_JARS is {folder}: delta-storage-4.4.0.jar is truncated or not a jar; "
            "commons-pool2-2.13.1.jar is missing. Put them there, or unset it"
        )

    put_jars(folder)
    assert SPARK_JARS.fetch(environ) == [folder / name for name in SPARK_JARS.names()]


def test_the_brokers_jars_have_a_folder_of_their_own(checkout: Path, tmp_path: Path) -> None:
    """Two versions of Kafka's client must not share a class path. `FLUSHTRACKER_JARS` has the subfolder too."""
    with pytest.raises(ConfigError) as caught:
        BROKER_JARS.paths({})
    assert str(caught.value) == (
        f"46 of 46 extra jars for the broker are not in {checkout}/.jars: run "
        "`python -m flushtracker.jvm.jars broker`, or set FLUSHTRACKER_JARS to a folder that has them"
    )
    folder = tmp_path / "mine"
    put_jars(folder, "kafka/re2j-1.8.jar", jars=BROKER_JARS)
    environ = {"FLUSHTRACKER_JARS": str(folder)}
    with pytest.raises(ConfigError) as caught:
        BROKER_JARS.fetch(environ)
    assert str(caught.value) == (
        f"FLUSHTRACKER_JARS is {folder}: kafka/re2j-1.8.jar is missing. Put them there, or unset it"
    )

    put_jars(folder, jars=BROKER_JARS)
    assert {path.parent for path in BROKER_JARS.paths(environ)} == {folder / "kafka"}


def java_or_skip() -> None:
    try:
        check_java()
    except ConfigError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(
    ("repository", "shown", "reason"),
    [
        ("file:///nonexistent", "file:///nonexistent", f"{DELTA};4.4.0: not found"),
        ("http://me:hunter2@127.0.0.1:9/m2", "http://127.0.0.1:9/m2", "ConnectException: Connection refused"),
    ],
)
def test_a_repository_that_cannot_be_reached_fails_at_once(
    checkout: Path, repository: str, shown: str, reason: str
) -> None:
    """The message has the reason, the log and the alternatives, but not the repository's password; no jar remains."""
    java_or_skip()
    started = time.monotonic()
    with pytest.raises(ConfigError) as caught:
        SPARK_JARS.fetch({**os.environ, "FLUSHTRACKER_MAVEN": repository, "FLUSHTRACKER_JARS": ""})

    log = checkout / ".jars" / "fetch.log"
    assert str(caught.value) == (
        f"11 of 11 jars for Spark could not be fetched from {shown}, {reason} (Ivy's log: {log}). {ALTERNATIVES}"
    )
    assert time.monotonic() - started < 30
    assert "hunter2" not in log.read_text()
    assert [path.name for path in (checkout / ".jars").iterdir()] == ["fetch.log"]


def put_repository(repository: Path, tmp_path: Path) -> tuple[JarSet, dict[str, str]]:
    """A Maven repository that has the jars, their set, and the environment in which they are fetched from there."""
    put_jars(tmp_path / "flat")
    (tmp_path / "lock").mkdir()
    jars = replace(SPARK_JARS, ivy_xml=Path(shutil.copy(SPARK_JARS.ivy_xml, tmp_path / "lock")))
    found = [f"{sha256_of(jar)}  {jar.name}\n" for jar in (tmp_path / "flat").iterdir()]
    sums_file(jars.ivy_xml).write_text("".join(found))
    groups = {"delta": "io/delta", "unity": "io/unitycatalog", "spark": "org/apache/spark", "kafka": "org/apache/kafka"}
    for path in (tmp_path / "flat").iterdir():
        name, _, version = path.stem.rpartition("-")
        group = next((where for start, where in groups.items() if name.startswith(start)), "org/apache/commons")
        (repository / group / name / version).mkdir(parents=True)
        path.rename(repository / group / name / version / path.name)
    environ = {"FLUSHTRACKER_MAVEN": repository.as_uri().replace("%26", "&"), "FLUSHTRACKER_JARS": ""}
    return jars, {**os.environ, **environ}


def test_a_fetch_gets_all_jars_or_none(checkout: Path, tmp_path: Path) -> None:
    """A repository that lacks one jar leaves nothing; once it has them all, the failure's log is removed too."""
    java_or_skip()
    repository = tmp_path / "maven & more"
    jars, environ = put_repository(repository, tmp_path)
    missing = repository / "io/delta/delta-storage/4.4.0/delta-storage-4.4.0.jar"
    missing.rename(tmp_path / "moved")

    with pytest.raises(ConfigError, match=r"jars for Spark could not be fetched .*, delta-storage;4.4.0: not found"):
        jars.fetch(environ)
    assert [path.name for path in (checkout / ".jars").iterdir()] == ["fetch.log"]

    (tmp_path / "moved").rename(missing)
    assert jars.fetch(environ) == [checkout / ".jars" / name for name in SPARK_JARS.names()]
    assert {path.name for path in (checkout / ".jars").iterdir()} == set(SPARK_JARS.names())


def test_a_jar_that_a_repository_has_changed_is_refused(checkout: Path, tmp_path: Path) -> None:
    """It is a whole jar, of the right name and version, and no jar is kept; with the right one all are."""
    java_or_skip()
    repository = tmp_path / "maven"
    jars, environ = put_repository(repository, tmp_path)
    tampered = repository / "io/delta/delta-storage/4.4.0/delta-storage-4.4.0.jar"
    right = tampered.read_bytes()
    with zipfile.ZipFile(tampered, "a") as jar:
        jar.writestr("io/delta/storage/Backdoor.class", "x")
    expected, found = read_sums(jars.ivy_xml)[tampered.name], sha256_of(tampered)

    with pytest.raises(ConfigError) as caught:
        jars.fetch(environ)
    assert str(caught.value) == (
        f"delta-storage-4.4.0.jar from file://{repository} is not the jar that this release was tested with: "
        f"its SHA-256 is {found}, and should be {expected}. None was kept. Set FLUSHTRACKER_MAVEN to the URL of "
        "another Maven repository; if this jar is what you want, put it into a folder and set FLUSHTRACKER_JARS to that"
    )
    assert list((checkout / ".jars").iterdir()) == []

    tampered.write_bytes(right)
    assert len(jars.fetch(environ)) == 11


def test_a_fetch_for_another_spark_leaves_the_jars_that_both_have(checkout: Path, tmp_path: Path) -> None:
    """The archive of the first one's classes fits only jars of the same time, and a JVM may have them open."""
    java_or_skip()
    jars, environ = put_repository(tmp_path / "maven", tmp_path)
    put_jars(checkout / ".jars", f"{DELTA}-4.4.0.jar")
    (checkout / ".jars" / "delta-storage-4.4.0.jar").write_bytes(b"PK, and no more")
    kept = checkout / ".jars" / "delta-kernel-api-4.4.0.jar"
    before = kept.stat()
    assert jars.fetch(environ) == SPARK_JARS.paths(environ)
    after = kept.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
