"""The parts of ``make demo`` that need no server and no broker."""

import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from flushtracker.capture.capture_config import load_capture_config
from flushtracker.config.config_keys import KEYS
from flushtracker.config.job_config import load_config
from flushtracker.config.serve_config import load_serve_config
from flushtracker.config.status_config import StatusConfig
from flushtracker.config.write_config import load_write_config
from flushtracker.errors import ConfigError
from flushtracker.process import guarded_process
from flushtracker.process.guarded_process import GuardedProcess, child_environment
from flushtracker.trials.demo import demo as module
from flushtracker.trials.demo.demo import HTTP_PORT, STATUS_PORT, demo_config, demo_folder
from tests.support.processes import has_ended, run_to_end
from tests.support.waiting import wait_until


def test_files_of_the_demo_work_in_another_terminal(tmp_path: Path) -> None:
    """Its copies contain no variables, whatever the folder is called."""
    folder = Path('/my "demo": #1 ${HOME}')
    path = tmp_path / "flushtracker.yaml"
    path.write_text(demo_config(folder, 9464, 9470))
    capture = load_capture_config(path)
    assert (capture.acks, capture.shapes) == (f"{folder}/acks", folder / "shapes.d")
    peers = tuple(f"http://127.0.0.1:{port}" for port in (9465, 9466, 9468))
    assert load_config(path).status == StatusConfig("127.0.0.1", 9464, peers)
    writers = load_write_config(path)
    assert writers.trigger_ms == 1_000
    served = load_serve_config(path)
    assert (served.http.listen, served.sink.log) == ("127.0.0.1:9470", writers.sink.log)
    assert served.sink.shapes == writers.sink.shapes


def test_folder_is_emptied_of_an_earlier_demo_and_of_nothing_else(tmp_path: Path) -> None:
    """A folder with other files in it is refused."""
    folder = tmp_path / "data" / "demo"
    with demo_folder(folder):
        (folder / "server").mkdir()
        (folder / "server" / "file").touch()
        (folder / "capture.log").touch()
    with demo_folder(folder):
        assert [path.name for path in folder.iterdir()] == ["demo.lock"]
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis").touch()
    with pytest.raises(ConfigError, match="mine has files that are not from a demo"), demo_folder(mine):
        pass
    assert (mine / "thesis").exists()


def test_two_demos_do_not_share_a_folder(tmp_path: Path) -> None:
    """The second would delete the data of the first."""
    with (
        demo_folder(tmp_path),
        pytest.raises(ConfigError, match=r"another demo is running in .*; stop it"),
        demo_folder(tmp_path),
    ):
        pass


def test_folder_that_cannot_be_created_is_refused(tmp_path: Path) -> None:
    """The message says what to do."""
    (tmp_path / "file").touch()
    with (
        pytest.raises(ConfigError, match=r"the demo cannot use .*; name another folder"),
        demo_folder(tmp_path / "file"),
    ):
        pass


def child(folder: Path, program: str) -> GuardedProcess:
    return GuardedProcess("capture", [sys.executable, "-c", program], log=folder / "log", env={})


@pytest.mark.parametrize(
    ("program", "fact", "exit_code"),
    [
        ("import sys; print('one'); print('the reason\\n'); sys.exit(6)", "exited with 6: the reason;", 6),
        ("import os; os.kill(os.getpid(), 9)", "exited with 137: no output;", 137),
        ("print('done')", "exited with 1: done;", 1),
    ],
)
def test_child_that_exits_unasked_is_reported_with_its_last_line(
    tmp_path: Path, program: str, fact: str, exit_code: int
) -> None:
    """An exit without an error is a failure too if the child was not stopped."""
    process = child(tmp_path, program)
    failure = wait_until(process.failure, "the child's exit", 30)
    process.stop()
    assert fact in str(failure)
    assert failure.exit_code == exit_code


def test_stopping_a_child_ends_its_whole_group(tmp_path: Path) -> None:
    """Processes that the child started, and did not stop itself, end too."""
    program = "import subprocess, sys; p = subprocess.Popen(['sleep', '60']); print(p.pid, flush=True); p.wait()"
    process = child(tmp_path, program)
    log = tmp_path / "log"
    wait_until(lambda: log.read_text().endswith("\n"), "the grandchild's process id", 30)
    process.stop()
    # A killed process is still there for a moment, and stopping waits only for the child.
    wait_until(lambda: has_ended(int(log.read_text())), "the grandchild's end", 30)


def test_first_signal_requests_the_stop_and_later_ones_change_nothing() -> None:
    """During startup the first also interrupts; a second Ctrl-C must not cut the shutdown short."""
    program = """
import os, signal
from flushtracker.process.program import StopRequest
stop = StopRequest()
try:
    os.kill(os.getpid(), signal.SIGTERM)
except KeyboardInterrupt:
    os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGTERM)
    print("made", stop.is_made)
"""
    done = run_to_end([sys.executable, "-c", program], timeout=60)
    assert (done.returncode, done.stdout) == (0, "made True\n")


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python cannot be told not to look in the folder")
def test_programs_of_the_demo_are_not_those_of_the_folder_where_it_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wheel's jars are elsewhere than those of the checkout in which the README says to build and start it."""
    (tmp_path / "flushtracker").mkdir()
    (tmp_path / "flushtracker" / "__main__.py").write_text("raise SystemExit(9)")
    monkeypatch.chdir(tmp_path)
    command = [sys.executable, "-m", "flushtracker", "--version"]
    assert subprocess.run(command, check=False).returncode == 9
    assert subprocess.run(command, check=False, env=child_environment()).returncode == 0


@pytest.mark.parametrize(("installed", "is_other"), [(".venv/lib/python3/site-packages", True), (".", False)])
def test_programs_of_a_wheel_in_an_environment_inside_the_checkout_are_the_wheels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: str, *, is_other: bool
) -> None:
    """The README's quickstart: the environment is in the folder where the demo is started."""
    module = tmp_path / installed / "flushtracker" / "process" / "guarded_process.py"
    monkeypatch.setattr(guarded_process, "__file__", str(module))
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    monkeypatch.chdir(tmp_path)
    assert ("PYTHONSAFEPATH" in child_environment()) == is_other


def test_demos_that_start_side_by_side_have_different_ports() -> None:
    """The first has the defaults, which the README names, unless they are in use."""
    with ExitStack() as marks:
        sockets = [marks.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(3)]
        found = [module._default_ports(mark) for mark in sockets]
    assert len({port for ports in found for port in ports}) == 6
    assert KEYS["serve.listen"].default == f"127.0.0.1:{HTTP_PORT}"
    assert KEYS["status.listen"].default == f"127.0.0.1:{STATUS_PORT}"
