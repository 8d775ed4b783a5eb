"""The edge of a program: signals, and output that no value can forge."""

import sys
import time
from threading import Thread

import pytest

from flushtracker.errors import ConfigError
from flushtracker.process.log_format import LogFormat
from flushtracker.process.program import StopFlag, run_program
from tests.support.processes import run_to_end


def test_signal_while_the_main_thread_holds_the_flags_lock_stops_the_program() -> None:
    """An Event's lock is held for a moment in each wait and each set; the signal may come just then."""
    program = """
import os, signal
from flushtracker.process.program import StopFlag, set_on_signals
stop = StopFlag()
set_on_signals(stop)
with stop._cond:
    os.kill(os.getpid(), signal.SIGTERM)
    assert stop.is_set()
assert stop.wait(60)
"""
    done = run_to_end([sys.executable, "-c", program], timeout=30)
    assert (done.returncode, done.stderr) == (0, "")


def test_flag_ends_a_wait_and_a_wait_ends_without_it() -> None:
    """As with an event, wait returns whether it is set."""
    stop = StopFlag()
    assert not stop.wait(0.01)
    waited: list[bool] = []
    thread = Thread(target=lambda: waited.append(stop.wait()))
    thread.start()
    stop.set()
    thread.join(30)
    assert waited == [True]
    started = time.monotonic()
    assert stop.wait(60)
    assert time.monotonic() - started < 30


def test_line_breaks_in_values_forge_no_log_line() -> None:
    """Whatever a value brings along, an event stays one line."""
    program = """
import logging
from flushtracker.process.program import log_to_stderr
log_to_stderr()
logging.getLogger("x").warning("shape added shape_id=%s", "a\\n2026-01-01 INFO ack advanced\\x1b[2K\\u2028")
"""
    done = run_to_end([sys.executable, "-c", program], timeout=30)
    assert done.stderr.count("\n") == 1
    assert done.stderr.isascii()
    assert done.stderr.endswith(r"shape_id=a\n2026-01-01 INFO ack advanced\x1b[2K\u2028" + "\n")


def test_tracebacks_in_the_log_keep_their_lines() -> None:
    """They are read by people."""
    program = """
import logging
from flushtracker.process.program import log_to_stderr
log_to_stderr()
try:
    1 / 0
except ZeroDivisionError:
    logging.getLogger("x").exception("failed")
"""
    done = run_to_end([sys.executable, "-c", program], timeout=30)
    assert done.stderr.splitlines()[-1] == "ZeroDivisionError: division by zero"


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_traceback_shows_no_text_of_another_packages_error(
    log_format: LogFormat, capsys: pytest.CaptureFixture[str]
) -> None:
    """What has a value of the configuration, which a message shows as ${PASSWORD}, may be quoted there."""

    secret = "hunter" + str(2)

    def program() -> int:
        try:
            int(secret)
        except ValueError as error:
            raise ConfigError("port is '${PASSWORD}', which is no number") from error
        return 0

    assert run_program("flushtracker x", program, verbose=True, log_format=log_format) == 2
    shown = capsys.readouterr().err
    assert "hunter2" not in shown
    assert "ValueError" in shown
    assert "in program" in shown
    assert "ConfigError: port is '${PASSWORD}', which is no number" in shown


def test_error_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Errors quote names and reasons from outside."""

    def program() -> int:
        raise ConfigError("no topic a\nb\r")

    assert run_program("flushtracker x", program, verbose=False) == 2
    assert capsys.readouterr().err == "flushtracker x: no topic a\\nb\\r\n"
