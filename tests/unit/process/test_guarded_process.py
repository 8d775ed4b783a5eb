"""``GuardedProcess``: a child never outlives the process that has started it."""

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

from flushtracker.process.guarded_process import GuardedProcess
from tests.support.processes import run_to_end
from tests.support.waiting import wait_until

_KILLED_BEFORE_THE_GUARD: Final = """\
import os, signal, sys
from pathlib import Path
from flushtracker.process import guarded_process

def kill(command):
    os.kill(os.getpid(), signal.SIGKILL)

guarded_process.Guard = kill
made = Path(sys.argv[1])
guarded_process.GuardedProcess("child", ["touch", str(made)], log=made.with_name("log"), env=os.environ)
"""
_ENDS_GRACEFULLY: Final = "trap 'echo stopped; exit 0' TERM; echo ready; while :; do sleep 0.05; done"
_KILLED_AFTER: Final = """\
import os, signal, sys
from pathlib import Path
from flushtracker.process import guarded_process

log = Path(sys.argv[1])
child = guarded_process.GuardedProcess("child", ["sh", "-c", "echo $$; exec sleep 600"], log=log, env=os.environ)
print(child.pid, flush=True)
while not log.exists() or not log.read_text():
    pass
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_child_of_a_process_that_is_killed_before_it_is_guarded_does_not_run(tmp_path: Path) -> None:
    """As ``flushtracker up``, killed while it starts a program."""
    made = tmp_path / "made"
    done = run_to_end([sys.executable, "-c", _KILLED_BEFORE_THE_GUARD, str(made)], timeout=60)
    assert done.returncode == -9, done.stderr
    # Its log is closed once it has ended.
    wait_until(lambda: not _has_open(made.with_name("log")), "the end of the child", 30)
    assert not made.exists()


def test_child_of_a_process_that_is_killed_later_is_killed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    done = run_to_end([sys.executable, "-c", _KILLED_AFTER, str(log)], timeout=60)
    assert done.returncode == -9, done.stderr
    assert log.read_text() == done.stdout, "the child has another pid than its parent knows"
    wait_until(lambda: not _has_open(log), "the end of the child", 30)


def test_child_that_is_suspended_stops_gracefully(tmp_path: Path) -> None:
    """The signal alone would wait for the child to continue, and a kill would follow after a minute."""
    log = tmp_path / "log"
    child = GuardedProcess("child", ["sh", "-c", _ENDS_GRACEFULLY], log=log, env=os.environ)
    wait_until(lambda: log.read_text() == "ready\n", "the child's start", 30)
    child.suspend()
    child.stop()
    assert log.read_text() == "ready\nstopped\n"


def _has_open(path: Path) -> bool:
    """Whether any process has the file open."""
    for each in Path("/proc").glob("[0-9]*/fd/*"):
        # It may have ended, or closed that.
        with suppress(OSError):
            if each.readlink() == path:
                return True
    return False
