"""``Supervisor``: what is started again, and what ends all."""

import os
import signal
import sys
from contextlib import closing
from pathlib import Path

import pytest

from flushtracker.errors import FlushtrackerError
from flushtracker.process.supervisor import Supervisor
from tests.support.processes import has_ended
from tests.support.waiting import wait_until

_SLEEPS = "import time; print('started', flush=True); time.sleep(600)"


class Seen:
    """What a supervisor of one child has shown and said."""

    def __init__(self, program: str) -> None:
        self.lines: list[str] = []
        self.said: list[str] = []
        self.children = Supervisor(
            {"job": [sys.executable, "-c", program]}, lambda _, line: self.lines.append(line), self.said.append
        )

    def started(self, times: int) -> bool:
        self.children.check()
        return self.lines.count("started") >= times


def end_of(seen: Seen) -> FlushtrackerError:
    """What ends the supervisor, although its child is not started a second time."""
    with closing(seen.children):
        seen.children.start("job")
        with pytest.raises(FlushtrackerError) as caught:
            wait_until(lambda: seen.started(2), "never", 30)
    return caught.value


def ends_with(code: int, reason: str) -> str:
    """A program that runs once it has run before, and then ends in this way."""
    return f"import sys; print('started', flush=True); print({reason!r}); sys.exit({code})"


def test_killed_child_is_started_again_also_before_everything_has_run() -> None:
    """By whatever signal; nothing of its process group is left."""
    seen = Seen(_SLEEPS)
    with closing(seen.children):
        seen.children.start("job")
        wait_until(lambda: seen.started(1), "the child", 30)
        first = seen.children.pids["job"]
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: seen.started(2), "the child again", 30)
        assert seen.children.pids["job"] != first
        assert seen.said == ["job exited with 137: started; it is started again in 1 s"]
    assert has_ended(first)


@pytest.mark.parametrize("code", [1, 5, 6, 7])
def test_exit_for_a_reason_outside_is_retried_once_everything_has_run(code: int) -> None:
    """After a second, and then after twice as long. Before, it is for the one who has started it."""
    seen = Seen(ends_with(code, "the storage is away"))
    seen.children.has_run = True
    with closing(seen.children):
        seen.children.start("job")
        wait_until(lambda: seen.started(3), "the third start", 30)
        assert [line.rpartition(" in ")[2] for line in seen.said[:2]] == ["1 s", "2 s"]
        assert seen.said[0].startswith(f"job exited with {code}: the storage is away; ")
    assert end_of(Seen(ends_with(code, "a wrong password"))).exit_code == code


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (2, "the configuration"),
        (3, "a gap"),
        (4, "this job has been fenced: another job"),
        (5, "this writer has been fenced: another writer started on shape log x"),
        (9, "another capture reads the slot"),
    ],
)
def test_what_a_restart_cannot_help_ends_all_with_its_reason(code: int, reason: str) -> None:
    """A restart of what was fenced would fence the process that has taken over."""
    seen = Seen(ends_with(code, reason))
    seen.children.has_run = True
    end = end_of(seen)
    assert str(end) == f"job exited with {code}: {reason}"
    assert end.exit_code == code
    assert seen.said == []


def test_stopped_child_ends_gracefully_with_what_it_has_started(tmp_path: Path) -> None:
    """The last lines of its output are still shown."""
    program = (
        "import signal, subprocess, sys, time\n"
        "child = subprocess.Popen(['sleep', '600'])\n"
        "def stop(*_):\n    print('bye', flush=True)\n    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, stop)\nprint('started', flush=True)\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(child.pid))\ntime.sleep(600)\n"
    )
    seen = Seen(program)
    with closing(seen.children):
        seen.children.start("job")
        pid = tmp_path / "pid"
        wait_until(lambda: pid.exists() and pid.read_text(), "the grandchild", 30)
        seen.children.stop("job")
        wait_until(lambda: "bye" in seen.lines, "its last line", 30)
        wait_until(lambda: has_ended(int(pid.read_text())), "the grandchild's end", 30)
        assert seen.said == ["stopping job"]
        assert not seen.children.is_started("job")
        seen.children.check()
