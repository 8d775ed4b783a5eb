"""A program ends with its exit code, whatever the threads of its libraries still do."""

import runpy
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[3]
_LATE_THREAD: Final = """
import ctypes, sys, time
from flushtracker.process.process_end import end_process

class SlowToGo:
    def __del__(self, sleep=time.sleep):
        sleep(1)

slow = SlowToGo()
ctypes.CDLL({library!r}).start()
print("done")
"""


def ended(program: str, **streams: object) -> subprocess.CompletedProcess[str]:
    """A process that runs ``program``, whose output is buffered."""
    command, variables = [sys.executable, "-c", program], {"PYTHONPATH": str(ROOT)}
    streams = {"stdout": subprocess.PIPE} | streams
    streams |= {"text": True, "stderr": subprocess.PIPE, "timeout": 60}
    return subprocess.run(command, env=variables, check=False, **streams)  # type: ignore[call-overload, no-any-return]


def test_process_ends_although_a_native_thread_takes_the_interpreter_late(tmp_path: Path) -> None:
    """Python before 3.14 ends the thread: ``write`` on HDFS so ended with 139, after it had done all of its work."""
    library = tmp_path / "late_thread.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, ROOT / "tests/support/late_thread.c"], check=True)
    program = _LATE_THREAD.format(library=str(library))
    if sys.version_info < (3, 14):
        assert ended(program + "sys.exit(7)").returncode == -signal.SIGABRT
    done = ended(program + "end_process(7)")
    assert (done.returncode, done.stdout, done.stderr) == (7, "done\n", "")


def test_what_was_registered_for_the_end_runs_and_threads_are_waited_for() -> None:
    program = """
import atexit, threading, time
from flushtracker.process.process_end import end_process
atexit.register(print, "registered")
threading.Thread(target=lambda: (time.sleep(0.2), print("thread"))).start()
end_process(3)
"""
    done = ended(program)
    assert (done.returncode, done.stdout) == (3, "thread\nregistered\n")


def test_output_that_cannot_be_written_is_an_exit_code() -> None:
    """The same as Python's own: nothing else tells a script that it has only a part."""
    program = "from flushtracker.process.process_end import end_process\nprint('x')\nend_process(0)"
    with Path("/dev/full").open("w") as full:
        assert ended(program, stdout=full).returncode == 120


@pytest.mark.parametrize("entry", ["__main__", "snapshot_shapes", "track_flushes", "write_shapes"])
def test_every_process_of_ours_ends_so(entry: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    codes = list[int]()
    monkeypatch.setattr("flushtracker.cli.end_process", codes.append)
    command = ["track"] if entry == "__main__" else []
    monkeypatch.setattr("sys.argv", ["x", *command, "--config", str(tmp_path / "missing.yaml")])
    file = ROOT / ("flushtracker" if entry == "__main__" else "jobs") / f"{entry}.py"
    runpy.run_path(str(file), run_name="__main__")
    assert codes == [2]


_HUNG_READ: Final = """
import socket, threading
from flushtracker.config.status_config import StatusConfig
from flushtracker.status.http.status_server import StatusServer
from flushtracker.process.process_end import end_process

reading = threading.Event()

def read():
    if threading.current_thread().name.startswith("status-answer"):
        reading.set()
    threading.Event().wait()

with StatusServer(StatusConfig("127.0.0.1", 0), read) as server:
    client = socket.create_connection(("127.0.0.1", server.port))
    client.sendall(b"GET /status.json HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n" * 3)
    reading.wait()
{end}
"""


@pytest.mark.parametrize("end", ["end_process(7)", "raise SystemExit(7)"])
def test_status_read_that_hangs_does_not_keep_the_process(end: str) -> None:
    """Such as one that waits for a storage: the program has done all of its work."""
    assert ended(_HUNG_READ.format(end=end)).returncode == 7
