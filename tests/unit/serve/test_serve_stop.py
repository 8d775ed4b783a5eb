"""``serve`` ends after SIGTERM in bounded time, whatever hangs."""

import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Final

from tests.support.sample_registry import users_log
from tests.support.serve_process import configuration

_ROOT: Final = Path(__file__).parents[3]
_HANGS: Final = """\
import sys, time
from flushtracker.cli import run
from flushtracker.serve import program
from flushtracker.serve.app import ServeApp
program.STOP_TIMEOUT_S = 0.5
async def hang(*_):
    print("hangs", file=sys.stderr, flush=True)
    time.sleep(1_000)
ServeApp._answer = hang
run(["serve", *sys.argv[1:]])
"""
_READ_HANGS: Final = """\
import sys, time
from flushtracker.cli import run
from flushtracker.serve.reads import LogReads
def hang(*_):
    print("hangs", file=sys.stderr, flush=True)
    time.sleep(1_000)
LogReads.state = hang
run(["serve", *sys.argv[1:]])
"""


def test_server_whose_event_loop_hangs_ends(tmp_path: Path) -> None:
    """As in a line of a log that nobody reads: no handler on the loop is called."""
    assert _ended(tmp_path, _HANGS, "/healthz") == 1


def test_server_whose_read_hangs_ends_as_any_other(tmp_path: Path) -> None:
    """A storage that does not answer keeps a thread, and no thread keeps the process."""
    assert _ended(tmp_path, _READ_HANGS, "/v1/shape?shape=users&offset=-1") == 0


def _ended(folder: Path, program: str, asked: str) -> int:
    """How a server ends by SIGTERM of which something hangs once it is asked for a path, by a client that has left."""
    path = configuration(folder, users_log(folder))
    command = [sys.executable, "-c", program, "--config", str(path)]
    with subprocess.Popen(command, cwd=_ROOT, stderr=subprocess.PIPE, text=True) as running:
        # Whatever is read for too long is ended, too.
        killing = threading.Timer(120, running.kill)
        killing.start()
        try:
            assert running.stderr is not None
            while "serving url=" not in (line := running.stderr.readline()):
                assert line
            port = int(line.partition("127.0.0.1:")[2].partition("/")[0])
            with socket.create_connection(("127.0.0.1", port), 30) as client:
                client.sendall(f"GET {asked} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
                while "hangs" not in (line := running.stderr.readline()):
                    assert line
            running.send_signal(signal.SIGTERM)
            return running.wait(100)
        finally:
            killing.cancel()
            running.kill()
