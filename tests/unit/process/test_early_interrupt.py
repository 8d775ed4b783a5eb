"""Ctrl-C while a program is imported: it ends it, each time, and shows no traceback."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Final, TypeAlias

import pytest

from flushtracker.process.early_interrupt import end_at_interrupt, raise_at_interrupt

Handler: TypeAlias = Callable[[int, FrameType | None], object] | signal.Handlers
_DEADLINE_S: Final = 120.0
_SIGINT_BIT: Final = 1 << (signal.SIGINT - 1)


def catches_interrupt(pid: int) -> bool:
    """Whether the process has a handler of its own for SIGINT, as Python's."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (caught,) = (line.split()[1] for line in lines if line.startswith("SigCgt:"))
    return bool(int(caught, 16) & _SIGINT_BIT)


def wait_until_caught(process: "subprocess.Popen[str]", *, is_caught: bool) -> None:
    deadline = time.monotonic() + _DEADLINE_S
    while process.poll() is None and catches_interrupt(process.pid) != is_caught:
        assert time.monotonic() < deadline


@pytest.mark.parametrize("after_s", [0.0, 0.05, 0.1, 0.2, 0.4])
def test_ctrl_c_while_capture_is_imported_ends_it(after_s: float, tmp_path: Path) -> None:
    """It was lost, or a traceback, where it came in the middle of an import."""
    command = [sys.executable, "-m", "flushtracker", "capture", "--config", str(tmp_path / "missing.yaml")]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    wait_until_caught(process, is_caught=True)
    wait_until_caught(process, is_caught=False)
    deadline = time.monotonic() + after_s
    while time.monotonic() < deadline and process.poll() is None:
        pass
    process.send_signal(signal.SIGINT)
    _, shown = process.communicate(timeout=_DEADLINE_S)
    # 2: it was so late that the configuration had been found missing, or the handler was capture's own.
    assert process.returncode in (-signal.SIGINT, 2)
    assert "Traceback" not in shown
    assert "KeyboardInterrupt" not in shown


@pytest.mark.parametrize(
    ("at_start", "while_imported"),
    [(signal.SIG_IGN, signal.SIG_IGN), (signal.default_int_handler, signal.SIG_DFL)],
    ids=["ignored", "an exception"],
)
def test_interrupts_are_as_before_once_a_program_runs(at_start: Handler, while_imported: Handler) -> None:
    """One is ignored by a job in the background of a script, which the terminal's Ctrl-C does not concern."""
    signal.signal(signal.SIGINT, at_start)
    end_at_interrupt()
    assert signal.getsignal(signal.SIGINT) is while_imported
    raise_at_interrupt()
    assert signal.getsignal(signal.SIGINT) is at_start


@pytest.mark.parametrize("after", ["nothing", "a test that left a handler"])
def test_handlers_end_with_their_test(after: str) -> None:
    """One that capture had left ignored the second Ctrl-C in its process: the wait that it was to end had no end."""
    assert signal.getsignal(signal.SIGINT) is not _ignore, after
    signal.signal(signal.SIGINT, _ignore)


def _ignore(_number: int, _frame: FrameType | None) -> None:
    pass
