"""The directory of Spark's sockets: whom it lets in, when it goes, and what a path that is too long does."""

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from flushtracker.spark.worker_sockets import socket_settings

_PROGRAM = """
from flushtracker.spark.worker_sockets import socket_settings
print(socket_settings()["spark.python.unix.domain.socket.dir"])
"""


def test_only_this_user_can_enter_the_directory_of_the_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker runs what it is sent, and asks for no password."""
    monkeypatch.setattr(tempfile, "tempdir", "/tmp")  # noqa: S108  a test's own may be too long
    settings = socket_settings()
    folder = Path(settings["spark.python.unix.domain.socket.dir"])
    assert settings["spark.python.unix.domain.socket.enabled"] == "true"
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.rmdir()


def test_the_directory_of_the_sockets_goes_with_the_program() -> None:
    found = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True, env={})
    assert found.stdout.startswith("/")
    assert not Path(found.stdout.strip()).exists()


@pytest.mark.parametrize("fits", [True, False])
def test_a_path_that_is_too_long_for_a_socket_is_not_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, fits: bool
) -> None:
    """Spark would not start its workers."""
    longest = 103 - len("/flushtracker-00000000/.00000000-0000-0000-0000-000000000000.sock")
    folder = tmp_path.parents[-2] / ("x" * (longest - len(str(tmp_path.parents[-2])) - 1 + (not fits)))
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    try:
        settings = socket_settings()
        assert bool(settings) == fits
        for path in folder.iterdir():
            assert fits
            path.rmdir()
    finally:
        folder.rmdir()
