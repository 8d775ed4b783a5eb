"""A program that was told to stop ends, also when its main thread waits for a storage that never answers."""

import fcntl
import json
import signal
import subprocess
import sys
import termios
from array import array
from pathlib import Path
from typing import Final

import pytest

from tests.support.hung_storage import silent_object_store
from tests.support.processes import run_to_end
from tests.support.waiting import wait_until

_ROOT: Final = Path(__file__).parents[3]
_PROGRAM: Final = """\
import json, sys
from threading import Event
from flushtracker.tracking.acks.ack_table import AckTable
from flushtracker.process.program import set_on_signals
from flushtracker.process.stop_deadline import exit_if_hung
stop = Event()
set_on_signals(stop)
exit_if_hung("tracker", stop.is_set, 0.5)
AckTable("s3://bucket/acks", json.loads(sys.argv[1]))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_a_program_whose_storage_hangs(number: signal.Signals) -> None:
    """The handler of the signal cannot run: the main thread is in a library's call until that returns."""
    with silent_object_store() as (server, options):
        command = [sys.executable, "-c", _PROGRAM, json.dumps(options)]
        with subprocess.Popen(command, cwd=_ROOT, stderr=subprocess.PIPE, text=True) as running:
            try:
                connection, _ = server.accept()
                running.send_signal(number)
                _, errors = running.communicate(timeout=30)
            finally:
                running.kill()
            connection.close()
    assert running.returncode == 1
    assert errors == "tracker: not stopped after 0 s, so a storage may hang; exiting now, nothing is lost\n"


def test_program_that_stops_in_time_is_left_alone() -> None:
    """The deadline is only for one that hangs; without a request to stop there is none."""
    program = """\
import sys, time
from threading import Event
from flushtracker.process.program import set_on_signals
from flushtracker.process.stop_deadline import exit_if_hung
stop = Event()
set_on_signals(stop)
exit_if_hung("tracker", stop.is_set, 0.1)
time.sleep(1)
exit_if_hung("tracker", stop.is_set, 60)
stop.set()
sys.exit(0)
"""
    done = run_to_end([sys.executable, "-c", program], cwd=_ROOT, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")


def test_program_whose_log_nobody_reads_ends() -> None:
    """Its pipe is full, so that a line of its log hangs, and so would the line that says why it exits."""
    program = """\
import os
from flushtracker.process.program import StopFlag, set_on_signals
from flushtracker.process.stop_deadline import exit_if_hung
stop = StopFlag()
set_on_signals(stop)
exit_if_hung("tracker", stop.is_set, 0.1)
while True:
    os.write(2, b"x" * 100_000)
"""
    with subprocess.Popen([sys.executable, "-c", program], cwd=_ROOT, stderr=subprocess.PIPE) as running:
        try:
            assert running.stderr is not None
            pipe = running.stderr.fileno()
            wait_until(lambda: _unread(pipe) > 20_000, "the pipe is filled", 30)
            running.send_signal(signal.SIGTERM)
            assert running.wait(30) == 1
        finally:
            running.kill()


def _unread(pipe: int) -> int:
    """Bytes that nobody has read."""
    found = array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, found)
    return found[0]


def test_program_whose_log_is_closed_ends() -> None:
    """The line that says why it exits cannot be written."""
    program = """\
import time
from flushtracker.process.stop_deadline import exit_if_hung
exit_if_hung("tracker", lambda: True, 0.5)
time.sleep(1_000)
"""
    with subprocess.Popen([sys.executable, "-c", program], cwd=_ROOT, stderr=subprocess.PIPE) as running:
        try:
            assert running.stderr is not None
            running.stderr.close()
            assert running.wait(30) == 1
        finally:
            running.kill()
