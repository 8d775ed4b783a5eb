"""Java and the jars: the errors on a machine that lacks one of them, and what a fetch leaves behind."""

import os
import re
import subprocess
import sys
import time
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from flushtracker.errors import ConfigError
from flushtracker.jvm import ivy_jars, spark_version
from flushtracker.jvm.ivy_jars import JarSet
from flushtracker.jvm.jars import BROKER_JARS, S3_JARS, SPARK_JARS
from flushtracker.jvm.java import Java, check_java
from flushtracker.jvm.spark_version import LOCKED, installed_version, supported_minor

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


def test_a_newer_java_is_accepted_with_a_warning(tmp_path: Path) -> None:
    """It may work, but it is untested."""
    launcher = fake_java(tmp_path, printing('openjdk version "25.0.1"'))
    assert check_java(on_path(tmp_path)).warning == (
        f"{launcher} is Java 25; Spark supports Java 17 and 21, and this version is untested"
    )


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


def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    """Spark has the same rule: a good Java on the PATH does not make up for a bad JAVA_HOME."""
    fake_java(tmp_path / "path", printing('openjdk version "17"'))
    home = tmp_path / "home"
    environ = on_path(tmp_path / "path") | {"JAVA_HOME": str(home)}
    with pytest.raises(ConfigError) as caught:
        check_java(environ)
    assert str(caught.value) == (
        f"JAVA_HOME is {home}, but there is no {home}/bin/java: set it to a JDK 17 or 21, or unset it"
    )

    fake_java(home / "bin", printing('openjdk version "11"'))
    with pytest.raises(ConfigError) as caught:
        check_java(environ)
    assert str(caught.value) == (
        f"{home}/bin/java is Java 11, and Spark needs 17 or newer: "
        f"JAVA_HOME is {home}: set it to a JDK 17 or 21, or unset it"
    )

    fake_java(home / "bin", printing('openjdk version "21"'))
    assert check_java(environ) == Java(home / "bin" / "java", 21)
    assert check_java(environ | {"JAVA_HOME": ""}).major == 17


def test_a_java_that_does_not_work_is_refused(tmp_path: Path) -> None:
    """Such as the placeholder that macOS ships, or a launcher for another machine."""
    launcher = fake_java(tmp_path, "echo 'Unable to locate a Java Runtime.' >&2; exit 1")
    with pytest.raises(ConfigError) as caught:
        check_java(on_path(tmp_path))
    assert str(caught.value) == (
        f"{launcher} does not report its version, but prints 'Unable to locate a Java Runtime.\\n': {INSTALL} to one"
    )
    launcher.write_bytes(b"\x7fELF")
    with pytest.raises(ConfigError, match=r"java does not run, .*Exec format error"):
        check_java(on_path(tmp_path))


def test_the_java_check_needs_no_package(tmp_path: Path) -> None:
    """`make` runs it before anything is installed; a refusal is one line, with a configuration error's exit code."""
    done = subprocess.run(
        [sys.executable, "-S", "-m", "flushtracker.jvm.java"],
        cwd=Path(__file__).parents[2],
        env=on_path(tmp_path),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"flushtracker: Spark needs Java, and there is no java on the PATH: {INSTALL}\n"


@pytest.mark.parametrize(
    ("jars", "count", "some"),
    [
        (SPARK_JARS, 11, {"delta-storage-4.4.0.jar", "kafka-clients-3.9.2.jar"}),
        (BROKER_JARS, 46, {"kafka/kafka_2.13-4.2.0.jar", "kafka/slf4j-simple-1.7.36.jar"}),
    ],
)
def test_every_jar_is_locked(jars: JarSet, count: int, some: set[str]) -> None:
    """Each has its exact version and no transitive dependencies."""
    assert len(jars.names()) == len(set(jars.names())) == count
    dependencies = re.findall("<dependency .*", jars.ivy_xml.read_text())
    assert len(dependencies) >= count
    assert all('transitive="false"' in line for line in dependencies)
    assert some <= set(jars.names())


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
    assert [name for name in S3_JARS.names() if "hadoop" in name] == [f"s3/hadoop-aws-{_HADOOP[minor]}.jar"]


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


def test_the_makefile_asks_for_the_pyspark_of_a_spark(capsys: pytest.CaptureFixture[str]) -> None:
    """`constraints.txt` has the newest."""
    for minor, version in LOCKED.items():
        assert spark_version.main([minor]) == 0
        assert capsys.readouterr().out == f"{version}\n"
    assert f"\npyspark=={version}\n" in (Path(__file__).parents[2] / "constraints.txt").read_text()
    for wrong in ([], ["3.5"], ["4.0", "4.1"]):
        assert spark_version.main(wrong) == ConfigError.exit_code
        assert capsys.readouterr().err == "flushtracker: expected one version of Spark: 4.0, 4.1, 4.2\n"


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


def put_repository(repository: Path, tmp_path: Path) -> dict[str, str]:
    """A Maven repository that has the jars, and the environment in which they are fetched from there."""
    put_jars(tmp_path / "flat")
    groups = {"delta": "io/delta", "unity": "io/unitycatalog", "spark": "org/apache/spark", "kafka": "org/apache/kafka"}
    for path in (tmp_path / "flat").iterdir():
        name, _, version = path.stem.rpartition("-")
        group = next((where for start, where in groups.items() if name.startswith(start)), "org/apache/commons")
        (repository / group / name / version).mkdir(parents=True)
        path.rename(repository / group / name / version / path.name)
    return {**os.environ, "FLUSHTRACKER_MAVEN": repository.as_uri().replace("%26", "&"), "FLUSHTRACKER_JARS": ""}


def test_a_fetch_gets_all_jars_or_none(checkout: Path, tmp_path: Path) -> None:
    """A repository that lacks one jar leaves nothing; once it has them all, the failure's log is removed too."""
    java_or_skip()
    repository = tmp_path / "maven & more"
    environ = put_repository(repository, tmp_path)
    missing = repository / "io/delta/delta-storage/4.4.0/delta-storage-4.4.0.jar"
    missing.rename(tmp_path / "moved")

    with pytest.raises(ConfigError, match=r"jars for Spark could not be fetched .*, delta-storage;4.4.0: not found"):
        SPARK_JARS.fetch(environ)
    assert [path.name for path in (checkout / ".jars").iterdir()] == ["fetch.log"]

    (tmp_path / "moved").rename(missing)
    assert SPARK_JARS.fetch(environ) == [checkout / ".jars" / name for name in SPARK_JARS.names()]
    assert {path.name for path in (checkout / ".jars").iterdir()} == set(SPARK_JARS.names())


def test_a_fetch_for_another_spark_leaves_the_jars_that_both_have(checkout: Path, tmp_path: Path) -> None:
    """The archive of the first one's classes fits only jars of the same time, and a JVM may have them open."""
    java_or_skip()
    environ = put_repository(tmp_path / "maven", tmp_path)
    put_jars(checkout / ".jars", f"{DELTA}-4.4.0.jar")
    (checkout / ".jars" / "delta-storage-4.4.0.jar").write_bytes(b"PK, and no more")
    kept = checkout / ".jars" / "delta-kernel-api-4.4.0.jar"
    before = kept.stat()
    assert SPARK_JARS.fetch(environ) == SPARK_JARS.paths(environ)
    after = kept.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_a_malformed_repository_url_is_refused(checkout: Path) -> None:
    """Before anything is started, and without showing it: it may contain a password."""
    for repository in ("repo.example.org/maven", "ftp://me:hunter2@x/", "http://[me:hunter2"):
        with pytest.raises(ConfigError) as caught:
            SPARK_JARS.fetch({"FLUSHTRACKER_MAVEN": repository})
        assert str(caught.value) == ("FLUSHTRACKER_MAVEN is not a URL that starts with https://, http:// or file://")
    assert not (checkout / ".jars").exists()


def test_a_folder_that_cannot_be_written_is_reported(checkout: Path, tmp_path: Path) -> None:
    """Such as on a full disk, or with a file in the folder's place."""
    (checkout / ".jars").touch()
    fake_java(tmp_path, printing('openjdk version "17"'))
    with pytest.raises(ConfigError, match=r"the jars for Spark cannot be stored in .*/\.jars: .*File exists"):
        SPARK_JARS.fetch(on_path(tmp_path))
