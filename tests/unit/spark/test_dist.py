"""What `make dist` builds: the same bytes from the same sources, and everything an executor needs."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from flushtracker.errors import ConfigError
from flushtracker.jvm.jars import SPARK_JARS
from flushtracker.spark.dist import main, write_dist, write_zip


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


def test_jars_of_an_earlier_build_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise two versions of one jar would go to the executors."""
    (tmp_path / "jars").mkdir()
    for name in SPARK_JARS.names():
        with zipfile.ZipFile(tmp_path / "jars" / name, "w") as jar:
            jar.writestr("x", "x")
    monkeypatch.setenv("FLUSHTRACKER_JARS", str(tmp_path / "jars"))
    (tmp_path / "dist/jars").mkdir(parents=True)
    (tmp_path / "dist/jars/delta-spark_4.2_2.13-0.0.1.jar").touch()
    write_dist(tmp_path / "dist")
    assert sorted(path.name for path in (tmp_path / "dist/jars").iterdir()) == sorted(SPARK_JARS.names())
    assert (tmp_path / "dist/flushtracker.zip").exists()
    assert "RollingFile" in (tmp_path / "dist/log4j2.properties").read_text()


def test_program_reports_in_one_line_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`make dist` stops there."""
    monkeypatch.setenv("FLUSHTRACKER_JARS", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["dist", str(tmp_path / "dist")])
    assert main() == ConfigError.exit_code
    error = capsys.readouterr().err
    assert error.startswith(f"flushtracker: FLUSHTRACKER_JARS is {tmp_path}: ")
    assert error.count("\n") == 1
