"""The jar with our class for checkpoints on S3: when it is made, and what happens if that fails."""

from pathlib import Path

import pytest

from flushtracker.errors import ConfigError
from flushtracker.jvm import ivy_jars
from flushtracker.jvm.checkpoint_jar import build_checkpoint_jar, checkpoint_jar, streaming_package
from flushtracker.jvm.spark_version import LOCKED, installed_version, supported_minor


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a checkout has the jars of S3."""
    monkeypatch.setattr(ivy_jars, "_CHECKOUT", tmp_path)
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / ".jars/s3").mkdir(parents=True)
    return tmp_path / ".jars/s3"


def _java(tmp_path: Path, script: str) -> dict[str, str]:
    """An environment with a ``java`` that runs a line of shell, if not asked for its version."""
    launcher = tmp_path / "java"
    launcher.write_text(f"#!/bin/sh\n[ $1 != -version ] || {{ echo 'version \"17.0.1\"' >&2; exit; }}\n{script}\n")
    launcher.chmod(0o755)
    return {"PATH": f"{tmp_path}:/usr/bin:/bin"}


def test_class_is_compiled_for_the_installed_spark_once(tmp_path: Path, folder: Path) -> None:
    """What another source gave is replaced; what another Spark has stays."""
    minor = supported_minor(installed_version())
    outdated, other = folder / f"flushtracker-checkpoints_{minor}-0.jar", folder / "flushtracker-checkpoints_3.5-0.jar"
    outdated.touch()
    other.touch()
    java = _java(
        tmp_path, 'mkdir "$5/flushtracker" && ! grep -q "import STREAMING" "$8" && cp "$8" "$5/flushtracker/A.class"'
    )
    jar = build_checkpoint_jar(java)
    assert sorted(folder.iterdir()) == sorted([jar, other])
    assert jar == checkpoint_jar({})
    assert build_checkpoint_jar({"PATH": "/nonexistent"}) == jar


def test_refused_class_is_reported_and_leaves_nothing(tmp_path: Path, folder: Path) -> None:
    """With what the compiler says."""
    with pytest.raises(ConfigError, match=r"^Spark's compiler refuses DirectCheckpointFiles\.java: no such class$"):
        build_checkpoint_jar(_java(tmp_path, "echo no such class"))
    assert list(folder.iterdir()) == []


def test_nothing_is_added_to_a_folder_of_jars_of_the_users(tmp_path: Path) -> None:
    """It may be read-only; the class is used if it is there."""
    assert not build_checkpoint_jar({"FLUSHTRACKER_JARS": str(tmp_path), "PATH": "/nonexistent"}).exists()
    assert list(tmp_path.iterdir()) == []


def test_package_is_that_of_each_spark() -> None:
    """Spark 4.1 has moved it."""
    packages = {minor: streaming_package(version).rpartition(".")[2] for minor, version in LOCKED.items()}
    assert packages == {"4.0": "streaming", "4.1": "checkpointing", "4.2": "checkpointing"}
