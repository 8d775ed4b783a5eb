"""Capture that a test starts, stops, kills and disconnects at will, in a thread or in a process of its own."""

import logging
import os
import re
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from flushtracker.errors import PostgresError, PostgresUnavailableError
from flushtracker.postgres.connection import Connection, rows
from tests.support.capture_rig import DEADLINE_S, CaptureRig, RunningCapture
from tests.support.kill_points import arm
from tests.support.killed_capture import POINTS, PUBLICATION_POINTS

_LOGGERS: Final = logging.getLogger("flushtracker")
_DISCONNECT: Final = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE application_name = 'flushtracker_capture' AND pid <> pg_backend_pid()
"""
_REFUSED: Final = re.compile(r"shape '([^']+)':? ?(.*)")
_UNAVAILABLE: Final = "PostgreSQL is unavailable"
_REFUSALS: Final = ("shape refused shape_id=", "shapes not applied reason=")


class _KilledError(BaseException):
    """Ends capture's thread wherever it is; no handler of the program takes it for an error of its own."""


class ControlledCapture:
    """At most one capture at a time. Close it when done."""

    def __init__(self, rig: CaptureRig, *, is_process: bool) -> None:
        self._rig = rig
        self._is_process = is_process
        self._thread: RunningCapture | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._disarm: Callable[[], None] = lambda: None
        self._lines = _Lines()
        self._level = _LOGGERS.level
        _LOGGERS.addHandler(self._lines)
        _LOGGERS.setLevel(logging.INFO)

    @property
    def is_running(self) -> bool:
        """Whether it was started, and neither stopped nor killed nor failed."""
        if self._process is not None:
            return self._process.poll() is None
        return self._thread is not None and self._thread.thread.is_alive()

    @property
    def has_source(self) -> bool:
        """Whether it runs in a thread and knows the source that it captures."""
        return self.is_running and self._thread is not None and self._thread.loop.source is not None

    def start(self) -> None:
        """Start capture, or another one after it was killed."""
        self.stop()
        if self._is_process:
            self._process = self._rig.start_process()
        else:
            self._thread = self._rig.start()

    def stop(self) -> None:
        """Stop capture as an operator does; whatever it has failed with before is forgotten."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(2 * DEADLINE_S)
            self._process = None
        if self._thread is not None:
            self._thread.stop_event.set()
            self._thread.thread.join(DEADLINE_S)
            assert not self._thread.thread.is_alive()
            self._thread = None
        self._disarm()

    def kill(self, point: str, passes: int) -> None:
        """Kill the process at once, or the thread at the point of ``killed_capture`` after so many passes."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(DEADLINE_S)
            self._process = None
        elif self._thread is not None:
            points = POINTS | PUBLICATION_POINTS
            owner, name, _ = points[point]
            original = getattr(owner, name)
            arm(points, point, passes, _die)
            self._disarm()
            self._disarm = lambda: setattr(owner, name, original)

    def disconnect(self, session: Connection) -> None:
        """Let the server end both of capture's connections; it connects again."""
        rows(session, _DISCONNECT)

    def log(self) -> str:
        """What capture has logged."""
        return self._rig.log() if self._is_process else "\n".join(self._lines.lines)

    def refused(self, log_from: int) -> dict[str, str]:
        """Why definitions were refused in the log from this position on, or by the start that failed, by shape."""
        lines = [line for line in self.log()[log_from:].splitlines() if any(map(line.count, _REFUSALS))]
        if self._thread is not None and self._thread.error is not None:
            lines.append(str(self._thread.error))
        elif self._process is not None and self._process.poll() is not None:
            lines += self._rig.log().splitlines()[-1:]
        return dict(found for line in lines for found in _REFUSED.findall(line)[:1])

    def failure(self) -> str | None:
        """The error that ended capture, other than a kill and what its operator has to correct or to start again."""
        if self._process is not None and self._process.poll() is not None:
            last = self._rig.log().splitlines()[-1]
            return (
                None
                if "publication" in last or _UNAVAILABLE in last
                else f"capture has exited with {self._process.returncode}: {last}"
            )
        error = None if self._thread is None else self._thread.error
        if error is None or isinstance(error, _KilledError):
            return None
        if isinstance(error, PostgresError) and "publication" in str(error):
            return None
        # It was disconnected before it had reached the server.
        if isinstance(error, PostgresUnavailableError):
            return None
        return f"capture has failed with {type(error).__name__}: {error}"

    def close(self) -> None:
        self.stop()
        _LOGGERS.removeHandler(self._lines)
        _LOGGERS.setLevel(self._level)


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def _die() -> None:
    raise _KilledError
