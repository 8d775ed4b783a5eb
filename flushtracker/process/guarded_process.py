"""``GuardedProcess``: a child process in its own session that ends with this process, however this one ends."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import IO, Final

from flushtracker.errors import FlushtrackerError

STOP_TIMEOUT_SECONDS: Final = 60
_LAST_BYTES: Final = 4096
_LAST_OUTPUT_SECONDS: Final = 2.0
_ONCE_GUARDED: Final = 'read -r _ && exec "$@" < /dev/null'
"""Becomes the child once it is told to. If this process ends before, nobody would end a child that ran already."""


class Guard:
    """Runs a shell command when this process ends, for whatever reason, unless dismissed before."""

    def __init__(self, command: str) -> None:
        # Only this process has the pipe's other end, so the pipe closes when this process ends.
        self._shell = subprocess.Popen(  # noqa: S603  our own command
            ["/bin/sh", "-c", f"read -r _; {command}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def dismiss(self) -> None:
        """Cancel the command, because the guarded process has ended."""
        self._shell.kill()
        self._shell.communicate()


def child_environment() -> dict[str, str]:
    """Return an environment in which child processes import this flushtracker, not another one in the folder.

    ``python -m`` searches the current folder first, such as a checkout whose wheel was installed; Python 3.11 and later
    can turn that off.
    """
    is_from_here = Path.cwd() == Path(__file__).parents[2]
    return {**os.environ} if is_from_here else os.environ | {"PYTHONSAFEPATH": "1"}


class GuardedProcess:
    """A running child with its output in the file ``log``, or passed to it line by line, in a thread.

    A Ctrl-C at the terminal does not reach it.
    """

    def __init__(
        self, name: str, command: Sequence[str], *, log: Path | Callable[[str], None], env: Mapping[str, str]
    ) -> None:
        self.name = name
        self._log = log
        with log.open("ab") if isinstance(log, Path) else nullcontext(subprocess.PIPE) as output:
            self._process = subprocess.Popen(  # noqa: S603  our own command
                ["/bin/sh", "-c", _ONCE_GUARDED, name, *command],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output if isinstance(log, Path) else subprocess.STDOUT,
                env=env,
                start_new_session=True,
            )
        self._guard = Guard(f"kill -s KILL -- -{self._process.pid}")
        if self._process.stdin is not None:
            with suppress(BrokenPipeError), self._process.stdin as guarded:
                guarded.write(b"\n")
        self._said = ""
        self._reader: threading.Thread | None = None
        if not isinstance(log, Path) and self._process.stdout is not None:
            self._reader = threading.Thread(target=self._pass, args=(self._process.stdout, log), daemon=True)
            self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def failure(self) -> FlushtrackerError | None:
        """An error with the last line and exit code if the child has exited by itself; ``None`` while it runs."""
        code = self._process.poll()
        if code is None:
            return None
        # As in a shell, 128 + the signal that ended it. A clean exit is a failure too, since nobody requested it.
        exit_code = 128 - code if code < 0 else code or 1
        place = f"; its log is {self._log}" if isinstance(self._log, Path) else ""
        error = FlushtrackerError(f"{self.name} exited with {exit_code}: {self._last_line()}{place}")
        error.exit_code = exit_code
        return error

    def stop(self) -> None:
        """Stop it gracefully (SIGTERM), even while it is suspended, and wait; kill the rest of its process group."""
        self._process.terminate()
        self.resume()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_TIMEOUT_SECONDS)
        self.kill()

    def kill(self) -> None:
        """Kill its process group (SIGKILL), as a crash would, and wait until it has ended, and its output is passed."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._guard.dismiss()
        if self._reader is not None:
            self._reader.join(_LAST_OUTPUT_SECONDS)

    def run_for(self, seconds: float) -> None:
        """Let its process group run for a time, then suspend it until the next call."""
        self.resume()
        time.sleep(seconds)
        self.suspend()

    def suspend(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGCONT)

    def _pass(self, output: IO[bytes], log: Callable[[str], None]) -> None:
        """Until the child and all that it has started have closed their ends."""
        for line in output:
            text = line.decode(errors="replace").rstrip("\n")
            if text.strip():
                self._said = text.strip()
            log(text)

    def _last_line(self) -> str:
        if self._reader is not None:
            self._reader.join(_LAST_OUTPUT_SECONDS)
            return self._said or "no output"
        if not isinstance(self._log, Path):
            return "no output"
        with self._log.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - _LAST_BYTES))
            lines = log.read().decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "no output")
