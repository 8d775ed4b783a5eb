"""``LocalServer``: the process of a server on this machine; it always ends with the process that started it."""

import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, TypeVar

from flushtracker.process.guarded_process import Guard

_END_TIMEOUT_S: Final = 60.0
_LOG_LINES_SHOWN: Final = 5
_Server = TypeVar("_Server", bound="LocalServer")


class LocalServer:
    """A server with its output in ``log``; not started yet. As a context manager it runs inside the block."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: Guard | None = None

    @property
    def is_started(self) -> bool:
        """Whether it was started, and not stopped since."""
        return self._process is not None

    @property
    def has_exited(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    def start(self) -> None:
        """Start it and wait until it answers; raises ``FlushtrackerError``."""
        raise NotImplementedError

    def stop(self) -> bool:
        """Stop it, and wait until it has exited; false if it had to be killed. Does nothing if it is not running."""
        raise NotImplementedError

    def kill(self) -> None:
        """Kill it with SIGKILL, like a crash."""
        self._end(signal.SIGKILL)

    def __enter__(self: _Server) -> _Server:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def _run(self, command: Sequence[str], guard: signal.Signals, **options: Any) -> "subprocess.Popen[bytes]":
        """Start the process, with the options of ``Popen``; it gets the signal ``guard`` when this one ends."""
        with self.log.open("ab") as log:
            # In a session of its own: Ctrl-C in the terminal must reach only the program that started the server.
            self._process = subprocess.Popen(  # noqa: S603  our own command
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, **options
            )
        self._guard = Guard(f"kill -s {guard.name.removeprefix('SIG')} {self._process.pid}")
        return self._process

    def _end(self, how: signal.Signals, timeout_s: float = _END_TIMEOUT_S) -> bool:
        """Whether it has exited in time after this signal, instead of being killed."""
        process, guard = self._process, self._guard
        self._process = self._guard = None
        in_time = True
        if process is not None:
            process.send_signal(how)
            try:
                process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                in_time = False
                process.kill()
                process.wait()
        if guard is not None:
            guard.dismiss()
        return in_time

    def _last_lines(self, begin: int = 0) -> str:
        """The last lines of its log, from the byte ``begin``, for an error message."""
        return last_lines(self.log.read_bytes()[begin:] if self.log.exists() else b"")


def last_lines(output: bytes) -> str:
    """Join the last lines of a program's output for an error message."""
    lines = output.decode(errors="replace").strip().splitlines()
    return " | ".join(line.strip() for line in lines[-_LOG_LINES_SHOWN:]) or "(empty)"
