"""What `flushtracker dist` writes: the same bytes from the same sources, and everything an executor needs."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from flushtracker.cli import main
from flushtracker.errors import ConfigError
from flushtracker.jvm.jars import SPARK_JARS
from flushtracker.spark.dist import write_zip


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "flushtracker.zip"
    write_zip(path)
    return path


def test_zip_contains_only_the_package_and_sortedcontainers(archive: Path) -> None:
    """Data files beside the modules are included; compiled Python files are not."""
    names = zipfile.ZipFile(archive).namelist()
    assert {name.partition("/")[0] for name in names} == {"flushtracker", "sortedcontainers"}
    assert {
        "flushtracker/tracking/shape_group.py",
        "flushtracker/jvm/spark_jars.xml",
        "sortedcontainers/__init__.py",
    } <= set(names)
    assert not [name for name in names if name.endswith(".pyc")]


def test_zip_is_the_same_at_any_time_and_under_any_umask(archive: Path, tmp_path: Path) -> None:
    """So a cluster's operator can compare two builds."""
    before = os.umask(0o077)
    try:
        write_zip(tmp_path / "again.zip")
    finally:
        os.umask(before)
    assert (tmp_path / "again.zip").read_bytes() == archive.read_bytes()
    assert {entry.date_time[0] for entry in zipfile.ZipFile(archive).infolist()} == {1980}


def test_core_imports_from_the_zip_in_a_python_without_packages(archive: Path) -> None:
    """The zip includes sortedcontainers, which executors do not have otherwise."""
    load = "import sys; sys.path.insert(0, sys.argv[1]); import flushtracker.tracking.source_tracker as m"
    program = f"{load}; print(m.__file__)"
    command = [sys.executable, "-S", "-E", "-s", "-c", program, str(archive)]
    done = subprocess.run(command, cwd=archive.parent, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == f"{archive}/flushtracker/tracking/source_tracker.py\n"


@pytest.fixture
def jars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a jar of each name."""
    folder = tmp_path / "jars"
    folder.mkdir()
    for name in SPARK_JARS.names():
        with zipfile.ZipFile(folder / name, "w") as jar:
            jar.writestr("x", "x")
    monkeypatch.setenv("FLUSHTRACKER_JARS", str(folder))
    return folder


@pytest.mark.parametrize("is_there", [False, True])
def test_command_writes_all_that_spark_submit_takes(jars: Path, tmp_path: Path, is_there: bool) -> None:  # noqa: FBT001
    """Into a folder that is new or empty."""
    dist = tmp_path / "dist"
    if is_there:
        dist.mkdir()
    assert main(["dist", str(dist)]) == 0
    assert {path.relative_to(dist).as_posix() for path in dist.rglob("*") if path.is_file()} == {
        *("flushtracker.zip", "log4j2.properties"),
        *(f"jars/{path.name}" for path in jars.iterdir()),
        *(f"jobs/{name}.py" for name in ("track_flushes", "write_shapes", "snapshot_shapes")),
    }
    assert "RollingFile" in (dist / "log4j2.properties").read_text()


@pytest.mark.usefixtures("jars")
@pytest.mark.parametrize(
    ("folder", "problem"),
    [("full", "full is not empty: name a new folder"), ("full/x/y", "full/x/y cannot be written: Not a directory")],
)
def test_folder_that_cannot_be_used_is_refused_and_left_alone(
    folder: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beside other jars, two versions of one could go to the executors."""
    monkeypatch.chdir(tmp_path)
    Path("full").mkdir()
    Path("full/x").write_text("kept")
    assert main(["dist", folder]) == ConfigError.exit_code
    assert problem in capsys.readouterr().err
    assert [(path.name, path.read_text()) for path in Path("full").iterdir()] == [("x", "kept")]


def test_program_reports_in_one_line_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It writes nothing then."""
    monkeypatch.setenv("FLUSHTRACKER_JARS", str(tmp_path))
    assert main(["dist", str(tmp_path / "dist")]) == ConfigError.exit_code
    error = capsys.readouterr().err
    assert f"FLUSHTRACKER_JARS is {tmp_path}: " in error
    assert error.count("\n") == 1
    assert not (tmp_path / "dist").exists()
